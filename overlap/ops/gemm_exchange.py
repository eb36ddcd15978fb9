"""`gemm_a2a`: y = exchange(x @ w), ahead of the exchange of a sequence and its heads; the other way of `exchange_gemm`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from overlap.api import small
from overlap.api.auto import Problem
from overlap.api.fallback import STORING, Choice, check_backend
from overlap.api.groups import group_by_name, no_group, resolved
from overlap.chunkplan.cuts import Split, SplitLike, split_of, split_text
from overlap.chunkplan.region import shard_interval
from overlap.interop import define, group_name, traced

from .arguments import (
    UNEVEN,
    check_dim,
    check_heads,
    check_product,
    choose_way,
    dtype_reason,
    multiply,
    ranks,
    refuse_gradient,
    result,
    result_dtypes,
)
from .autocast import without_autocast
from .graphs import of_no_graph
from .partials import chosen_reason, launch_partial, out_by_tma, storing_reason
from .record import remember, serial_plan
from .repeat import Asked, repeated
from .views import gather_view

PLAN = "all_to_all_1d"
PARTS, PARTS_FROM = 2, 32 << 20
"""So many chunks of a piece of so many bytes or more for one rank, the first of which is put in its place while the kernel runs:
2 % faster on four H200s with 4 of 132 multiprocessors left to that (bench/results/sums/gemm_a2a_h200x4.json). Whole pieces of
8 MiB were as fast without (bench/results/ways/gemm_a2a_h200x4.json)."""


def gemm_a2a(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    gather_dim: int = 0,
    gather_size: int | None = None,
    heads: int | None = None,
    group: Any = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    transport_dtype: torch.dtype | None = None,
    backend: str | None = None,
    plan: str = PLAN,
    split: SplitLike | None = None,
) -> torch.Tensor:
    """``x @ w + bias`` for all of ``gather_dim``, along which x is sharded, and this rank's piece of the columns.

    Args:
        x: this rank's piece [..., K] of an input sharded along ``gather_dim``; any strides.
        w: the whole weight [K, N]; any strides.
        bias: [N] of x's dtype, the same on every rank.
        gather_dim: the dimension, not the last, that x is sharded along (the sequence).
        gather_size: its global extent, needed where shards are uneven; they follow `torch.chunk`.
        heads: how many heads N is made of; a number that the ranks cannot share evenly is refused.
        group, out, out_dtype, plan: as for `a2a_gemm`; ``backend``: as for `gemm_rs`.
        transport_dtype: of the results that travel; by default the result's.
        split: chunks a piece is cut into; by default 2 of a piece of 32 MiB or more by copy engine, else 1.

    Returns:
        [..., N_r], all of ``gather_dim``; the pieces of N follow `torch.chunk`.

    Raises:
        UsageError: shapes, dtypes or devices that do not fit each other, or heads that would be cut.
        RuntimeContractError: an x that is not this rank's piece of ``gather_dim``.
    """
    split = None if split is None else split_of(split)
    options = (gather_dim, gather_size, heads, out_dtype, transport_dtype, backend, plan, split)
    asked = repeated("gemm_a2a", group, (x, w, bias), None if out is None else (out,), options)
    if isinstance(asked, list):
        return asked[0]
    check_product(group, x, w, bias, out)
    dim = check_dim(x, gather_dim, "gather_dim", last=False)
    if out is None and not no_group(group) and traced(group, [x, w, bias]):
        name, parts = group_name(group), None if split is None else split_text(split)
        return _GATHER(x, w, bias, dim, gather_size, heads, name, out_dtype, transport_dtype, backend, plan, parts)
    refuse_gradient("gemm_a2a", [x, w, bias])
    return run_gemm_a2a(
        x, w, bias, dim, gather_size, heads, group, out, out_dtype, transport_dtype, backend, plan, split, asked
    )


@of_no_graph
def run_gemm_a2a(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    dim: int,
    gather_size: int | None,
    heads: int | None,
    group: Any,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    transport_dtype: torch.dtype | None,
    backend: str | None,
    plan: str,
    split: Split | None,
    asked: Asked | None = None,
) -> torch.Tensor:
    """One call; ``asked``: as it was looked up."""
    group = resolved(group)
    world, rank = ranks(group)
    depth, columns = w.shape
    check_heads(heads, columns, world, "N")
    made, moved = result_dtypes(x, out, out_dtype, transport_dtype)
    view = gather_view(x, dim, gather_size, world, rank)
    low, high = shard_interval(columns, world, rank)
    y = result(out, (*view.whole[:-1], high - low), made, (x, w, bias))
    whole = (*view.whole[:-1], columns)
    if 0 in whole:
        return y
    most = shard_interval(view.rows if view.along == "M" else view.batch, world, 0)[1]
    batch, rows = (view.batch, most) if view.along == "M" else (most, view.rows)
    tma = out_by_tma(x.dtype, moved, batch, rows, columns)
    reasons = (dtype_reason(x.dtype, made, moved), "" if view.possible else UNEVEN, storing_reason(backend, tma))
    moved_bytes = math.prod(whole) * moved.itemsize // world
    lacking = partial(chosen_reason, tma=tma)
    usual = default_split(plan, moved_bytes, world, backend)
    split = usual if split is None else split
    sizes, taken = (math.prod(whole[:-1]), columns, depth), backend is None and (plan, split) == (PLAN, usual)
    problem = Problem("gemm_a2a", *sizes, x.dtype, plan, split, lacking=lacking, open=taken)
    row_bytes = -(-columns // world) * moved.itemsize
    choice = choose_way(group, x, moved_bytes, check_backend(backend, STORING), reasons, problem, row_bytes)
    plan, split = choice.of(plan, split)
    serially = None
    if choice.backend == "serial":
        serially = partial(_product_exchanged, small.Again(), group, choice, dim, moved)
        went_by = serially(x, w, *([] if bias is None else [bias]), y)
        said = serial_plan("gemm_a2a", "all_to_all", choice, world, rank, whole, moved, went_by)
    else:
        how = {
            "along": f"{view.along}:N",
            "tma": tma,
            "moved": moved,
            "plan": plan,
            "split": split,
            "config": choice.config,
            "exchanged": batch * rows,
            "repeat": asked.repeat([y]) if asked is not None else None,
        }
        part = y.view(view.batch, view.rows, high - low)
        said = launch_partial(view.shard(x, dim), w, bias, part, columns, group=group, backend=choice.backend, **how)
    said = replace(said, operator="gemm_a2a", shape=whole, considered=choice.considered, source=choice.source)
    remember(said, warn=choice.forced)
    if serially is not None:
        small.keep(asked, group, went_by, serially, [y], said, choice.forced)
    elif asked is not None:
        asked.keep([y], said, forced=choice.forced)
    return y


def default_split(plan: str, moved_bytes: int, world: int, backend: str | None = None) -> int:
    """Chunks of a piece for one rank, for a call that names ``backend`` or none; ``moved_bytes``: of a rank's result."""
    copied = plan == PLAN and backend in (None, "copy_engine")
    return PARTS if copied and moved_bytes >= PARTS_FROM * world else 1


