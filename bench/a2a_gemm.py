"""All-to-All-GEMM: every way of computing ``a @ b`` for this rank's rows of an ``a`` that is sharded along its columns.

    python -m torch.distributed.run --nproc-per-node 4 --max-restarts 3 bench/a2a_gemm.py

Every rank holds all M rows and K / world columns (its heads) of ``a`` and the whole ``b`` [K, N], and gets M / world rows
of the product. ``gemm`` and ``triton_gemm`` have the rows already; ``nccl`` exchanges alone, and puts in order what came.
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

OP = "a2a_gemm"
DIVIDED = "MK"
SHAPES = (
    "32768,8192,8192",
    "65536,4096,4096",
    "8192,8192,8192",
    "8192,4096,4096",
    "2048,8192,8192",
    "512,8192,8192",
)


class Problem(BaseProblem):
    """``a`` as this rank holds it, ``rows`` as it needs it, ``b``, memory for what comes and for the result ``y``."""

    def allocate(self, make: Callable[..., torch.Tensor]) -> None:
        world = self.session.world
        self.a = make(self.M, self.K // world)
        self.rows = make(self.M // world, self.K)
        self.b = make(self.K, self.N)
        self.came = make(world, self.M // world, self.K // world)
        self.ordered = make(self.M // world, self.K)
        self.y = make(self.M // world, self.N)

    def fill(self, seed: int) -> None:
        session = self.session
        whole = torch.empty(self.M, self.K, dtype=self.dtype, device=session.device)
        self.random(whole, seed, own=False)
        self.a.copy_(whole.chunk(session.world, 1)[session.rank])
        self.rows.copy_(whole.chunk(session.world)[session.rank])
        self.random(self.b, seed + 7, own=False)
        session.synchronize()

    def expected(self) -> dict[str, torch.Tensor]:
        return {"product": self.rows.float() @ self.b.float(), "exchanged": self.rows}


def exchange(p: Problem) -> torch.Tensor:
    dist.all_to_all_single(p.came.view(p.M, -1), p.a)
    p.ordered.view(p.M // p.session.world, p.session.world, -1).copy_(p.came.transpose(0, 1))
    return p.ordered


def gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("gemm", lambda: torch.matmul(p.rows, p.b, out=p.y))


def nccl(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("nccl", lambda: exchange(p), scratch=(p.came,), expected="exchanged")


def serial(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("serial", lambda: torch.matmul(exchange(p), p.b, out=p.y), scratch=(p.came, p.ordered))


def triton_gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    """The kernel of `overlap.ops.a2a_gemm`, as it stands, on the rows."""
    need_gpu(p)
    return gathered_kernel(p, p.rows, p.b, p.y)


def gathered_kernel(p: BaseProblem, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Contender:
    """``c = a @ b`` by the kernel of operators whose input is communicated."""
    from overlap.ops.products import Product, product_arguments
    from overlap.ops.views import GatherView
    from overlap.runtime.of_group import runtime_of

    view = GatherView(tuple(a.shape), 1, *a.shape, "M")
    product = Product(b, c.unsqueeze(0), None)
    kernel, grid, arguments = product_arguments(product, a.unsqueeze(0), view, runtime_of(None))
    return driver.launched(kernel, grid, arguments, c, "product")


def ours(p: Problem, built: dict[str, Contender], how: dict[str, Any]) -> Contender:
    from overlap.ops import a2a_gemm

    return driver.ours(p, lambda: a2a_gemm(p.a, p.b, out=p.y, **how), OP)


def contenders(p: Problem, how: dict[str, Any]) -> dict[str, driver.Builder]:
    """Every contender's builder, by name; a graph comes behind what it captures."""
    builders = {each.__name__: partial(each, p) for each in (gemm, triton_gemm, nccl, serial)}
    return driver.with_graphs(p, {**builders, "ours": partial(ours, p, how=how)})


if __name__ == "__main__":
    driver.main(sys.modules[__name__])
