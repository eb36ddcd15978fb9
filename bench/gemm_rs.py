"""GEMM-ReduceScatter: every way of computing this rank's rows of ``sum over ranks of a @ b``.

    python -m torch.distributed.run --nproc-per-node 4 --max-restarts 3 bench/gemm_rs.py

Every rank holds ``a`` [M, K / world] and ``b`` [K / world, N] of its own and gets its rows of the sum under `torch.chunk`.
``gemm`` and ``triton_gemm`` compute a rank's partial result alone; ``nccl`` adds partial results that are there already.
Where the ranks do not share M evenly, contenders that take equal pieces get theirs filled up to the largest.
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

OP = "gemm_rs"
DIVIDED = "K"
SHAPES = (
    "8192,4096,14336",
    "8192,8192,8192",
    "8192,8192,28672",
    "16384,16384,16384",
    "2048,8192,28672",
    "2048,4096,14336",
    "512,8192,28672",
    "128,8192,28672",
    "64,8192,8192",
    "64,4096,14336",
    "16,8192,28672",
    "16,4096,14336",
)


class Problem(BaseProblem):
    """Operands ``a`` and ``b``, memory for the partial result ``c`` and for the own rows ``y``, and ``there``, a partial
    result for the contender that only communicates; all rows but those of ``b`` begin tensors ``filled_...``, which every
    rank has as many of."""

    def allocate(self, make: Callable[..., torch.Tensor]) -> None:
        world = self.session.world
        most = -(-self.M // world)
        self.filled_a = make(world * most, self.K // world).zero_()
        self.filled_c, self.filled_there = (make(world * most, self.N).zero_() for _ in range(2))
        self.filled_y = make(most, self.N)
        self.a, self.c, self.there = (t[: self.M] for t in (self.filled_a, self.filled_c, self.filled_there))
        self.y = self.filled_y[: self.held]
        self.b = make(self.K // world, self.N)

    def fill(self, seed: int) -> None:
        for number, tensor in enumerate((self.a, self.b, self.there)):
            self.random(tensor, seed + 7 * number, own=True)
        self.session.synchronize()

    def expected(self) -> dict[str, torch.Tensor]:
        product = self.a.float() @ self.b.float()
        return {
            "alone": product,
            "product": self._summed(product.clone()),
            "added": self._summed(self.there.float().clone()),
        }

    def _summed(self, summand: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(summand)
        return self.own_rows(summand).clone()


def scatter(p: Problem, summand: torch.Tensor) -> torch.Tensor:
    # One collective under its new name and its old one.
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    reduce_scatter(p.filled_y, summand)
    return p.y


def gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("gemm", lambda: torch.matmul(p.a, p.b, out=p.c), expected="alone")


def nccl(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("nccl", lambda: scatter(p, p.filled_there), expected="added")


def serial(p: Problem, built: dict[str, Contender]) -> Contender:
    def call() -> torch.Tensor:
        torch.matmul(p.a, p.b, out=p.c)
        return scatter(p, p.filled_c)

    return Contender("serial", call, scratch=(p.c,))


def asynctp(p: Problem, built: dict[str, Contender]) -> Contender:
    need_gpu(p)
    import torch.distributed._symmetric_memory as symmetric

    name = dist.group.WORLD.group_name
    symmetric.enable_symm_mem_for_group(name)

    def call() -> torch.Tensor:
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(p.filled_a, p.b, "sum", 0, name)[: p.held]

    return Contender("asynctp", call)


def low_contention(p: Problem, built: dict[str, Contender]) -> Contender:
    c, name = driver.symmetric(p, *p.filled_c.shape)

    def call() -> torch.Tensor:
        torch.matmul(p.a, p.b, out=c[: p.M])
        added = torch.ops.symm_mem._low_contention_reduce_scatter(c, "sum", name)
        return torch.ops._c10d_functional.wait_tensor(added)[: p.held]

    return Contender("low_contention", call, scratch=(c,))


def triton_gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    """The kernel of `overlap.ops.gemm_rs`, as it stands."""
    need_gpu(p)
    return partial_kernel(p, p.a, p.b, p.c)


def partial_kernel(p: BaseProblem, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Contender:
    """``c = a @ b`` by the kernel of operators whose result is communicated."""
    from overlap.ops.partials import out_by_tma, partial_arguments
    from overlap.runtime.of_group import runtime_of

    tma = out_by_tma(p.dtype, p.dtype, 1, *c.shape)
    rows = (t.unsqueeze(0) for t in (a, c))
    kernel, grid, arguments = partial_arguments(next(rows), b, None, next(rows), c.shape[1], tma, runtime_of(None))
    return driver.launched(kernel, grid, arguments, c, "alone")


def ours(p: Problem, built: dict[str, Contender], how: dict[str, Any]) -> Contender:
    from overlap.ops import gemm_rs

    return driver.ours(p, lambda: gemm_rs(p.a, p.b, out=p.y, **how), OP)


def contenders(p: Problem, how: dict[str, Any]) -> dict[str, driver.Builder]:
    """Every contender's builder, by name; a graph comes behind what it captures."""
    builders = {each.__name__: partial(each, p) for each in (gemm, triton_gemm, nccl, serial, asynctp, low_contention)}
    return driver.with_graphs(p, {**builders, "ours": partial(ours, p, how=how)})


if __name__ == "__main__":
    driver.main(sys.modules[__name__])
