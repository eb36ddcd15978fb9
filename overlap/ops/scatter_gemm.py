"""`gemm_rs`: y = this rank's piece of the sum over ranks of x @ w, the reduce-scatter hidden behind the product.

    rank r   tiles of the rows of r+1 | rows of r+2 | ... | own rows and what has come of them
                                      copy to r+1 | copy to r+2 | ...

Every rank multiplies its part of the sum over K. Each partial result is rounded once, to the transport's dtype; all are
added in fp32, in one order, and rounded once more. Where chunks are whole tiles and what they wait for comes in time, the
tiles of the own rows add what has come themselves (the setting `tile_sums`): the rank's own first, the others in the order of
the ranks. Else a sum kernel adds all of them in that order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from overlap.api import small
from overlap.api.auto import Problem
from overlap.api.fallback import STORING, Choice, check_backend
from overlap.api.groups import group_by_name, no_group, resolved
from overlap.chunkplan.cuts import Split, SplitLike, split_of, split_text
from overlap.interop import define, group_name, tracing

from .arguments import check_dim, check_product, choose_way, dtype_reason, multiply, ranks, result, result_dtypes
from .autocast import without_autocast
from .autograd import GemmRs, gemm_rs_backward, keep_for_gemm_rs, recorded
from .grad_pair import Half
from .grad_weights import Accumulate, MainGrad, main_grads_of
from .graphs import of_no_graph
from .partials import chosen_reason, launch_partial, out_by_tma, storing_reason
from .record import remember, serial_plan
from .repeat import Asked, repeated
from .views import ResultView, scatter_view

PLAN, SPLIT = "reduce_scatter_1d", 2


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
    plan: str = PLAN,
    split: SplitLike = SPLIT,
    accumulate_main_grad: Accumulate = False,
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
        backend: ``copy_engine`` (fused), ``ldst_inline`` or ``tma_inline`` (fused, tiles are stored where they go),
            ``words_inline`` (fused, one launch of low-latency words, for small results) or ``serial`` (torch's product, then
            a collective); by default fused by copy engine, and serial where that is impossible or slower, which `last_plan`
            and the log say.
        plan: the plan template that moves the partial results.
        split: chunks a piece is cut into. Two were faster than one by a tenth for pieces of 16 and 32 MB, level for another
            shape of 32 MB, and slower by 2 % for 8 MB (4 x H100, bench/results/ways).
        accumulate_main_grad: add the gradient of the weight to its parameter's ``main_grad`` in place, in that one's
            precision (fp32), while ``grad`` stays None; or the tensors to add to, in the shapes of the weights.

    Raises:
        UsageError: shapes, dtypes or devices that do not fit each other, a dimension that the result has not, a dtype
            that no transport carries, ``out`` that shares memory with an operand, or an unknown backend.
    """
    split = split_of(split)
    options = (scatter_dim, out_dtype, transport_dtype, deterministic, backend, plan, split)
    asked = repeated("gemm_rs", group, (x, w, bias), None if out is None else (out,), options)
    if isinstance(asked, list):
        return asked[0]
    check_product(group, x, w, bias, out)
    dim = check_dim(x, scatter_dim, "scatter_dim")
    recording = recorded(group, [x, w, bias], out)
    main_grads = main_grads_of([w], accumulate_main_grad) if recording else []
    if out is None and not no_group(group) and tracing(group, [x, w, bias]):
        name = group_name(group)
        sums = [m.tensor for m in main_grads]
        return _OPERATOR(
            x, w, bias, dim, name, out_dtype, transport_dtype, deterministic, backend, plan, split_text(split), sums
        )

    def call(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return run(x, w, bias, dim, group, out, out_dtype, transport_dtype, deterministic, backend, plan, split, asked)

    if not recording:
        return call(x, w, bias)
    return GemmRs.apply(
        call, Half(dim, (*x.shape[:-1], w.shape[1])[dim], resolved(group), backend), main_grads, x, w, bias
    )


@of_no_graph
@without_autocast
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
    split: Split,
    asked: Asked | None = None,
) -> torch.Tensor:
    """One call; ``asked``: if it was looked up already."""
    group = resolved(group)
    if asked is None:
        options = (dim, out_dtype, transport_dtype, deterministic, backend, plan, split)
        found = repeated("gemm_rs", group, (x, w, bias), None if out is None else (out,), options)
        if isinstance(found, list):
            return found[0]
        asked = found
    world, rank = ranks(group)
    made, moved = result_dtypes(x, out, out_dtype, transport_dtype)
    view = scatter_view(tuple(x.shape[:-1]), w.shape[1], dim, world, rank)
    y = result(out, view.shape, made, (x, w, bias))
    if 0 in view.whole:
        return y
    tma = out_by_tma(x.dtype, moved, view.batch, view.rows, view.columns)
    reasons = (dtype_reason(x.dtype, made, moved), uneven(view), storing_reason(backend, tma))
    sizes = (math.prod(view.whole[:-1]), view.whole[-1], x.shape[-1] * world)
    taken, lacking = backend is None and (plan, split) == (PLAN, SPLIT), partial(chosen_reason, tma=tma)
    problem = Problem("gemm_rs", *sizes, x.dtype, plan, split, lacking=lacking, open=taken)
    moved_bytes = math.prod(view.whole) * moved.itemsize
    choice = choose_way(group, x, moved_bytes, check_backend(backend, STORING), reasons, problem)
    plan, split = choice.of(plan, split)
    if choice.backend == "serial":
        call = partial(_serially, small.Again(), group, choice, rank, moved, dim, view.whole, deterministic)
        went_by = call(x, w, *([] if bias is None else [bias]), y)
        said = serial_plan("gemm_rs", "reduce_scatter", choice, world, rank, view.whole, moved, went_by)
    else:
        part = view.shard(y)
        repeat = asked.repeat([y]) if asked is not None else None
        how = {"along": view.along, "tma": tma, "moved": moved, "plan": plan, "split": split, "repeat": repeat}
        how["config"] = choice.config
        added = bias if rank == 0 else None
        said = launch_partial(view.left(x), w, added, part, view.columns, group=group, backend=choice.backend, **how)
    said = replace(said, operator="gemm_rs", shape=view.whole, considered=choice.considered, source=choice.source)
    remember(said, warn=choice.forced)
    if choice.backend == "serial":
        small.keep(asked, group, went_by, call, [y], said, choice.forced)
    elif asked is not None:
        asked.keep([y], said, forced=choice.forced)
    return y


