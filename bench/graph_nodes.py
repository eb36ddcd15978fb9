"""What launching a graph costs the host, by what is in it: microseconds of a launch, and of the same work by calls of the driver.

    python bench/graph_nodes.py [--own-stream]

One process on two GPUs or more; the second one's memory stands for peers'. Each row is three kernels on a main stream and what
it names besides: credits (copies of eight bytes to a peer) behind them, or a lane beside the second kernel, with copies of a
megabyte (chunk) and of eight bytes (flag) and waits for a word (hold). Columns:

    same      a launch whose kernels get the addresses that they have
    other     one whose first kernel gets another address first
    calls     the work by calls of the driver

with the GPU idle, and busy with something else. The main stream is the default one, in order with all ordinary streams of
its device, or one of the process's own. The last lines are what a graph takes of memory, and how long it takes to make.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from overlap.runtime.cuda.bound_launch import bound_launch
from overlap.runtime.cuda.call_graph import Recorder
from overlap.runtime.cuda.compiled import compiled
from overlap.runtime.cuda.driver import Calls, Event, OwnStream, Stream, copy_call, hold_call
from overlap.runtime.memory.copies import CopyPiece
from overlap.runtime.repeat.places import Carried, numbered

BUSY_CYCLES = 40_000_000
IN_A_ROW = 12
GRAPHS = 40
"""Made for the last lines."""


@triton.jit
def fill(dst, value, BLOCK: tl.constexpr):
    tl.store(dst + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.int64) + value)


class ByCalls:
    """Carries steps out on the streams that they would be recorded on."""

    def __init__(self, main: Stream) -> None:
        self.main = main
        self._side = OwnStream(-1)
        self._forked, self._joined = Event(), Event()

    def launch(self, enqueue: Callable[..., None], carried: Carried) -> None:
        enqueue(self.main, carried)

    def forks(self, lanes: Sequence[int]) -> list[Stream]:
        self._forked.record(self.main)
        self._forked.hold(self._side)
        return [self._side]

    def join(self, stream: Stream) -> None:
        self._joined.record(stream)
        self._joined.hold(self.main)


class Work:
    """The work of all rows, over memory of one GPU and of its peers."""

    def __init__(self) -> None:
        self.here = torch.zeros(1 << 20, device="cuda:0", dtype=torch.int64)
        count = torch.cuda.device_count() - 1
        peers = [torch.zeros(1 << 20, device=f"cuda:{1 + i % count}", dtype=torch.int64) for i in range(3)]
        for peer in peers:
            peer.copy_(self.here)  # torch lets them reach each other
        kwargs = {"dst": self.here, "value": 3, "BLOCK": 64, "num_warps": 1}
        made = compiled(fill, (1, 1, 1), kwargs)
        self._given = bound_launch(fill, made, (1, 1, 1), kwargs, {"dst": numbered([self.here])[0]})
        self._fixed = bound_launch(fill, made, (1, 1, 1), kwargs)
        start = self.here.data_ptr()
        self.flags, self.chunks = ([self._copy(peer, size) for peer in peers] for size in (8, 1 << 20))
        self.hold = Calls([(hold_call(start + 64, 0), "a hold")])
        self._peers = peers

    def _copy(self, peer: torch.Tensor, size: int) -> Calls:
        return Calls([(copy_call(CopyPiece(peer.data_ptr() + size, self.here.data_ptr() + size, size)), "a copy")])

    def steps(self, kernels: int = 3, lane: Sequence[Calls] = (), credits: int = 0) -> Callable[[Any], None]:
        def go(streams: Any) -> None:
            carried = Carried([self.here])
            streams.launch(self._given, carried)
            side = streams.forks([0]) if lane else []
            for _ in range(kernels - 1):
                streams.launch(self._fixed, carried)
            for enqueue in lane:
                enqueue(side[0])
            for stream in side:
                streams.join(stream)
            for enqueue in self.flags[:credits]:
                enqueue(streams.main)

        return go

    def rows(self) -> dict[str, Callable[[Any], None]]:
        both = [each for pair in zip(self.chunks, self.flags, strict=True) for each in pair]
        held = [each for pair in zip(self.chunks, self.flags, strict=True) for each in (self.hold, *pair)]
        return {
            "nothing": self.steps(),
            "a fourth kernel": self.steps(4),
            "1 credit": self.steps(credits=1),
            "3 credits": self.steps(credits=3),
            "a lane of a flag": self.steps(lane=self.flags[:1]),
            "a lane of 3 flags": self.steps(lane=self.flags),
            "a lane of 3 chunks and flags": self.steps(lane=both),
            "a lane of a hold": self.steps(lane=[self.hold]),
            "a lane of 3 holds, chunks and flags": self.steps(lane=held),
            "the same, and 3 credits": self.steps(lane=held, credits=3),
        }


def idle(go: Callable[[], Any], rounds: int) -> float:
    """Microseconds of one call while the GPU has nothing to do."""
    times = []
    for _ in range(2 * rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        go()
        times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times)


def busy(go: Callable[[], Any], rounds: int) -> float:
    """Microseconds of each of some calls in a row while it is busy."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY_CYCLES)
        begin = time.perf_counter()
        for _ in range(IN_A_ROW):
            go()
        times.append((time.perf_counter() - begin) / IN_A_ROW)
    return 1e6 * statistics.median(times)


def measured(
    graph: Any, main: Stream, carried: list[Carried], calls: Callable[[], None], rounds: int
) -> list[tuple[float, float]]:
    """Idle and busy, of launches on ``main`` that carry the same, of those that carry one and the other, and of calls."""

    def alternate() -> None:
        carried.reverse()
        graph(main, carried[0])

    found = []
    for go in (partial(graph, main, carried[0]), alternate, calls):
        for _ in range(4):
            go()
        found.append((idle(go, rounds), busy(go, rounds)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--own-stream", action="store_true", help="the main stream is not the default one")
    options = parser.parse_args()
    rounds = options.rounds
    if torch.cuda.device_count() < 2:
        sys.exit("copies between GPUs need two of them")
    torch.cuda.set_device(0)
    stream = OwnStream(0) if options.own_stream else Stream(0)
    work, recorder = Work(), Recorder()
    same, other = Carried([work.here]), Carried([work.here[4096:]])
    print(f"{'':36}{'same':>14}{'other':>14}{'calls':>14}   us, idle / busy; {torch.cuda.get_device_name()}")
    for name, steps in work.rows().items():
        found = measured(recorder.record(steps, stream), stream, [same, other], partial(steps, ByCalls(stream)), rounds)
        print(f"{name:36}" + "".join(f"{a:7.1f}{b:7.1f}" for a, b in found), flush=True)
    torch.cuda.synchronize()
    free, begin = torch.cuda.mem_get_info()[0], time.perf_counter()
    kept = [recorder.record(list(work.rows().values())[-1], stream) for _ in range(GRAPHS)]
    took = (time.perf_counter() - begin) / len(kept)
    torch.cuda.synchronize()
    print(
        f"a graph of the last row: {1e6 * took:.0f} us to make, {(free - torch.cuda.mem_get_info()[0]) / GRAPHS:.0f} bytes"
    )


if __name__ == "__main__":
    main()
