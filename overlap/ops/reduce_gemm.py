"""`gemm_ar`: y = the sum over ranks of x @ w, whole on every rank.

one-shot   every rank sends its whole partial result to every other, and each adds all of them: least latency
two-shot   a reduce-scatter behind the product, then each owner sends its sum to all: fewest bytes

Where they part is a setting. On four GPUs one step was faster up to results of 8 MiB, two from 16 MiB on
(bench/results/ways/gemm_ar_h200x4.json).

Partial results are rounded and added as in `gemm_rs`; every rank adds in the order of the ranks, so all get the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from overlap import settings
from overlap.api import small
from overlap.api.auto import Problem
from overlap.api.fallback import STORING, Choice, check_backend
from overlap.api.groups import group_by_name, no_group, resolved
from overlap.backends import backends
from overlap.chunkplan.cuts import Split, SplitLike, split_of, split_text
from overlap.interop import define, group_name, traced

from .arguments import check_product, choose_way, dtype_reason, multiply, ranks, refuse_gradient, result, result_dtypes
from .autocast import without_autocast
from .graphs import of_no_graph
from .partials import chosen_reason, launch_partial, out_by_tma, storing_reason
from .record import remember, serial_plan
from .repeat import Asked, repeated
from .views import whole_view

ONE_SHOT, TWO_SHOT = "all_reduce_one_shot", "all_reduce_two_shot"
HALVES = 2
"""Messages of an all-reduce, of which only the first hides behind the product, so that it pays from twice the bytes on: on four
H200s, in a graph, serial took 0.271 ms and fused 0.292 at 16 MiB, 0.550 and 0.556 at 32 (bench/results/gemm_ar_h200x4.json)."""
PARTS = ((32 << 20, 4), (16 << 20, 2))
"""In two steps, of a rank's part of so many bytes or more, so many chunks: smaller ones lose to the latency of their copies.
Measured on four H200s, with sums beside the kernel (bench/results/sums/gemm_ar_h200x4_47af5a0.json)."""


def gemm_ar(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    group: Any = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    transport_dtype: torch.dtype | None = None,
    deterministic: bool = False,
    backend: str | None = None,
    plan: str | None = None,
    split: SplitLike | None = None,
) -> torch.Tensor:
    """The sum over ``group`` of ``x @ w``, plus ``bias``, on every rank.

    Args:
        x: this rank's part [..., K_r] of an input sharded along K, all rows of it; any strides.
        w: the part [K_r, N] of the weight that belongs to it; any strides.
        bias: [N] of x's dtype, the same on every rank; rank 0 adds it, before its partial result is rounded.
        group: process group, its name, DeviceMesh, (mesh, dim), or a simulated group; None is the default group.
        out: where the result goes, [..., N], of its dtype.
        out_dtype: of the result; by default ``out``'s, else x's.
        transport_dtype: of the partial results and, in two steps, the sums that travel; by default the result's.
        deterministic: the same bits in every run and on every rank. The fused kernels always add in one order; this
            makes serial do so.
        backend: ``copy_engine`` (fused), ``ldst_inline`` or ``tma_inline`` (fused, tiles are stored where they go),
            ``words_inline`` (fused, one launch of low-latency words, for small results) or ``serial`` (torch's product, then
            a collective); by default fused by copy engine, and serial where that is impossible or slower, which `last_plan`
            and the log say.
        plan: the plan template; by default ``all_reduce_one_shot`` for results smaller than the setting
            ``one_shot_below_bytes`` and for ``words_inline``, else ``all_reduce_two_shot``.
        split: chunks that a transfer is cut into; by default, in two steps by copy engine, 4 of a rank's part of 32 MiB or
            more and 2 of 16 MiB or more, since sums of all but the last are made and sent while the kernel runs, else 1.

    Raises:
        UsageError: as `gemm_rs`.
    """
    split = None if split is None else split_of(split)
    options = (out_dtype, transport_dtype, deterministic, backend, plan, split)
    asked = repeated("gemm_ar", group, (x, w, bias), None if out is None else (out,), options)
    if isinstance(asked, list):
        return asked[0]
    check_product(group, x, w, bias, out)
    if out is None and not no_group(group) and traced(group, [x, w, bias]):
        name = group_name(group)
        parts = None if split is None else split_text(split)
        return _OPERATOR(x, w, bias, name, out_dtype, transport_dtype, deterministic, backend, plan, parts)
    refuse_gradient("gemm_ar", [x, w, bias])
    return run(x, w, bias, group, out, out_dtype, transport_dtype, deterministic, backend, plan, split, asked)


@of_no_graph
def run(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    group: Any,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    transport_dtype: torch.dtype | None,
    deterministic: bool,
    backend: str | None,
    plan: str | None,
    split: Split | None,
    asked: Asked | None = None,
) -> torch.Tensor:
    """One call; ``asked``: as it was looked up."""
    group = resolved(group)
    world, rank = ranks(group)
    backend = check_backend(backend, STORING)
    made, moved = result_dtypes(x, out, out_dtype, transport_dtype)
    view = whole_view(tuple(x.shape[:-1]), w.shape[1])
    y = result(out, view.shape, made, (x, w, bias))
    if 0 in view.whole:
        return y
    moved_bytes = view.rows * view.columns * moved.itemsize
    tma = out_by_tma(x.dtype, moved, view.batch, view.rows, view.columns)
    reasons = (dtype_reason(x.dtype, made, moved), storing_reason(backend, tma))
    sizes, lacking = (view.rows, view.columns, x.shape[-1] * world), partial(chosen_reason, tma=tma)
    chosen = default_plan(moved_bytes, backend) if plan is None else plan
    usual = default_split(chosen, moved_bytes, world, backend)
    split = usual if split is None else split
    taken = backend is None and plan is None and split == usual
    problem = Problem("gemm_ar", *sizes, x.dtype, chosen, split, lacking=lacking, open=taken)
    choice = choose_way(group, x, moved_bytes // HALVES, backend, reasons, problem)
    chosen, split = choice.of(chosen, split)
    if choice.backend == "serial":
        in_place = made == moved and small.sums_in_place(group, choice, x, moved_bytes)
        call = partial(_serially, small.Again(), group, choice, rank, moved, in_place, deterministic)
        went_by = call(x, w, *([] if bias is None else [bias]), y)
        said = serial_plan("gemm_ar", "all_reduce", choice, world, rank, view.whole, moved, went_by)
    else:
        how = {"along": "", "tma": tma, "moved": moved, "plan": chosen, "split": split}
        how["config"] = choice.config
        how["repeat"] = asked.repeat([y]) if asked is not None else None
        added = bias if rank == 0 else None
        said = launch_partial(
            view.left(x), w, added, view.shard(y), view.columns, group=group, backend=choice.backend, **how
        )
    said = replace(said, operator="gemm_ar", shape=view.whole, considered=choice.considered, source=choice.source)
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
    in_place: bool,
    deterministic: bool,
    *tensors: torch.Tensor,
) -> str:
    """The product, then a collective; ``tensors``: x, w, the bias if there is one, the result. Gives what it went by."""
    x, w, *bias, y = tensors
    place = y.flatten(0, -2) if in_place else None
    summand = multiply(x.flatten(0, -2), w, bias[0] if bias and rank == 0 else None, moved, place)
    if y.dim() != 2:
        summand = summand.view(y.shape)
    return small.all_reduce(group, choice, summand, y, fixed_order=deterministic, again=again)


def default_plan(moved_bytes: int, backend: str | None = None) -> str:
    """One step or two, by the bytes of the result; words go in one."""
    if backend in backends and backends[backend].words:
        return ONE_SHOT
    return ONE_SHOT if moved_bytes < settings.get("one_shot_below_bytes") else TWO_SHOT


def default_split(plan: str, moved_bytes: int, world: int, backend: str | None = None) -> int:
    """Chunks of a rank's part of the result, for a call that names ``backend`` or none."""
    copied = plan == TWO_SHOT and backend in (None, "copy_engine")
    return next((parts for least, parts in PARTS if copied and moved_bytes >= least * world), 1)


def _call(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    group: str,
    out_dtype: torch.dtype | None,
    transport_dtype: torch.dtype | None,
    deterministic: bool,
    backend: str | None,
    plan: str | None,
    split: str | None,
) -> torch.Tensor:
    found, parts = group_by_name(group), None if split is None else split_of(split)
    return run(x, w, bias, found, None, out_dtype, transport_dtype, deterministic, backend, plan, parts)


def _fake(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    group: str,
    out_dtype: torch.dtype | None,
    transport_dtype: torch.dtype | None,
    deterministic: bool,
    backend: str | None,
    plan: str | None,
    split: str | None,
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[1]), dtype=out_dtype or x.dtype)


_OPERATOR = define("overlap::gemm_ar", _call, _fake)
