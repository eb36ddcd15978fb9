"""What tests on real ranks share: inputs that every rank can make, the fp32 oracle, delays."""

from __future__ import annotations

import random
import time
from typing import Any

import torch

from overlap.chunkplan.region import shard_interval

from .operands import rehearsed

TEMPLATES = ("grouped_gemm", "gemm_2d", "persistent_gemm")


WAYS = {
    "gather, pull": ("all_gather_1d", "a[M]"),
    "gather, push": ("all_gather_1d_push", "a[M]"),
    "gather, ring": ("all_gather_ring", "a[M]"),
    "gather in the loop": ("all_gather_1d", "a[K]"),
    "scatter": ("reduce_scatter_1d", "c[M]"),
    "scatter columns": ("reduce_scatter_1d", "c[N]"),
    "reduce, one shot": ("all_reduce_one_shot", "c[]"),
    "reduce, two shots": ("all_reduce_two_shot", "c[]"),
    "exchange before": ("all_to_all_1d", "a[K:M]"),
    "exchange after": ("all_to_all_1d", "c[M:N]"),
    "scatter, stored": ("reduce_scatter_1d", "c[M]", "ldst_inline"),
    "reduce, stored": ("all_reduce_two_shot", "c[]", "ldst_inline"),
    "exchange after, stored": ("all_to_all_1d", "c[M:N]", "ldst_inline"),
    "gather, reserved": ("all_gather_1d", "a[M]", "ldst_reserved"),
    "gather, reserved, pull": ("all_gather_1d_pull", "a[M]", "ldst_reserved"),
    "gather, reserved, ring": ("all_gather_ring", "a[M]", "ldst_reserved"),
    "gather in the loop, reserved": ("all_gather_1d", "a[K]", "ldst_reserved"),
    "exchange before, reserved": ("all_to_all_1d", "a[K:M]", "ldst_reserved"),
    "gather, between tiles": ("all_gather_1d", "a[M]", "ldst_inline"),
    "gather, between tiles, pull": ("all_gather_1d_pull", "a[M]", "ldst_inline"),
    "gather, between tiles, ring": ("all_gather_ring", "a[M]", "ldst_inline"),
    "gather in the loop, between its parts": ("all_gather_1d", "a[K]", "ldst_inline"),
    "exchange before, between tiles": ("all_to_all_1d", "a[K:M]", "ldst_inline"),
    "gather, between tiles by TMA": ("all_gather_1d", "a[M]", "tma_inline"),
    "gather, between tiles by TMA, ring": ("all_gather_ring", "a[M]", "tma_inline"),
    "gather in the loop, between its parts by TMA": ("all_gather_1d", "a[K]", "tma_inline"),
    "exchange before, between tiles by TMA": ("all_to_all_1d", "a[K:M]", "tma_inline"),
    "gather, by TMA": ("all_gather_1d", "a[M]", "tma_reserved"),
    "gather, by TMA, pull": ("all_gather_1d_pull", "a[M]", "tma_reserved"),
    "gather, by TMA, ring": ("all_gather_ring", "a[M]", "tma_reserved"),
    "gather in the loop, by TMA": ("all_gather_1d", "a[K]", "tma_reserved"),
    "exchange before, by TMA": ("all_to_all_1d", "a[K:M]", "tma_reserved"),
}
"""Plan, communicated tensor and, where it is not the copy engine, backend, by what they do together."""
BY_POINTERS = ("grouped_gemm", "gemm_2d")
"""Templates whose tiles can be stored by plain stores."""


def takes(name: str, way: str) -> bool:
    """Whether a template can be compiled for a way."""
    _, on, *backend = WAYS[way]
    return name in BY_POINTERS or backend != ["ldst_inline"] or on[0] != "c"


def template(name: str) -> str:
    return f"templates/kernels/{name}.py"


