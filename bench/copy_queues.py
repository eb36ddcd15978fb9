"""Whether lanes of copies run beside each other: us of twelve copies and their flags, on one stream and on several.

    python bench/copy_queues.py [--bytes 4194304 8388608]
    CUDA_DEVICE_MAX_CONNECTIONS=32 python bench/copy_queues.py

One process on two GPUs or more; GPU 0 sends to all others in turn, as a lane does, a flag being a copy of eight bytes behind its
chunk. Lanes are forked from a main stream and joined, by calls of the driver and in a graph. Copies that share an engine take
as long on several lanes as on one; on lanes of their own their latencies overlap, and what a link carries is the limit.

``held``: lanes that are held for a word (`hold_call`) for a millisecond stand ahead of one that is not, which has half of the
copies. What the call takes beyond that millisecond is the other half's time, or the time of all where the lane that
nobody holds waits with the others.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import record
import torch
import triton
import triton.language as tl

from overlap.runtime.cuda.driver import Calls, Stream, copy_call, hold_call
from overlap.runtime.memory.copies import CopyPiece

COPIES = 12
HELD_US = 1000
AHEAD_CYCLES = 4_000_000
"""For which the device sleeps while the host enqueues a call."""
CYCLES_A_US = 1700
"""Of the device's clock, or a few more: how long it sleeps is measured."""


class Case(NamedTuple):
    """So many lanes that share the copies, with flags or not; ``held``: so many lanes ahead of one are held, and have half."""

    lanes: int
    flags: bool = True
    held: int = 0

    def copies(self) -> list[list[int]]:
        """The numbers of the copies of each lane, those that are held first."""
        numbers = list(range(COPIES))
        if self.held:
            half = COPIES // 2
            return [*(numbers[half + lane :: self.held] for lane in range(self.held)), numbers[:half]]
        return [numbers[lane :: self.lanes] for lane in range(self.lanes)]


def cases(peers: int) -> dict[str, Case]:
    found = {
        "one lane, no flags": Case(1, False),
        "two lanes, no flags": Case(2, False),
        "one lane": Case(1),
        "two lanes": Case(2),
        "half of them": Case(1, held=0),
        "one beside one that is held": Case(1, held=1),
        "one beside three that are held": Case(1, held=3),
    }
    return found | ({f"a lane a peer, {peers}": Case(peers)} if peers > 1 else {})


def most_lanes(peers: int) -> int:
    """Lanes of the case that has most of them."""
    return max(len(case.copies()) for case in cases(peers).values())


@triton.jit
def fill(dst, value):
    tl.store(dst, value)


class Work:
    """Chunks of so many bytes for each copy, flags, and the word that lanes are held for."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._source = torch.zeros(COPIES, size, device="cuda:0", dtype=torch.int8)
        peers = torch.cuda.device_count() - 1
        self._peers = [torch.zeros(COPIES + 1, size, device=f"cuda:{1 + i}", dtype=torch.int8) for i in range(peers)]
        for peer in self._peers:
            peer[0, :8].copy_(self._source[0, :8])  # torch lets them reach each other
        self.word = torch.zeros(2, device="cuda:0", dtype=torch.int32)
        self._hold = Calls([(hold_call(self.word.data_ptr(), 1), "a hold")])
        self.streams = [torch.cuda.Stream("cuda:0") for _ in range(most_lanes(peers))]
        for number in (0, 1):
            fill[(1,)](self.word, number)

    def _copy(self, number: int, flags: bool) -> Calls:
        peer, source = self._peers[number % len(self._peers)], self._source[number].data_ptr()
        pieces = [CopyPiece(peer[number].data_ptr(), source, self._size)]
        pieces += [CopyPiece(peer[COPIES].data_ptr() + 8 * number, source, 8)] if flags else []
        return Calls([(copy_call(piece), "a copy") for piece in pieces])

    def call(self, case: Case, copies: Sequence[Sequence[int]]) -> Callable[[], None]:
        """Enqueues a case on the current stream."""
        made = [[self._copy(number, case.flags) for number in numbers] for numbers in copies]

        def go() -> None:
            main = torch.cuda.current_stream()
            fill[(1,)](self.word, 0)
            for number, (side, enqueues) in enumerate(zip(self.streams[: len(made)], made, strict=True)):
                side.wait_stream(main)
                stream = Stream(side.cuda_stream)
                for enqueue in [self._hold] * (number < case.held) + enqueues:
                    enqueue(stream)
            if case.held:
                torch.cuda._sleep(int(HELD_US * CYCLES_A_US))
            fill[(1,)](self.word, 1)
            for side in self.streams[: len(made)]:
                main.wait_stream(side)

        return go


def timed(go: Callable[[], Any], rounds: int) -> float:
    """Median us of a call that the host has enqueued before the device begins it."""
    times = []
    for _ in range(rounds):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(AHEAD_CYCLES)
        begun.record()
        go()
        ended.record()
        torch.cuda.synchronize()
        times.append(1e3 * begun.elapsed_time(ended))
    return statistics.median(times)


def captured(go: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        go()
    return graph


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", nargs="+", type=int, default=[4 << 20, 16 << 20], help="of a chunk")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="what is measured, where this is no checkout")
    options = parser.parse_args(argv)
    if torch.cuda.device_count() < 2:
        sys.exit("copies between GPUs need two of them")
    torch.cuda.set_device(0)
    rows: list[dict[str, Any]] = []
    held = timed(lambda: torch.cuda._sleep(int(HELD_US * CYCLES_A_US)), options.rounds)
    for size in options.bytes:
        work = Work(size)
        print(f"{COPIES} copies of {size} bytes, {torch.cuda.get_device_name()}: us by calls, in a graph")
        for name, case in cases(torch.cuda.device_count() - 1).items():
            copies = [list(range(COPIES // 2))] if name == "half of them" else case.copies()
            go = work.call(case, copies)
            for _ in range(3):
                go()
            torch.cuda.synchronize()
            beyond = held if case.held else 0.0
            us = [round(timed(each, options.rounds) - beyond, 1) for each in (go, captured(go).replay)]
            print(f"  {name:32}{us[0]:10.1f}{us[1]:10.1f}", flush=True)
            rows.append({"kind": "copy queues", "case": name, "bytes": size, "us": us[0], "graph_us": us[1]})
        del work
    gpus = torch.cuda.device_count()
    record.write_asked(options.json, rows, [record.clocks("start")], options.commit, gpus, processes=1)


if __name__ == "__main__":
    main()
