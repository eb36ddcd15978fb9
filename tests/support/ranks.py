"""What tests on real ranks share: inputs that every rank can make, the fp32 oracle, delays."""

from __future__ import annotations

import random
import time

import torch
import torch.distributed as dist

from overlap.chunkplan.region import shard_interval

TEMPLATES = ("grouped_gemm", "gemm_2d", "persistent_gemm")


def template(name: str) -> str:
    return f"templates/kernels/{name}.py"


class Product:
    """C = A @ B over a group, A or B gathered; data by the call's ``seed`` and, where it is a rank's own, by the rank.

    Args:
        on: ``a[M]`` (rows of A are sharded) or ``b[N]`` (columns of B).
    """

    def __init__(self, group, m: int, n: int, k: int, dtype: torch.dtype, on: str = "a[M]") -> None:
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.sizes = {"M": m, "N": n, "K": k}
        self.dtype = dtype
        self.on = on

    def data(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Whole A and B as this rank sees them: the gathered one is common, the other the rank's own."""
        m, n, k = (self.sizes[axis] for axis in "MNK")
        common, own = seed * 64, seed * 64 + 1 + self.rank
        seeds = (common, own) if self.on == "a[M]" else (own, common)
        made = []
        for shape, value in zip(((m, k), (k, n)), seeds, strict=True):
            generator = torch.Generator("cuda").manual_seed(value)
            made.append(torch.randn(shape, device="cuda", generator=generator).to(self.dtype))
        return made[0], made[1]

    def arguments(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What this rank passes."""
        if self.on == "a[M]":
            low, high = shard_interval(a.shape[0], self.world, self.rank)
            return a[low:high].clone(), b
        low, high = shard_interval(b.shape[1], self.world, self.rank)
        return a, b[:, low:high].clone()

    def call(self, module, seed: int, out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """One call: what it returned, and the oracle. Both are enqueued only."""
        a, b = self.data(seed)
        return module.matmul(*self.arguments(a, b), group=self.group, sizes=self.sizes, out=out), a.float() @ b.float()

    def wrong(self, got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Whether a result misses the oracle by more than rounding: a one-element tensor on the device."""
        if not wanted.numel():
            return torch.zeros((), dtype=torch.bool, device="cuda")
        # The result's rounding; sums of K exact products in another order, or for fp32 of K tf32 products.
        each = 1e-2 if self.dtype == torch.float32 else 1e-4
        allowed = torch.finfo(self.dtype).eps * wanted.abs() + each * self.sizes["K"] ** 0.5
        return ~((got.float() - wanted).abs() <= allowed).all()

    def check(self, module, seed: int) -> None:
        got, wanted = self.call(module, seed)
        assert not self.wrong(got, wanted), f"call {seed} of {self.sizes} {self.dtype} is wrong on rank {self.rank}"


def delay(seed: int, rank: int, most_ms: float = 1.0) -> None:
    """A pause that differs by rank and call, on the host or on the stream."""
    choice = random.Random(seed * 1000 + rank)
    if choice.random() < 0.5:
        torch.cuda._sleep(int(choice.random() * most_ms * 1e6))
    elif choice.random() < 0.2:
        time.sleep(choice.random() * most_ms / 1e3)
