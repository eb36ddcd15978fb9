"""One call timed on all ranks at once.

    all ranks meet | the device sleeps while the host enqueues | event | the call | event

The time is the median over the rounds, on the rank where it was longest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

ROUNDS = 9
SLEEP_CYCLES = 1_000_000
"""About half a millisecond: longer than the host takes to enqueue what is timed."""


class Clock:
    """Times calls on a group's GPUs; collective."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group = group
        self.device = device
        self._word = torch.zeros(1, device=device)

    def seconds(self, call: Callable[[], object], *, rounds: int = ROUNDS, calls: int = 1) -> float:
        """Seconds of one call, of ``calls`` enqueued one behind the other."""
        call()
        times = []
        for _ in range(rounds):
            dist.all_reduce(self._word, group=self.group)
            torch.cuda._sleep(SLEEP_CYCLES)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(calls):
                call()
            end.record()
            torch.cuda.synchronize(self.device)
            times.append(start.elapsed_time(end) * 1e-3 / calls)
        worst = torch.tensor([statistics.median(times)], dtype=torch.float64, device=self.device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=self.group)
        return float(worst)

    def captured(self, call: Callable[[], object], calls: int) -> float:
        """Seconds of one of ``calls`` calls captured into one graph, one behind the other."""
        call()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return self.seconds(graph.replay) / calls