@without_autocast
def _product_exchanged(
    again: small.Again, group: Any, choice: Choice, dim: int, moved: torch.dtype, *tensors: torch.Tensor
) -> str:
    """The product, then an all-to-all; as `_exchanged_product`."""
    x, w, *bias, y = tensors
    own = multiply(x.flatten(0, -2), w, bias[0] if bias else None, moved)
    return small.all_to_all(group, choice, own.view(*x.shape[:-1], w.shape[1]), dim, x.dim() - 1, y, again)


def _call_gather(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    gather_dim: int,
    gather_size: int | None,
    heads: int | None,
    group: str,
    out_dtype: torch.dtype | None,
    transport_dtype: torch.dtype | None,
    backend: str | None,
    plan: str,
    split: str | None,
) -> torch.Tensor:
    found = group_by_name(group)
    return run_gemm_a2a(
        x,
        w,
        bias,
        gather_dim,
        gather_size,
        heads,
        found,
        None,
        out_dtype,
        transport_dtype,
        backend,
        plan,
        None if split is None else split_of(split),
    )


def _fake_gather(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    gather_dim: int,
    gather_size: int | None,
    heads: int | None,
    group: str,
    out_dtype: torch.dtype | None,
    transport_dtype: torch.dtype | None,
    backend: str | None,
    plan: str,
    split: str | None,
) -> torch.Tensor:
    world, rank = ranks(group_by_name(group))
    extent = x.shape[gather_dim] * world if gather_size is None else gather_size
    low, high = shard_interval(w.shape[1], world, rank)
    shape = (*x.shape[:gather_dim], extent, *x.shape[gather_dim + 1 : -1], high - low)
    return x.new_empty(shape, dtype=out_dtype or x.dtype)


_GATHER = define("overlap::gemm_a2a", _call_gather, _fake_gather)
