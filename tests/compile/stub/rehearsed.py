"""Which kernels calls ask Triton for: rehearsed (`tests.support.rehearsal`), or by the runtime of GPUs over the stub.

    LD_LIBRARY_PATH=<folder of the stub> python rehearsed.py RECORDS [--by-stub] [--ranks 3]

Keeps their records (`tests.support.compilations`) in the file RECORDS.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from operators import Group, load_nothing
from triton.backends.nvidia import driver as nvidia
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver

import overlap.ops
from overlap.chunkplan.region import shard_interval
from tests.support.compilations import keep_records
from tests.support.operands import random
from tests.support.ranks import template
from tests.support.rehearsal import of_tests, planned, products, rehearse

GEMM = template("grouped_gemm")
CALLS = [((130, 136, 96), torch.float16), ((3, 72, 64), torch.float16), ((1, 8, 8), torch.float16)]
"""Shards that are ragged, of one row, and of none."""
REHEARSALS = [
    products("gather", GEMM, ("all_gather_1d", "a[M]"), *CALLS),
    products("scatter", GEMM, ("reduce_scatter_1d", "c[M]"), CALLS[0]),
    products("reserved", GEMM, ("all_gather_1d", "b[N]", "ldst_reserved"), CALLS[0]),
    products("words", GEMM, ("all_reduce_one_shot", "c[]", "words_inline"), CALLS[0]),
]


@pytest.mark.parametrize("rows", [130, 1])
@pytest.mark.parametrize(("op", "backend"), [("ag_gemm", "copy_engine"), ("gemm_ar", "ldst_inline")])
def test_an_operator(group, op, backend, rows):
    sizes = {"gather_size": rows} if op == "ag_gemm" else {}
    low, high = shard_interval(rows, group.size(), group.rank()) if sizes else (0, rows)
    x, w = random((high - low, 96), 1, torch.bfloat16), random((96, 136), 2, torch.bfloat16)
    getattr(overlap.ops, op)(x, w, group=group, backend=backend, **sizes)


REHEARSALS += of_tests(test_an_operator, parts=2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("records", type=Path)
    parser.add_argument("--by-stub", action="store_true")
    parser.add_argument("--ranks", type=int, default=3)
    options = parser.parse_args()
    keep_records(options.records)
    CompiledKernel._init_handles = load_nothing
    with planned("sm_90"):
        for one in REHEARSALS:
            if not options.by_stub:
                for part in range(one.parts):
                    rehearse(one, options.ranks, part)
                continue
            driver._active.utils = nvidia.CudaUtils()
            for rank in range(options.ranks):
                group = Group(options.ranks)
                group.overlap_runtime.rank = rank
                one.play(group, *one.arguments)


if __name__ == "__main__":
    main()
