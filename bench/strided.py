"""Strided pieces between two GPUs: one 2-D copy of a copy engine against programs that load and store or copy boxes by TMA, by
the bytes of a row.

    python -m torch.distributed.run --nproc-per-node 2 bench/strided.py --out bench/results/strided/strided_h100x2.json

Every rank pulls from, or pushes to, the next one, all at once. Of the two sides one is dense and the other has rows of a wider
matrix: the destination, as in a gather of columns, or the source, as in a scatter of them. Programs run what programs of a
fused kernel do, the table included, and raise a flag; behind a 2-D copy goes a flag as behind any copy of a chunk. An eighth of
the multiprocessors copies, as `ldst_reserved` and `tma_reserved` take by themselves, or all of them, through registers, as
`ldst_inline`. What TMA does not take (`LEAST_WIDTH`) is left out. Time of a call: the median over the rounds on
the rank where it is highest (`overlap.autotune.calibrate.clock`); every way's result is checked, its destination poisoned.

`crossing` says from how many bytes a row a copy engine is as fast as an eighth of the multiprocessors, whichever side is strided
and in both directions: what the setting ``strided_row_bytes`` should be on such a machine. It looks at the largest chunks alone:
small ones take programs less time however wide their rows are, for a copy takes some microseconds to start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
import torch.distributed as dist
import triton
from common import Session

import overlap.language as ol
from overlap.autotune.calibrate.clock import Clock
from overlap.language.moves import move_chunks
from overlap.runtime.cuda.runtime import CudaRuntime, runtime_for_group
from overlap.runtime.cuda.scratch import scratch
from overlap.runtime.memory.copies import plan_copy
from overlap.runtime.tables.moves import LEAST_WIDTH, PART, piece_words
from overlap.schedule import moves as layout
from overlap.schedule.table import S_EPOCH, SLOT_WORDS
from overlap.schedule.ways import MARGIN

ROWS = tuple(1 << n for n in range(5, 15))
"""Bytes of a row."""
SIZES = (1 << 20, 16 << 20)
"""Bytes of a chunk."""
PITCH = 4
"""Rows of the wider matrix hold so many of the chunk's."""
COPY_ENGINE = "copy_engine"
PROGRAMS = {
    "ldst_reserved": "load/store",
    "ldst_inline": "load/store, without shared memory",
    "tma_reserved": "tma store",
}
COUNTER, FLAG, WORDS = 16 * SLOT_WORDS, 17 * SLOT_WORDS, 18 * SLOT_WORDS
"""Words of a state that holds an epoch, the counter of a move and its flag."""


@triton.jit
def move(moves, state, TRANSPORT: ol.constexpr):
    """What a program that moves does in a launch, and nothing else."""
    move_chunks(moves, state, ol.now(state), TRANSPORT)


def table_of(dst: torch.Tensor, src: torch.Tensor, programs: int, flag: int, *, boxes: bool) -> list[int]:
    """The table of `overlap.schedule.moves` for one move of ``src`` to ``dst`` by all programs of a launch.

    Args:
        flag: its address. ``boxes``: by TMA what it can take.
    """
    first = layout.HEADER_WORDS + programs * layout.PROGRAM_WORDS
    begin = first + layout.MOVE_WORDS
    pieces = [word for piece in plan_copy(dst, src) for words in piece_words(piece, boxes=boxes) for word in words]
    records = [word for number in range(programs) for word in (first, 1, number, programs)]
    return [programs, programs, 1, 1, 0, *records, begin, begin, begin, begin + len(pieces), COUNTER, flag, *pieces]


