"""GEMM-AllReduce: every way of computing ``sum over ranks of a @ b`` on all of them.

    python -m torch.distributed.run --nproc-per-node 4 --max-restarts 3 bench/gemm_ar.py

Every rank holds ``a`` [M, K / world] and ``b`` [K / world, N] of its own. ``gemm`` and ``triton_gemm`` compute a rank's
partial result alone; ``nccl`` adds partial results that are there already, after a copy, since it works in place.
``one_shot`` and ``two_shot`` are torch's own all-reduces in symmetric memory behind cuBLAS.

``OVERLAP_SUM_SMS=0`` has ours add everything up behind its kernel; `ways.py` times one way against the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import driver
import torch
import torch.distributed as dist
from common import Contender
from driver import BaseProblem, need_gpu
from gemm_rs import partial_kernel

OP = "gemm_ar"
DIVIDED = "K"
SHAPES = (
    "8192,4096,14336",
    "8192,8192,28672",
    "2048,8192,28672",
    "2048,4096,14336",
    "512,8192,28672",
    "128,8192,28672",
    "64,8192,28672",
    "64,4096,14336",
    "16,8192,28672",
    "16,4096,14336",
    "8,8192,8192",
    "1,8192,28672",
    "1,4096,14336",
)


class Problem(BaseProblem):
    """Operands ``a`` and ``b``, memory for the result ``y``, and ``there``, a partial result for the contender that only
    communicates."""

    def allocate(self, make: Callable[..., torch.Tensor]) -> None:
        world = self.session.world
        self.a = make(self.M, self.K // world)
        self.b = make(self.K // world, self.N)
        self.there = make(self.M, self.N)
        self.y = make(self.M, self.N)

    def fill(self, seed: int) -> None:
        for number, tensor in enumerate((self.a, self.b, self.there)):
            self.random(tensor, seed + 7 * number, own=True)
        self.session.synchronize()

    def expected(self) -> dict[str, torch.Tensor]:
        product, added = self.a.float() @ self.b.float(), self.there.float().clone()
        total = product.clone()
        for summand in (total, added):
            dist.all_reduce(summand)
        return {"alone": product, "product": total, "added": added}


def gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("gemm", lambda: torch.matmul(p.a, p.b, out=p.y), expected="alone")


def nccl(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("nccl", lambda: _added(p.y.copy_(p.there)), expected="added")


def _added(summand: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(summand)
    return summand


def serial(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("serial", lambda: _added(torch.matmul(p.a, p.b, out=p.y)))


def one_shot(p: Problem, built: dict[str, Contender]) -> Contender:
    c, name = driver.symmetric(p, p.M, p.N)

    def call() -> torch.Tensor:
        return torch.ops.symm_mem.one_shot_all_reduce(torch.matmul(p.a, p.b, out=c), "sum", name)

    return Contender("one_shot", call, scratch=(c,))


def two_shot(p: Problem, built: dict[str, Contender]) -> Contender:
    c, name = driver.symmetric(p, p.M, p.N)

    def call() -> torch.Tensor:
        return torch.ops.symm_mem.two_shot_all_reduce_(torch.matmul(p.a, p.b, out=c), "sum", name)

    return Contender("two_shot", call)


def triton_gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    """The kernel of `overlap.ops.gemm_ar`, as it stands."""
    need_gpu(p)
    return partial_kernel(p, p.a, p.b, p.y)


def ours(p: Problem, built: dict[str, Contender], how: dict[str, Any]) -> Contender:
    from overlap.ops import gemm_ar

    return driver.ours(p, lambda: gemm_ar(p.a, p.b, out=p.y, **how), OP)


def contenders(p: Problem, how: dict[str, Any]) -> dict[str, driver.Builder]:
    """Every contender's builder, by name; a graph comes behind what it captures."""
    builders = {each.__name__: partial(each, p) for each in (gemm, triton_gemm, nccl, serial, one_shot, two_shot)}
    return driver.with_graphs(p, {**builders, "ours": partial(ours, p, how=how)})


if __name__ == "__main__":
    driver.main(sys.modules[__name__])
