"""How fast the sum kernel adds and moves, by the shape of its launch: GB/s of all that it reads and writes. One GPU.

    python bench/sum_speed.py [--mib 16 32] [--summands 1 2 4]

Every summand and the result are apart, nothing is waited for, and the L2 cache is flushed ahead, as tiles do. ``behind`` is what
sums that follow a kernel are launched with, ``beside`` those of a lane; the others are what else was tried.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import record
import torch
import triton.language as tl

from overlap.runtime.kernels.reduce import sum_kernel
from overlap.runtime.launch import prepared
from overlap.runtime.tables.sums import WARP_ELEMENTS, Addition, Operand, sum_table

FLUSH_BYTES = 256 << 20
AHEAD_CYCLES = 400_000


class Shape(NamedTuple):
    """A launch: warps, programs a multiprocessor, and elements of a block for each warp."""

    warps: int
    programs: int
    elements: int = WARP_ELEMENTS


SHAPES = {
    "behind": Shape(prepared.SUM_WARPS, prepared.SUM_PROGRAMS),
    "beside": Shape(prepared.BESIDE_WARPS, prepared.BESIDE_PROGRAMS),
    "8 warps, 3 programs": Shape(8, 3),
    "8 warps, 4 programs": Shape(8, 4),
    "8 warps, 8 programs": Shape(8, 8),
    "8 warps, 2 programs, twice the block": Shape(8, 2, 2 * WARP_ELEMENTS),
    "4 warps, 3 programs, twice the block": Shape(4, 3, 2 * WARP_ELEMENTS),
    "4 warps, 4 programs": Shape(4, 4),
    "4 warps, 6 programs": Shape(4, 6),
    "4 warps, 8 programs": Shape(4, 8),
    "4 warps, 32 programs": Shape(4, 32),
    "16 warps, 1 program": Shape(16, 1),
    "16 warps, 2 programs": Shape(16, 2),
}


def launch(elements: int, summands: int, shape: Shape, units: int) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Grid and arguments of a sum of pieces of so many bf16 elements, in tensors of their own."""
    where = [Operand(number * elements, (1,)) for number in range(summands)]
    addition = Addition((elements,), tuple((operand, -1) for operand in where), Operand(0, (1,)), None)
    table = sum_table([addition], 2, shape.warps)
    block = shape.elements * shape.warps // table.vec
    programs = min(shape.programs * units, -(-table.words // block))
    data = torch.randn(summands * elements, device="cuda", dtype=torch.bfloat16)
    state = torch.zeros(4096, device="cuda", dtype=torch.int64)
    arguments = {
        "data": data, "out": torch.empty(elements, device="cuda", dtype=torch.bfloat16),
        "table": torch.tensor(table.values, device="cuda", dtype=torch.int64), "state": state,
        "pieces": table.pieces, "programs": programs, "peers": state, "credits": 0,
        "DIMS": table.dims, "WIDE": False, "VEC": table.vec,
        "SUMMANDS": 2 if summands <= 2 else 4, "ACCUMULATOR": tl.float32, "BLOCK": block,
        "num_warps": shape.warps,
    }  # fmt: skip
    return (programs, 1, 1), arguments


def timed(grid: Any, arguments: dict[str, Any], flush: torch.Tensor, rounds: int) -> float:
    """Median us."""
    times = []
    for _ in range(rounds):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(AHEAD_CYCLES)
        flush.zero_()
        begun.record()
        sum_kernel[grid](**arguments)
        ended.record()
        torch.cuda.synchronize()
        times.append(1e3 * begun.elapsed_time(ended))
    return statistics.median(times)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", nargs="+", type=int, default=[8, 16, 32], help="of the result")
    parser.add_argument("--summands", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="what is measured, where this is no checkout")
    options = parser.parse_args(argv)
    units = torch.cuda.get_device_properties(0).multi_processor_count
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    rows: list[dict[str, Any]] = []
    columns = [(mib, summands) for summands in options.summands for mib in options.mib]
    print(
        f"{torch.cuda.get_device_name()}: us, and GB/s, of results of {options.mib} MiB of {options.summands} summands"
    )
    for name, shape in SHAPES.items():
        said = []
        for mib, summands in columns:
            grid, arguments = launch(mib << 19, summands, shape, units)
            sum_kernel[grid](**arguments)
            right = arguments["data"].view(summands, -1).float().sum(0).bfloat16()
            if not torch.equal(right, arguments["out"]):
                error = (right.float() - arguments["out"].float()).abs().max()
                assert error < 0.1, f"{name}, {summands} summands: wrong by {error}"
            us = timed(grid, arguments, flush, options.rounds)
            gb_s = (summands + 1) * (mib << 20) / us / 1e3
            said.append(f"{us:7.1f} {gb_s:5.0f}")
            rows.append({"kind": "sum speed", "shape": name, "mib": mib, "summands": summands, "us": round(us, 1)})
        print(f"  {name:38}" + " |".join(said), flush=True)
    record.write_asked(options.json, rows, [record.clocks("start")], options.commit, 1)


if __name__ == "__main__":
    main()
