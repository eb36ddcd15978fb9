"""`GroupGround`: trials on a process group of their own, over the ranks of the caller's.

What a failed trial leaves behind (half a launch, meetings out of step, flags of no known epoch) is dropped with the group; the
caller's group never sees any of it.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from overlap.runtime.cuda.runtime import known_runtime, runtime_for_group
from overlap.runtime.group.meeting import Meetings
from overlap.runtime.workspace import check, release, workspaces

from .config import Config

WARM_UP = 3
SLEEP_CYCLES = 300_000
"""Of the device for each run that is timed, so that the host has enqueued all of them before the first begins."""
COMPILE_S = 60.0
"""Seconds that ranks wait for one that compiles in a trial."""


_uses = 0
"""Grounds over some ranks that this process has had, or that one beside it had."""


class GroupGround:
    """Trials of a call on a group.

    Args:
        group: the caller's process group.
        call: carries a config out on a group that it is given.
        device: of this rank.
        deadline: seconds that a wait of a trial may last.
        meet: exchanges a value among the ranks, apart from trials.
    """

    def __init__(
        self,
        group: Any,
        call: Callable[[Config, Any], object],
        device: torch.device,
        *,
        deadline: float,
        meet: Callable[[str, Any], list[Any]],
    ) -> None:
        self._call = call
        self._device = device
        self._deadline = deadline
        self._meet = meet
        self._ranks = dist.get_process_group_ranks(group)
        self._all = len(self._ranks) == dist.get_world_size()
        self._backend = backend_of(group)
        self._made: Any = None
        self._number = 0

    @property
    def group(self) -> Any:
        """The trials' group; collective where it is made."""
        if self._made is None:
            # NCCL's watchdog would end the process where gloo raises.
            limit = timedelta(seconds=self._deadline) if self._device.type == "cpu" else None
            with nullcontext() if self._all else named(self._name()):
                self._made = dist.new_group(
                    self._ranks, timeout=limit, backend=self._backend, use_local_synchronization=not self._all
                )
        return self._made

    def _name(self) -> str:
        """Of the next group of some ranks: the same on each of them, and new to all."""
        global _uses
        number = max(self._meet(f"the name of ground {self._number}", _uses))
        _uses = number + 1
        return f"overlap tunes {number} {self._ranks}"

    def run(self, config: Config, runs: int) -> float:
        group = self.group
        on_gpu = self._device.type == "cuda"
        with deadlines(self._deadline):
            self._call(config, group)  # compiles, and makes memory
            if on_gpu:
                check(group)
            ms = self._timed(lambda: self._call(config, group), runs)
            if on_gpu:
                check(group)
                release(group)
        return ms

    def _timed(self, call: Callable[[], object], runs: int) -> float:
        return queued_ms(call, runs, self._device) if self._device.type == "cuda" else host_ms(call, runs)

    def fail(self, error: BaseException) -> None:
        if self._made is not None and self._device.type == "cuda":
            with deadlines(self._deadline):
                runtime_for_group(self._made).agree("a trial", error)

    def renew(self) -> None:
        old, self._made = self._made, None
        self._number += 1
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        # Nobody lets memory go that another rank's launch may still reach.
        self._meet(f"the end of ground {self._number}", None)
        if old is None:
            return
        drop(old)
        dist.destroy_process_group(old)

    def close(self) -> None:
        """Gives the group back; collective."""
        if self._made is not None:
            self.renew()


@contextmanager
def named(name: str) -> Iterator[None]:
    """The next group of some ranks has this name.

    torch makes one of the ranks and of how many groups a process has: after one was destroyed the next would have its name
    again, with the addresses that the store still has under that, and ranks with other numbers of groups would not meet.
    """
    own = c10d._process_group_name
    c10d._process_group_name = lambda ranks, use_hashed_name: name
    try:
        yield
    finally:
        c10d._process_group_name = own


def drop(group: Any) -> None:
    """Lets go of all that a group's runtime holds, without asking the other ranks, which do the same."""
    runtime = known_runtime(group)
    if runtime is None:
        return
    for workspace in workspaces(runtime).values():
        workspace.memory = None
        workspace.kept.clear()
        workspace.instances.clear()
    for known in ("overlap_calls", "overlap_workspaces", "overlap_instances", "overlap_choices", "overlap_tuned"):
        getattr(runtime, known, {}).clear()
    runtime.overlap_last = None
    gc.collect()
    runtime.release()


def backend_of(group: Any) -> str:
    """The backends of a group, as `torch.distributed.new_group` takes them."""
    return str(dist.get_backend_config(group))


@contextmanager
def deadlines(seconds: float) -> Iterator[None]:
    """Waits and meetings of this process end after so long."""
    wanted = {"OVERLAP_DEADLINE_S": str(seconds), "OVERLAP_COMPILE_DEADLINE_S": str(max(seconds, COMPILE_S))}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def queued_ms(call: Callable[[], object], runs: int, device: torch.device) -> float:
    """Median milliseconds of a call on the current stream of a GPU, the host far enough ahead not to count."""
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize(device)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 2)]
    torch.cuda._sleep(SLEEP_CYCLES * (runs + 1))
    for mark in marks[:-1]:
        mark.record()
        call()
    marks[-1].record()
    torch.cuda.synchronize(device)
    # The first waits for ranks that started later.
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks[1:], marks[2:], strict=False))


def host_ms(call: Callable[[], object], runs: int) -> float:
    """The same by the host's clock, where calls end when their work does."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def meeting_of(group: Any, name: str, seconds: float) -> Callable[[str, Any], list[Any]]:
    """Meetings of a group's ranks that share no numbering with those of its runtime.

    Args:
        name: of these, alike on every rank and new each time.
        seconds: how long the ranks wait for one.
    """
    store = dist.PrefixStore(name, dist.distributed_c10d._get_process_group_store(group))
    meetings = Meetings(store, dist.get_rank(group), dist.get_world_size(group))
    return lambda what, value: meetings.meet(what, value, seconds=seconds)
