"""GEMM-All-to-All: every way of computing this rank's columns of ``a @ b`` for an ``a`` that is sharded along its rows.

    python -m torch.distributed.run --nproc-per-node 4 --max-restarts 3 bench/gemm_a2a.py

Every rank holds M / world rows of ``a`` and the whole ``b`` [K, N], and gets all M rows of N / world columns (its heads).
``gemm`` and ``triton_gemm`` compute a rank's rows alone; ``nccl`` exchanges rows that are there already.
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

OP = "gemm_a2a"
DIVIDED = "MN"
SHAPES = (
    "32768,8192,8192",
    "65536,4096,4096",
    "8192,8192,8192",
    "8192,4096,4096",
    "2048,8192,8192",
    "512,8192,8192",
)


class Problem(BaseProblem):
    """The own rows ``a``, ``b``, memory for the own rows ``c`` of the product, for what is sent and for the result ``y``;
    ``there``: rows of a product for the contender that only communicates, the same whole on all ranks."""

    def allocate(self, make: Callable[..., torch.Tensor]) -> None:
        world = self.session.world
        self.a = make(self.M // world, self.K)
        self.b = make(self.K, self.N)
        self.c = make(self.M // world, self.N)
        self.there = make(self.M // world, self.N)
        self.sent = make(world, self.M // world, self.N // world)
        self.y = make(self.M, self.N // world)

    def fill(self, seed: int) -> None:
        self.random(self.a, seed, own=True)
        self.random(self.b, seed + 7, own=False)
        self.random(self.there, seed + 14, own=True)
        self.session.synchronize()

    def expected(self) -> dict[str, torch.Tensor]:
        alone = self.a.float() @ self.b.float()
        return {"alone": alone, "product": self._own_columns(alone), "exchanged": self._own_columns(self.there)}

    def _own_columns(self, rows: torch.Tensor) -> torch.Tensor:
        told = [torch.empty_like(rows) for _ in range(self.session.world)]
        dist.all_gather(told, rows)
        return torch.cat([other.chunk(self.session.world, 1)[self.session.rank] for other in told])


def exchange(p: Problem, rows: torch.Tensor) -> torch.Tensor:
    p.sent.copy_(rows.view(rows.shape[0], p.session.world, -1).transpose(0, 1))
    dist.all_to_all_single(p.y, p.sent.view(p.M, -1))
    return p.y


def gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("gemm", lambda: torch.matmul(p.a, p.b, out=p.c), expected="alone")


def nccl(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("nccl", lambda: exchange(p, p.there), scratch=(p.sent,), expected="exchanged")


def serial(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("serial", lambda: exchange(p, torch.matmul(p.a, p.b, out=p.c)), scratch=(p.c, p.sent))


def triton_gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    """The kernel of `overlap.ops.gemm_a2a`, as it stands."""
    need_gpu(p)
    return partial_kernel(p, p.a, p.b, p.c)


def ours(p: Problem, built: dict[str, Contender], how: dict[str, Any]) -> Contender:
    from overlap.ops import gemm_a2a

    return driver.ours(p, lambda: gemm_a2a(p.a, p.b, out=p.y, **how), OP)


def contenders(p: Problem, how: dict[str, Any]) -> dict[str, driver.Builder]:
    """Every contender's builder, by name; a graph comes behind what it captures."""
    builders = {each.__name__: partial(each, p) for each in (gemm, triton_gemm, nccl, serial)}
    return driver.with_graphs(p, {**builders, "ours": partial(ours, p, how=how)})


if __name__ == "__main__":
    driver.main(sys.modules[__name__])
