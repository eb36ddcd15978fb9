"""Block sizes of the operators' product on one GPU, against cuBLAS, at the sizes that a rank of four computes.

    python bench/gemm_blocks.py --out bench/results/gemm_blocks.json

Every way is captured in a graph, checked against cuBLAS with its result poisoned, and timed in rounds, in an order shuffled
anew. What a device has no memory for is left out and said. Each shape marks what `overlap.ops.blocks` chooses.
"""

from __future__ import annotations

import argparse
import random
import shlex
import statistics
import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import record
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from overlap.ops.blocks import Blocks, choose_blocks
from overlap.ops.kernels import ag_gemm_tma

SHAPES = (
    "8192,1536,4096",
    "8192,3584,4096",
    "8192,2048,8192",
    "8192,7168,8192",
    "8192,7392,8192",
    "8192,13312,16384",
    "8192,4096,3584",
    "8192,8192,2048",
    "8192,8192,7168",
    "16384,16384,4096",
    "8192,8192,8192",
    "16384,4096,4096",
    "2048,3584,4096",
    "2048,8192,7168",
    "512,7168,8192",
    "512,8192,7168",
    "512,4096,3584",
    "64,8192,7168",
    "64,7168,8192",
    "16,4096,3584",
)
TALL = (
    Blocks(128, 256, 64, 8, 3, 4),
    Blocks(128, 256, 64, 8, 3),
    Blocks(128, 256, 64, 8, 3, 16),
    Blocks(256, 128, 64, 8, 3),
    Blocks(128, 128, 64, 4, 4),
    Blocks(128, 128, 64, 8, 4),
    Blocks(128, 128, 128, 8, 3),
)
LOW = (
    Blocks(64, 128, 128, 4, 4),
    Blocks(64, 128, 64, 4, 4),
    Blocks(64, 64, 128, 4, 5),
    Blocks(64, 64, 256, 4, 3),
    Blocks(64, 256, 64, 4, 4),
    Blocks(128, 64, 128, 4, 4),
)
TOLERANCE = 1e-2
"""Highest relative difference of two bf16 products in the Frobenius norm."""


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, blocks: Blocks, sms: int) -> Callable[[], Any]:
    """A launch of the operators' kernel: c[M,N] = a[M,K] @ b[K,N]."""
    (rows, inner), columns = a.shape, b.shape[1]
    a_desc = TensorDescriptor.from_tensor(a[None], [1, blocks.m, blocks.k])
    b_desc = TensorDescriptor.from_tensor(b, [blocks.k, blocks.n])
    c_desc = TensorDescriptor.from_tensor(c[None], [1, blocks.m, blocks.n])
    programs = min(sms, blocks.tiles(1, rows, columns))
    given = dict(BLOCK_B=1, NUM_PROGRAMS=programs, B_BY="rows", C_BY="rows", HAS_BIAS=False, **blocks.arguments())
    launch = ag_gemm_tma[(programs,)]
    return lambda: launch(a_desc, b_desc, c_desc, None, None, None, 1, rows, columns, inner, columns, 1, **given)


def captured(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    """One replay, behind work that keeps the device busy while the host enqueues."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(100_000)
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def compare(shape: str, rounds: int) -> list[dict[str, Any]]:
    rows, columns, inner = map(int, shape.split(","))
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    a, b = (torch.randn(*size, device="cuda", dtype=torch.bfloat16) for size in ((rows, inner), (inner, columns)))
    c = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
    wanted = a @ b
    chosen = choose_blocks(descriptors=True, itemsize=2, batch=1, rows=rows, columns=columns, multiprocessors=sms)
    graphs: dict[Blocks | None, torch.cuda.CUDAGraph] = {None: captured(lambda: torch.mm(a, b, out=c))}
    for blocks in dict.fromkeys([chosen, *(TALL if rows > 64 else ()), *(LOW if rows <= 512 else ())]):
        c.fill_(float("nan"))
        try:
            graphs[blocks] = captured(product(a, b, c, blocks, sms))
        except Exception as error:  # what it takes to build differs by device: say it, and go on with the others
            print(f"{shape} {astuple(blocks)}: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        graphs[blocks].replay()
        difference = float((c.float() - wanted.float()).norm() / wanted.float().norm())
        if not difference < TOLERANCE:
            sys.exit(f"{shape} {astuple(blocks)} is wrong by {difference}")
    times: dict[Blocks | None, list[float]] = {way: [] for way in graphs}
    for _ in range(rounds):
        order = list(graphs)
        random.shuffle(order)
        for way in order:
            times[way].append(milliseconds(graphs[way]))
    medians = {way: statistics.median(found) for way, found in times.items()}
    made = []
    for way, ms in sorted(medians.items(), key=lambda item: item[1]):
        name = "cublas" if way is None else "{}x{}x{}, {} warps, {} stages, group {}".format(*astuple(way))
        mark = " <- chosen" if way == chosen else ""
        print(f"{shape:18} {ms:8.4f} ms  {ms / medians[None]:5.2f}  {name}{mark}", flush=True)
        made.append({"M": rows, "N": columns, "K": inner, "way": name, "ms": round(ms, 5), "chosen": way == chosen})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="M,N,K")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="what is measured, where this is no checkout")
    options = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        sys.exit("this needs a GPU with TMA (sm_90)")
    clocks = [record.clocks("start")]
    rows = [row for shape in options.shapes for row in compare(shape, options.rounds)]
    clocks.append(record.clocks("end"))
    if options.out:
        command = shlex.join(["python", "bench/gemm_blocks.py", *sys.argv[1:]])
        record.write_rows(options.out, rows, clocks, options.commit or record.commit(), command, 1)


if __name__ == "__main__":
    main()
