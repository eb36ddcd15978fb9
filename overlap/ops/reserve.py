"""`reserve`: memory for all later calls of the prebuilt operators, made once."""

from __future__ import annotations

from typing import Any

import torch

from overlap.api.memory import reserve_operator
from overlap.errors import UsageError

from .gather_gemm import compiled_kernel
from .gemm import ag_gemm_any, ag_gemm_rows
from .products import rows_fit


def reserve(
    group: Any = None,
    *,
    max_tokens: int,
    hidden: int,
    dtype: torch.dtype = torch.bfloat16,
    inner_dims: bool = False,
    plan: str = "all_gather_1d",
    split: int = 1,
) -> None:
    """Makes the symmetric memory of `ag_gemm` on a group, for ``dtype``; collective.

    Afterwards calls with this plan, split and dtype make none, ever: one that needs more is refused, both sizes named.

    Args:
        group: as for `ag_gemm`.
        max_tokens: the largest number of rows of the gathered x, all dimensions but the last multiplied.
        hidden: the largest D.
        inner_dims: also for gathers along inner dimensions and uneven ones, which lie in memory of their own.
        plan, split: as the calls will say.

    Raises:
        UsageError: sizes that are no positive integers.
        RuntimeContractError: ranks that ask for different sizes, or less was reserved before.
    """
    for name, size in (("max_tokens", max_tokens), ("hidden", hidden)):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"{name}={size!r}", help=f"{name} is a positive integer")
    by_rows = rows_fit(hidden, dtype)
    outer = (max_tokens, hidden) if by_rows else (0, 0)
    reserve_operator(compiled_kernel(ag_gemm_rows, "M", plan, split).operator, group, _sizes(1, *outer), dtype)
    rest = (max_tokens, hidden) if inner_dims or not by_rows else (0, 0)
    reserve_operator(compiled_kernel(ag_gemm_any, "M", plan, split).operator, group, _sizes(1, *rest), dtype)
    uneven = (1, hidden) if inner_dims else (0, 0)
    batch = max_tokens if inner_dims else 0
    reserve_operator(compiled_kernel(ag_gemm_any, "B", plan, split).operator, group, _sizes(batch, *uneven), dtype)


def _sizes(batch: int, rows: int, depth: int) -> dict[str, int]:
    return {"B": batch, "M": rows, "K": depth}