class Product:
    """C = A @ B over a group, one of the three communicated; data by the call's ``seed`` and, where it is a rank's own, by
    the rank, so that every rank can make what any rank has.

    Args:
        on: ``a[M]``, ``b[N]``, ``a[K]``: rows of A, columns of B, columns of A are sharded and gathered; ``c[M]``, ``c[N]``,
            ``c[]``: every rank multiplies matrices of its own, and the sum is scattered or held by all; ``a[K:M]``: columns
            of A are exchanged for rows; ``c[M:N]``: rows of C, made by the ranks, are exchanged for columns.
        device: where data and oracle are made; calls are on the GPU.
    """

    def __init__(
        self, group, m: int, n: int, k: int, dtype: torch.dtype, on: str = "a[M]", device: str = "cuda"
    ) -> None:
        self.group = group
        self.rank, self.world = group.rank(), group.size()
        self.sizes = {"M": m, "N": n, "K": k}
        self.dtype = dtype
        self.on = on
        self.device = device

    def piece(self, axis: str, rank: int | None = None) -> slice:
        """A rank's shard of an axis."""
        return slice(*shard_interval(self.sizes[axis], self.world, self.rank if rank is None else rank))

    def data(self, seed: int, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """A and B, whole, as a rank sees them: a gathered one is common, the rest the rank's own."""
        m, n, k = (self.sizes[axis] for axis in "MNK")
        common, own = seed * 64, seed * 64 + 1 + (self.rank if rank is None else rank)
        seeds = {"a": (common, own), "b": (own, common), "c": (own, own + 32)}[self.on[0]]
        made = []
        for shape, value in zip(((m, k), (k, n)), seeds, strict=True):
            generator = torch.Generator(self.device).manual_seed(value)
            made.append(torch.randn(shape, device=self.device, generator=generator).to(self.dtype))
        return made[0], made[1]

    def arguments(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What this rank passes."""
        match self.on:
            case "a[M]" | "c[M:N]":
                return a[self.piece("M")].clone(), b
            case "a[K]" | "a[K:M]":
                return a[:, self.piece("K")].contiguous(), b
            case "b[N]":
                return a, b[:, self.piece("N")].clone()
        return a, b

    def inputs(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What this rank passes in call ``seed``."""
        return self.arguments(*self.data(seed))

    def wanted(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The oracle of call ``seed`` in fp32, and the magnitudes of the values that were rounded on the way to it."""
        a, b = self.data(seed)
        if self.on[0] != "c":
            result = a.float() @ b.float()
            result = result[self.piece("M")] if self.on == "a[K:M]" else result
            return result, result.abs()
        products = [x.float() @ y.float() for x, y in (self.data(seed, rank) for rank in range(self.world))]
        if self.on == "c[M:N]":
            rows = [p[self.piece("M", rank), self.piece("N")] for rank, p in enumerate(products)]
            return torch.cat(rows), torch.cat(rows).abs()
        total, sizes = torch.stack(products).sum(0), torch.stack(products).abs().sum(0)
        place = {"c[M]": self.piece("M"), "c[N]": (slice(None), self.piece("N")), "c[]": slice(None)}[self.on]
        return total[place], total[place].abs() + sizes[place]

    def call(self, module, seed: int, out: torch.Tensor | None = None) -> tuple[torch.Tensor, Any]:
        """One call: what it returned, and the oracle. Both are enqueued only."""
        inputs = [tensor.cuda() for tensor in self.inputs(seed)]
        return module.matmul(*inputs, group=self.group, sizes=self.sizes, out=out), self.wanted(seed)

    def wrong(self, got: torch.Tensor, wanted: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Whether a result misses the oracle by more than rounding: a one-element tensor on the device."""
        return self.misses(got, wanted).any()

    def misses(self, got: torch.Tensor, wanted: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Where it does, by element."""
        exact, magnitude = wanted
        assert got.shape == exact.shape, (got.shape, exact.shape)
        # Every rounding of a value of that magnitude; sums of K exact products in another order, or for fp32 of K tf32
        # products.
        each = 1e-2 if self.dtype == torch.float32 else 1e-4
        terms = self.sizes["K"] * (self.world if self.on[0] == "c" else 1)
        allowed = torch.finfo(self.dtype).eps * magnitude + each * terms**0.5
        return ~((got.to(exact.device).float() - exact).abs() <= allowed)

    def check(self, module, seed: int) -> None:
        got, wanted = self.call(module, seed)
        assert not self.wrong(got, wanted), (
            f"call {seed} of {self.on} {self.sizes} {self.dtype} is wrong on rank {self.rank}"
        )


def delay(seed: int, rank: int, most_ms: float = 1.0) -> None:
    """A pause that differs by rank and call, on the host or on the stream; none in a rehearsal."""
    if rehearsed():
        return
    choice = random.Random(seed * 1000 + rank)
    if choice.random() < 0.5:
        torch.cuda._sleep(int(choice.random() * most_ms * 1e6))
    elif choice.random() < 0.2:
        time.sleep(choice.random() * most_ms / 1e3)