@without_autocast
def _serially(
    again: small.Again,
    group: Any,
    choice: Choice,
    rank: int,
    moved: torch.dtype,
    dim: int,
    whole: tuple[int, ...],
    deterministic: bool,
    *tensors: torch.Tensor,
) -> str:
    """The product, then a collective; ``tensors``: x, w, the bias if there is one, the result. Gives what it went by."""
    x, w, *bias, y = tensors
    summand = multiply(x.flatten(0, -2), w, bias[0] if bias and rank == 0 else None, moved)
    if len(whole) != 2:
        summand = summand.view(whole)
    return small.reduce_scatter(group, choice, summand, dim, y, fixed_order=deterministic, again=again)


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
    split: str,
    main_grads: Sequence[torch.Tensor],
) -> torch.Tensor:
    found = group_by_name(group)
    return run(
        x, w, bias, scatter_dim, found, None, out_dtype, transport_dtype, deterministic, backend, plan, split_of(split)
    )


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
    split: str,
    main_grads: Sequence[torch.Tensor],
) -> torch.Tensor:
    world, rank = ranks(group_by_name(group))
    view = scatter_view(tuple(x.shape[:-1]), w.shape[1], scatter_dim, world, rank)
    return x.new_empty(view.shape, dtype=out_dtype or x.dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, w, bias, dim, group, _, _, _, backend, _, _, main_grads = inputs
    half = Half(dim, (*x.shape[:-1], w.shape[1])[dim], group, backend)
    keep_for_gemm_rs(ctx, half, [MainGrad(t) for t in main_grads], x, w, bias)


def _backward(ctx: Any, dy: torch.Tensor | None) -> tuple[Any, ...]:
    return *gemm_rs_backward(ctx, dy), *[None] * 8, [None] * len(ctx.main_grads)


_OPERATOR = define("overlap::gemm_rs", _call, _fake, setup_context=_keep, backward=_backward)
