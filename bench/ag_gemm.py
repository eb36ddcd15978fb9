"""AllGather-GEMM: every way of computing ``gather(a) @ b`` on the same GPUs, in the same processes.

    python -m torch.distributed.run --nproc-per-node 4 bench/ag_gemm.py
    python -m torch.distributed.run --nproc-per-node 4 --max-restarts 3 bench/ag_gemm.py --rounds 40

``a`` is [M, K], each rank holding its rows under `torch.chunk`; ``b`` is [K, N], each rank holding N / world columns.
``gemm`` and ``triton_gemm`` have all of ``a`` and compute a rank's product alone; ``nccl`` moves the data alone. Everything
else starts from the shard in ordinary memory, so staging is included. Where the ranks do not share M evenly, contenders
that take equal shards get theirs filled up to the largest.
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

OP = "ag_gemm"
DIVIDED = "N"
SHAPES = (
    "8192,6144,4096",
    "8192,14336,4096",
    "8192,8192,8192",
    "8192,28672,8192",
    "8192,29568,8192",
    "8192,53248,16384",
    "2048,14336,4096",
    "512,28672,8192",
    "64,28672,8192",
    "16,14336,4096",
)


class Problem(BaseProblem):
    """``a`` whole (for checks and the contenders that gather nothing), the own rows ``shard``, which ``filled`` begins with,
    the own columns ``b``, and memory for results."""

    def allocate(self, make: Callable[..., torch.Tensor]) -> None:
        world = self.session.world
        self.a = make(self.M, self.K)
        self.filled = make(-(-self.M // world), self.K).zero_()
        self.shard = self.filled[: self.held]
        self.b = make(self.K, self.N // world)
        self.c = make(self.M, self.N // world)
        self.gathered = make(world * len(self.filled), self.K)

    def fill(self, seed: int) -> None:
        self.random(self.a, seed, own=False)
        self.shard.copy_(self.own_rows(self.a))
        self.random(self.b, seed, own=True)
        self.session.synchronize()

    def expected(self) -> dict[str, torch.Tensor]:
        return {"product": self.a.float() @ self.b.float(), "gather": self.a}


def gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("gemm", lambda: torch.matmul(p.a, p.b, out=p.c))


def nccl(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("nccl", lambda: _gather(p), expected="gather")


def _gather(p: Problem) -> torch.Tensor:
    # One collective under its new name and its old one.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(p.gathered, p.filled)
    return p.gathered[: p.M]


def serial(p: Problem, built: dict[str, Contender]) -> Contender:
    return Contender("serial", lambda: torch.matmul(_gather(p), p.b, out=p.c), scratch=(p.gathered,))


def asynctp(p: Problem, built: dict[str, Contender]) -> Contender:
    need_gpu(p)
    import torch.distributed._symmetric_memory as symmetric

    name = dist.group.WORLD.group_name
    symmetric.enable_symm_mem_for_group(name)

    def call() -> torch.Tensor:
        _, (result,) = torch.ops.symm_mem.fused_all_gather_matmul(p.filled, [p.b], gather_dim=0, group_name=name)
        return result[: p.M]

    return Contender("asynctp", call)


def low_contention(p: Problem, built: dict[str, Contender]) -> Contender:
    """Copies of torch's own beside which another kernel could run; here the product runs behind them."""
    shard, name = driver.symmetric(p, *p.filled.shape)

    def call() -> torch.Tensor:
        shard.copy_(p.filled)
        gathered = torch.ops.symm_mem._low_contention_all_gather(shard, name)
        return torch.matmul(torch.ops._c10d_functional.wait_tensor(gathered)[: p.M], p.b, out=p.c)

    return Contender("low_contention", call)


def triton_gemm(p: Problem, built: dict[str, Contender]) -> Contender:
    """The kernel of `overlap.ops.ag_gemm`, as it stands, on the gathered ``a``."""
    need_gpu(p)
    from overlap.ops.products import Product, product_arguments
    from overlap.ops.views import gather_view
    from overlap.runtime.of_group import runtime_of

    view = gather_view(p.a, 0, None, 1, 0)
    product = Product(p.b, p.c.unsqueeze(0), None)
    kernel, grid, arguments = product_arguments(product, p.a.unsqueeze(0), view, runtime_of(None))
    return driver.launched(kernel, grid, arguments, p.c, "product")


def ours(p: Problem, built: dict[str, Contender], how: dict[str, Any]) -> Contender:
    from overlap.ops import ag_gemm

    return driver.ours(p, lambda: ag_gemm(p.shard, p.b, gather_size=p.M, out=p.c, **how), OP)


def contenders(p: Problem, how: dict[str, Any]) -> dict[str, driver.Builder]:
    """Every contender's builder, by name; a graph comes behind what it captures."""
    builders = {each.__name__: partial(each, p) for each in (gemm, triton_gemm, nccl, serial, asynctp, low_contention)}
    return driver.with_graphs(p, {**builders, "ours": partial(ours, p, how=how)})


if __name__ == "__main__":
    driver.main(sys.modules[__name__])
