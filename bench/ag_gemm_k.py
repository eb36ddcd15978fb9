"""AllGather-GEMM along K: every way of computing ``gather(a) @ b`` for an ``a`` that is sharded along its columns.

    python -m torch.distributed.run --nproc-per-node 4 --max-restarts 3 bench/ag_gemm_k.py

Every rank holds all M rows and K / world columns of ``a``, and N / world columns of ``b`` [K, N] of its own. ``gemm`` and
``triton_gemm`` have all of ``a``; ``nccl`` gathers alone, and puts in order what came.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import driver
import torch
import torch.distributed as dist
from a2a_gemm import gathered_kernel
from common import Contender
from driver import BaseProblem, need_gpu

OP = "ag_gemm_k"
DIVIDED = "NK"
SHAPES = (
    "8192,14336,4096",
    "8192,8192,8192",
    "8192,28672,8192",
    "2048,14336,4096",
    "512,28672,8192",
    "64,28672,8192",
    "16,14336,4096",
    "1,14336,4096",
)


class Problem(BaseProblem):
    """``a`` whole (for checks and the contenders that gather nothing), the own columns ``shard`` of it and ``b``, memory for
    what comes and for the result ``c``."""

    def allocate(self, make: Callable[..., torch.Tensor]) -> None:
        world = self.session.world
        self.a = make(self.M, self.K)
        self.shard = make(self.M, self.K // world)
        self.b = make(self.K, self.N // world)
        self.came = make(world, self.M, self.K // world)
        self.ordered = make(self.M, self.K)
        self.c = make(self.M, self.N // world)

    def fill(self, seed: int) -> None:
        session = self.session
        self.random(self.a, seed, own=False)
        self.shard.copy_(self.a.chunk(session.world, 1)[session.rank])
        self.random(self.b, seed, own=True)
        session.synchronize()

    def expected(self) -> dict[str, torch.Tensor]:
        return {"product": self.a.float() @ self.b.float(), "gather": self.a}


def gathered(p: Problem) -> torch.Tensor:
    # One collective under its new name and its old one.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(p.came.view(-1, p.shard.shape[1]), p.shard)
    p.ordered.view(p.M, p.session.world, -1).copy_(p.came.transpose(0, 1))
    return p.ordered


def gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("gemm", lambda: torch.matmul(p.a, p.b, out=p.c))


def nccl(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("nccl", lambda: gathered(p), scratch=(p.came,), expected="gather")


def serial(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("serial", lambda: torch.matmul(gathered(p), p.b, out=p.c), scratch=(p.came, p.ordered))


def asynctp(p: Problem, built: dict[str, Contender]) -> Contender:
    need_gpu(p)
    import torch.distributed._symmetric_memory as symmetric

    name = dist.group.WORLD.group_name
    symmetric.enable_symm_mem_for_group(name)

    def call() -> torch.Tensor:
        _, (result,) = torch.ops.symm_mem.fused_all_gather_matmul(p.shard, [p.b], gather_dim=1, group_name=name)
        return result

    return Contender("asynctp", call)


def triton_gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    """The kernel of `overlap.ops.ag_gemm_k`, as it stands, on the gathered ``a``."""
    need_gpu(p)
    return gathered_kernel(p, p.a, p.b, p.c)


def ours(p: Problem, built: dict[str, Contender], how: dict[str, Any]) -> Contender:
    from overlap.ops import ag_gemm_k

    return driver.ours(p, lambda: ag_gemm_k(p.shard, p.b, out=p.c, **how), OP)


def contenders(p: Problem, how: dict[str, Any]) -> dict[str, driver.Builder]:
    """Every contender's builder, by name; a graph comes behind what it captures."""
    builders = {each.__name__: partial(each, p) for each in (gemm, triton_gemm, nccl, serial, asynctp)}
    return driver.with_graphs(p, {**builders, "ours": partial(ours, p, how=how)})


if __name__ == "__main__":
    driver.main(sys.modules[__name__])
