"""Operators one behind the other on one group, as the layers of a model call them."""

import pytest
import torch
import torch.distributed as dist

from overlap.ops import ag_gemm, gemm_ar, gemm_rs
from overlap.runtime.workspace import check
from tests.support.ranks import delay

from .conftest import WORLD

pytestmark = pytest.mark.ranks(2)
HOW = {"backend": "copy_engine"}
ITERATIONS = 200


def random(seed: int, *shape: int) -> torch.Tensor:
    """The same bf16 values on every rank."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(torch.bfloat16)


def test_three_operators_chained_for_200_iterations(group):
    """relu(x W1) W2 scattered, then (. W3) W4 on every rank, against the unsharded products in fp32."""
    rank = dist.get_rank(group)
    rows, hidden, inner = 96 * WORLD, 256, 64 * WORLD
    w1, w3 = (random(seed, hidden, inner) / hidden**0.5 for seed in (1, 3))
    w2, w4 = (random(seed, inner, hidden) / inner**0.5 for seed in (2, 4))
    mine = slice(rank * inner // WORLD, (rank + 1) * inner // WORLD)
    ours = [w[:, mine].contiguous() for w in (w1, w3)], [w[mine].contiguous() for w in (w2, w4)]
    errors = []
    for seed in range(ITERATIONS):
        delay(seed, rank)
        x = random(100 + seed, rows, hidden)
        shard = x.chunk(WORLD)[rank].clone()
        scattered = gemm_rs(ag_gemm(shard, ours[0][0], group=group, **HOW).relu(), ours[1][0], group=group, **HOW)
        del shard
        whole = gemm_ar(ag_gemm(scattered, ours[0][1], group=group, **HOW), ours[1][1], group=group, **HOW)
        exact = (x.float() @ w1.float()).relu() @ w2.float()
        for got, wanted in ((scattered, exact.chunk(WORLD)[rank]), (whole, exact @ w3.float() @ w4.float())):
            errors.append((got.float() - wanted).norm() / wanted.norm())
    worst = torch.stack(errors).max().item()
    assert worst < 2e-2, worst
    check(group)
