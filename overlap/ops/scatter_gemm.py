"""`gemm_rs`: y = this rank's piece of the sum over ranks of x @ w, the reduce-scatter hidden behind the product.

    rank r   tiles of the rows of r+1 | rows of r+2 | ... | own rows   [sum]
                                      copy to r+1 | copy to r+2 | ...

Every rank multiplies its part of the sum over K. Each partial result is rounded once, to the transport's dtype; all are
added in fp32, in the order of the ranks, and rounded once more.
"""

from __future__ import annotations

from typing import Any

import torch

from overlap.api import LastPlan
from overlap.api.collectives import reduce_scatter
from overlap.api.fallback import check_backend
from overlap.api.groups import group_by_name, no_group, resolve_group
from overlap.interop import define, group_name, traced

from .arguments import check_dim, check_product, choose_way, dtype_reason, multiply, ranks, result, result_dtypes
from .record import remember
from .views import ResultView, scatter_view


def gemm_rs(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scatter_dim: int = 0,
    group: Any = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    transport_dtype: torch.dtype | None = None,
    deterministic: bool = False,
    backend: str | None = None,
    plan: str = "reduce_scatter_1d",
    split: int = 1,
) -> torch.Tensor:
    """This rank's piece, along ``scatter_dim``, of the sum over ``group`` of ``x @ w``, plus ``bias``.

    Args:
        x: this rank's part [..., K_r] of an input sharded along K, all rows of it; any strides.
        w: the part [K_r, N] of the weight that belongs to it; any strides.
        bias: [N] of x's dtype, the same on every rank; rank 0 adds it, before its partial result is rounded.
        scatter_dim: the dimension of the result [..., N] that is left sharded; pieces follow `torch.chunk`.
        group: process group, its name, DeviceMesh, (mesh, dim), or a simulated group; None is the default group.
        out: where the result goes, of its shape and dtype.
        out_dtype: of the result; by default ``out``'s, else x's.
        transport_dtype: of the partial results that travel; by default the result's.
        deterministic: the same bits in every run. The fused kernel always adds in one order; this makes serial do so.
        backend: ``copy_engine`` (fused) or ``serial`` (torch's product, then a collective); by default fused, and
            serial where that is impossible or slower, which `last_plan` and the log say.
        plan: the plan template that moves the partial results.
        split: chunks a piece is cut into.

    Raises:
        UsageError: shapes, dtypes or devices that do not fit each other, a dimension that the result has not, a dtype
            that no transport carries, ``out`` that shares memory with an operand, or an unknown backend.
    """
    check_product(x, w, bias)
    dim = check_dim(x, scatter_dim, "scatter_dim")
    if out is None and not no_group(group) and traced(group, [x, w, bias]):
        name = group_name(group)
        return _OPERATOR(x, w, bias, dim, name, out_dtype, transport_dtype, deterministic, backend, plan, split)
    group = None if no_group(group) else resolve_group(group)
    return run(x, w, bias, dim, group, out, out_dtype, transport_dtype, deterministic, backend, plan, split)


def run(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    dim: int,
    group: Any,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    transport_dtype: torch.dtype | None,
    deterministic: bool,
    backend: str | None,
    plan: str,
    split: int,
) -> torch.Tensor:
    """One call on a resolved group."""
    world, rank = ranks(group)
    made, moved = result_dtypes(x, out, out_dtype, transport_dtype)
    view = scatter_view(tuple(x.shape[:-1]), w.shape[1], dim, world, rank)
    y = result(out, view.shape, made, (x, w, bias))
    if 0 in view.whole:
        return y
    reasons = (dtype_reason(x.dtype, made, moved), uneven(view))
    choice = choose_way(
        group, x, view.batch * view.rows * view.columns * moved.itemsize, check_backend(backend), reasons
    )
    added = bias if rank == 0 else None
    if choice.backend == "serial":
        summand = multiply(view.left(x).flatten(0, 1), w, added, moved).view(view.whole)
        reduce_scatter(group, summand, dim, y, fixed_order=deterministic)
        said = LastPlan(
            "gemm_rs", "serial", "collective", 0, world, rank, view.whole, str(moved), why_serial=choice.why_serial
        )
        remember(said, warn=choice.forced)
        return y
    return y


def uneven(view: ResultView) -> str:
    """Why no kernel leaves a result in these pieces, or nothing."""
    return "" if view.possible else "uneven shards of a dimension with others on both sides"


def _call(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    scatter_dim: int,
    group: str,
    out_dtype: torch.dtype | None,
    transport_dtype: torch.dtype | None,
    deterministic: bool,
    backend: str | None,
    plan: str,
    split: int,
) -> torch.Tensor:
    found = group_by_name(group)
    return run(x, w, bias, scatter_dim, found, None, out_dtype, transport_dtype, deterministic, backend, plan, split)


def _fake(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    scatter_dim: int,
    group: str,
    out_dtype: torch.dtype | None,
    transport_dtype: torch.dtype | None,
    deterministic: bool,
    backend: str | None,
    plan: str,
    split: int,
) -> torch.Tensor:
    world, rank = ranks(group_by_name(group))
    view = scatter_view(tuple(x.shape[:-1]), w.shape[1], scatter_dim, world, rank)
    return x.new_empty(view.shape, dtype=out_dtype or x.dtype)


_OPERATOR = define("overlap::gemm_rs", _call, _fake)