class Bench:
    """The measurements on one runtime: chunks in symmetric memory, whose other side is the next rank's."""

    def __init__(self, runtime: CudaRuntime, rounds: int) -> None:
        self.runtime, self.rounds = runtime, rounds
        self.clock = Clock(runtime.group, runtime.device)
        self.dense = runtime.symmetric((max(SIZES),), torch.uint8)
        self.wide = runtime.symmetric((PITCH * max(SIZES),), torch.uint8)
        peer = (runtime.rank + 1) % runtime.world
        self.there = {"dense": runtime.peer(self.dense, peer), "wide": runtime.peer(self.wide, peer)}
        self.state = runtime.symmetric((WORDS,), torch.int64, zero=True)
        self.state[S_EPOCH * SLOT_WORDS] = 1
        self.flags = runtime.peer(self.state, peer)

    def measure(self, width: int, size: int, rows_in: str, direction: str) -> Iterator[dict[str, Any]]:
        """Every way's result row for chunks of ``size`` bytes in rows of ``width``; ``rows_in``: the side that is strided."""
        shape = (size // width, width)
        sides = [self._sides(shape, name, rows_in, direction) for name in ("source", "destination")]
        src, dst = (here for here, _ in sides)
        for way, programs, call in self.calls(dst, src):
            own_source, own_result = (mine for _, mine in sides)
            own_source.copy_(torch.randint(0, 250, shape, dtype=torch.uint8, device=own_source.device))
            own_result.fill_(255)
            torch.cuda.synchronize()
            dist.barrier(self.runtime.group)
            seconds = self.clock.seconds(call, rounds=self.rounds)
            dist.barrier(self.runtime.group)
            wrong = torch.tensor([bool((src != dst).any())], device=src.device, dtype=torch.int32)
            dist.all_reduce(wrong, group=self.runtime.group)
            if wrong.item():
                sys.exit(
                    f"{way} of rows of {width} bytes, strided {rows_in}, {direction}: {wrong.item()} ranks are wrong"
                )
            yield {
                "row_bytes": width,
                "bytes": size,
                "strided": rows_in,
                "direction": direction,
                "way": way,
                "programs": programs,
                "us": round(1e6 * seconds, 2),
            }

    def _sides(
        self, shape: tuple[int, int], side: str, rows_in: str, direction: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A side of the copy that this rank makes, and this rank's own memory on that side."""
        remote = (side == "source") == (direction == "pull")
        rows, width = shape
        if side == rows_in:
            own, other = (
                m[: PITCH * rows * width].view(rows, PITCH * width)[:, :width] for m in (self.wide, self.there["wide"])
            )
        else:
            own, other = (m[: rows * width].view(rows, width) for m in (self.dense, self.there["dense"]))
        return (other if remote else own), own

    def calls(self, dst: torch.Tensor, src: torch.Tensor) -> Iterator[tuple[str, int, Callable[[], object]]]:
        """Ways by name, each with how many programs copy and what enqueues it."""
        runtime = self.runtime
        enqueue = runtime.copier(dst, src)
        flag = runtime.copier(self.flags[FLAG : FLAG + 1], self.state[:1])
        stream = runtime.main_stream()
        yield COPY_ENGINE, 0, lambda: (enqueue(stream), flag(stream))
        tma = torch.cuda.get_device_capability(runtime.device) >= (9, 0)
        for way, transport in PROGRAMS.items():
            boxes = transport == PROGRAMS["tma_reserved"]
            if boxes and (not tma or src.shape[1] < LEAST_WIDTH):
                continue
            programs = max(1, runtime.sm_count // PART) if way.endswith("reserved") else runtime.sm_count
            words = table_of(dst, src, programs, self.flags[FLAG:].data_ptr(), boxes=boxes)
            with scratch():
                yield (
                    way,
                    programs,
                    partial(move[(programs,)], runtime.table(words, bits=64), self.state, transport, num_warps=8),
                )


def crossing(rows: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """By way of an eighth of the multiprocessors, the fewest bytes of a row from which on a copy engine is not slower, to within
    `MARGIN` and with the largest chunks; None where it is slower with the widest rows too."""
    key = ("row_bytes", "bytes", "strided", "direction")
    largest = max((row["bytes"] for row in rows), default=0)
    copies = {tuple(row[k] for k in key): row["us"] for row in rows if row["way"] == COPY_ENGINE}
    found: dict[str, int | None] = {}
    for way in (name for name in PROGRAMS if name.endswith("reserved")):
        mine = [row for row in rows if row["way"] == way and row["bytes"] == largest]
        slower = [row["row_bytes"] for row in mine if (1 + MARGIN) * row["us"] < copies[tuple(row[k] for k in key)]]
        widths = sorted({row["row_bytes"] for row in mine})
        if widths:
            found[way] = next((w for w in widths if w > max(slower, default=0)), None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row-bytes", nargs="+", type=int, default=ROWS, metavar="N")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="what is measured, where this is no checkout")
    options = parser.parse_args()
    session = Session()
    if session.world < 2:
        sys.exit("one rank has no link to measure: start 2 or more")
    bench = Bench(runtime_for_group(dist.group.WORLD), options.rounds)
    clocks, rows = [record.clocks("start")], []
    for size in SIZES:
        for rows_in in ("destination", "source"):
            for direction in ("pull", "push"):
                for width in options.row_bytes:
                    here = list(bench.measure(width, size, rows_in, direction))
                    rows += here
                    told = "  ".join(f"{row['way']} {row['bytes'] / row['us'] / 1e3:.1f}" for row in here)
                    session.say(f"{size >> 20:3} MiB, strided {rows_in}, {direction}, {width:5} B a row, GB/s: {told}")
    clocks.append(record.clocks("end"))
    session.say(f"a copy engine is as fast from so many bytes a row: {crossing(rows)}")
    if options.out and session.rank == 0:
        commit, command = options.commit or record.commit(), record.command(session.world)
        record.write_rows(options.out, rows, clocks, commit, command, session.world)
    session.close()


if __name__ == "__main__":
    main()
