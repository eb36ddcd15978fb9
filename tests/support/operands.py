"""Operands of operators on real ranks, which any rank can make from seeds, and what their results are compared with.

In a rehearsal (`rehearsal.of_tests`) there is no GPU: operands are memory of the CPU that nobody fills, and every result is
right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import torch

from overlap.chunkplan.region import shard_interval

_REHEARSED: ContextVar[bool] = ContextVar("rehearsed", default=False)


@contextlib.contextmanager
def unfilled() -> Iterator[None]:
    """Operands are memory alone inside, on the CPU, and comparisons find nothing."""
    token = _REHEARSED.set(True)
    try:
        yield
    finally:
        _REHEARSED.reset(token)


def rehearsed() -> bool:
    """Whether this is a rehearsal."""
    return _REHEARSED.get()


def random(shape: Sequence[int], seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Normally distributed, the same for a seed on every rank."""
    if rehearsed():
        return torch.empty(tuple(shape), dtype=dtype)
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(tuple(shape), device="cuda", generator=generator).to(dtype)


def poisoned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """NaN everywhere."""
    if rehearsed():
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.full(tuple(shape), float("nan"), device="cuda", dtype=dtype)


def differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whether an element of one is not the other's: a tensor of the device."""
    return nothing() if rehearsed() else (a != b).any()


def nothing() -> torch.Tensor:
    """What comparisons find in a rehearsal."""
    return torch.zeros((), dtype=torch.bool)


ROWS, COLUMNS, WHOLE = 0, 1, None
OPERATORS = {
    "ag_gemm": (ROWS, COLUMNS, COLUMNS),
    "ag_gemm_k": (COLUMNS, WHOLE, WHOLE),
    "a2a_gemm": (COLUMNS, WHOLE, ROWS),
    "gemm_a2a": (ROWS, WHOLE, COLUMNS),
    "gemm_rs": (COLUMNS, ROWS, ROWS),
    "gemm_ar": (COLUMNS, ROWS, WHOLE),
}
"""Of x [M, K], w [K, N] and y = x @ w, the dimension of which a rank has its piece."""


def piece(whole: torch.Tensor, dim: int, world: int, rank: int) -> torch.Tensor:
    """A rank's piece of a tensor, as a view."""
    low, high = shard_interval(whole.shape[dim], world, rank)
    return whole.narrow(dim, low, high - low)
