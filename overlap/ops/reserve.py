"""`reserve`: memory for all later calls of the prebuilt operators, made once."""

from __future__ import annotations

from typing import Any

import torch

from overlap.api.memory import reserve_operator
from overlap.errors import UsageError

from .gather_gemm import compiled_kernel
from .gemm import ag_gemm_any, ag_gemm_tma
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
        inner_dims: also for gathers along inner dimensions, in batches of small matrices and of uneven shards, which
            lie in memory of their own.
        plan, split: as the calls will say.

    Raises:
        UsageError: sizes that are no positive integers.
        RuntimeContractError: ranks that ask for different sizes, or less was reserved before.
    """
    for name, size in (("max_tokens", max_tokens), ("hidden", hidden)):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"{name}={size!r}", help=f"{name} is a positive integer")
    kernels = (ag_gemm_tma, ag_gemm_any) if rows_fit(hidden, dtype) else (ag_gemm_any,)
    for kernel in (ag_gemm_tma, ag_gemm_any):
        for along in ("M", "B"):
            wanted = kernel is kernels[0] and along == "M" or kernel in kernels and inner_dims
            tokens, depth = (max_tokens, hidden) if wanted else (0, 0)
            sizes = {"B": 1, "M": tokens, "K": depth} if along == "M" else {"B": tokens, "M": 1, "K": depth}
            reserve_operator(compiled_kernel(kernel, along, plan, split).operator, group, sizes, dtype)
