"""Operators in parts of unequal sizes, and by plans of several backends, on real ranks; results are poisoned before each call.

python -m tests.multigpu.each --ranks 2 --seconds 60 splits
"""

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.ops import a2a_gemm, ag_gemm, ag_gemm_k, gemm_a2a, gemm_ar, gemm_rs, last_plan
from tests.support.ranks import delay

from .conftest import WORLD
from .test_results_op import FUSED, Sum, cache, piece, random, wrong

__all__ = ["cache"]

SPLITS = ["1:3:4", "1:3/1/2:1"]
ROWS = (2048, 515, 33, WORLD - 1)


def inputs(call, x, w, bias, held, **options):
    """A result of an operator whose input is communicated, poisoned before."""
    out = torch.full((*held, w.shape[1]), float("nan"), device="cuda", dtype=x.dtype)
    y = call(x, w, bias=bias, out=out, backend=FUSED, **options)
    assert y is out
    return out


@pytest.mark.parametrize("split", SPLITS)
def test_inputs_in_unequal_parts(group, split):
    rank = dist.get_rank(group)
    for rows in ROWS:
        for n, k in ((1024, 512), (257, 99)):
            for seed in range(3):
                x, w = random((rows, k), seed, torch.bfloat16), random((k, n), seed + 9, torch.bfloat16)
                bias = random((n,), seed, torch.bfloat16)
                wanted = x.float() @ w.float() + bias.float()
                scale, how = wanted.abs() + 1, {"group": group, "split": split}
                delay(seed, rank)
                held = piece(x, 0, rank).clone()
                results = [
                    (inputs(ag_gemm, held, w, bias, (rows,), gather_size=rows, **how), wanted, scale),
                    (inputs(ag_gemm_k, piece(x, 1, rank).clone(), w, bias, (rows,), **how), wanted, scale),
                ]
                mine, size = piece(wanted, 0, rank), piece(scale, 0, rank)
                y = inputs(a2a_gemm, piece(x, 1, rank).clone(), w, bias, (len(mine),), scatter_dim=0, **how)
                results.append((y, mine, size))
                for number, (y, exact, magnitude) in enumerate(results):
                    assert not wrong(y, exact, magnitude, torch.bfloat16, k), (rows, n, k, seed, number)
    overlap.check(group)


@pytest.mark.parametrize("split", SPLITS)
def test_results_in_unequal_parts(group, split):
    for rows in ROWS:
        for seed in range(3):
            sums = Sum(group, (rows,), 264, 96, torch.bfloat16, seed, bias=True)
            delay(seed, sums.rank)
            assert not sums.check(gemm_rs, split=split), (rows, seed)
            for plan in ("all_reduce_one_shot", "all_reduce_two_shot"):
                assert not sums.check(gemm_ar, split=split, plan=plan), (rows, seed, plan)
            x = random((rows, 96), seed, torch.bfloat16)
            w = random((96, 264), seed + 9, torch.bfloat16)
            y = gemm_a2a(piece(x, 0, sums.rank).clone(), w, gather_size=rows, split=split, backend=FUSED, group=group)
            wanted = piece(x.float() @ w.float(), 1, sums.rank)
            assert not wrong(y, wanted, wanted.abs() + 1, torch.bfloat16, 96), (rows, seed)
    overlap.check(group)


def test_plans_of_several_backends(group):
    """Between two ranks these are the plans that they are named after."""
    rank = dist.get_rank(group)
    for rows in ROWS:
        for seed in range(4):
            delay(seed, rank)
            sums = Sum(group, (rows,), 264, 96, torch.bfloat16, seed)
            assert not sums.check(gemm_rs, plan="mixed/reduce_scatter_1d"), (rows, seed)
            x, w = random((rows, 96), seed, torch.bfloat16), random((96, 264), rank, torch.bfloat16)
            held, wanted = piece(x, 0, rank).clone(), x.float() @ w.float()
            y = inputs(ag_gemm, held, w, None, (rows,), gather_size=rows, plan="mixed/all_gather_1d", group=group)
            assert last_plan("ag_gemm").plan == "all_gather_1d_mixed"
            assert not wrong(y, wanted, wanted.abs() + 1, torch.bfloat16, 96), (rows, seed)
    overlap.check(group)
