"""`a2a_gemm`: y = exchange(x) @ w, behind the exchange of a sequence and its heads (Ulysses attention).

    q = gemm_a2a(x, wq)   [S/world, K] @ [K, N] -> every rank all of S, its heads of N
    attention on the rank's own heads
    y = a2a_gemm(o, wo)   all of S, the heads K_r of a rank -> its rows of S, all of K @ [K, N]

The sequence may be any dimension but the last, [B, S, K] and [S, B, K] alike. Nothing is added up between ranks: what
travels arrives bit for bit. The other way is `gemm_exchange`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from overlap.api import small
from overlap.api.auto import Problem
from overlap.api.fallback import MOVING, Choice, check_backend
from overlap.api.groups import group_by_name, no_group, resolved
from overlap.chunkplan.cuts import Split, SplitLike, split_of, split_text
from overlap.interop import define, group_name, traced
from overlap.runtime.instance import Instance
from overlap.runtime.launch.in_place import LastTiles
from overlap.runtime.of_group import runtime_of
from overlap.runtime.repeat.repeat import KernelLaunch

from .arguments import (
    UNEVEN,
    check_dim,
    check_heads,
    check_piece,
    check_product,
    check_programs,
    choose_way,
    dtype_reason,
    multiply,
    ranks,
    refuse_gradient,
    result,
    result_dtypes,
)
from .autocast import without_autocast
from .blocks import blocks_of
from .gather_call import compiled_kernel
from .graphs import of_no_graph
from .products import Product, by_tma, product_arguments, product_blocks
from .record import remember, serial_plan
from .repeat import Asked, repeated
from .tail import tail_launches, tail_of, warm_tail
from .views import GatherView, scatter_view

PLAN, SPLIT = "all_to_all_1d_push", split_of("1:3:4")
"""Pushed out of the caller's tensor, of which only the piece that stays is staged, and in parts that grow, since a tile waits for
one part of every rank: on two H200s 9 % faster than pulled in four equal parts; another shape, pushed in four, 4 %
(bench/results/gaps/a2a_gemm_h200x2.json). Another split by the shape would be another workspace."""


def a2a_gemm(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scatter_dim: int = 0,
    heads: int | None = None,
    group: Any = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    backend: str | None = None,
    plan: str = PLAN,
    split: SplitLike = SPLIT,
    comm_sms: int = 0,
) -> torch.Tensor:
    """``x @ w + bias`` of an x sharded along its last dimension, for this rank's piece of ``scatter_dim``.

    Args:
        x: this rank's piece [..., K_r] of an input sharded along K, all of ``scatter_dim``; any strides.
        w: the whole weight [K, N]; any strides.
        bias: [N] of x's dtype.
        scatter_dim: the dimension, not the last, that is sharded afterwards (the sequence); pieces follow `torch.chunk`.
        heads: how many heads K is made of; a number that the ranks cannot share evenly is refused.
        group: process group, its name, DeviceMesh, (mesh, dim), or a simulated group; None is the default group.
        out: where the result goes, of its shape and dtype.
        out_dtype: of the result; by default ``out``'s, else x's.
        backend: ``copy_engine`` (fused), ``ldst_reserved`` or ``tma_reserved`` (fused, some of the kernel's programs move
            the pieces), ``ldst_inline`` or ``tma_inline`` (fused, all of them do between their tiles) or ``serial`` (a
            collective, then torch's product); by default fused, and serial where that is impossible or slower, which
            `last_plan` and the log say.
        plan: the plan template that moves the pieces.
        split: parts a piece is cut into, along the rows; a tile waits for its part of every rank's.
        comm_sms: programs that move the pieces, with a backend that reserves some; 0: an eighth of the multiprocessors.

    Returns:
        [..., N], ``scatter_dim`` cut to this rank's piece.

    Raises:
        UsageError: shapes, dtypes or devices that do not fit each other, or heads that would be cut.
        RuntimeContractError: an x that is not this rank's piece of K.
    """
    split = split_of(split)
    options = (scatter_dim, heads, out_dtype, backend, plan, split, comm_sms)
    asked = repeated("a2a_gemm", group, (x, w, bias), None if out is None else (out,), options)
    if isinstance(asked, list):
        return asked[0]
    check_product(group, x, w, bias, out, sharded_depth=True)
    dim = check_dim(x, scatter_dim, "scatter_dim", last=False)
    if out is None and not no_group(group) and traced(group, [x, w, bias]):
        return _SCATTER(
            x, w, bias, dim, heads, group_name(group), out_dtype, backend, plan, split_text(split), comm_sms
        )
    refuse_gradient("a2a_gemm", [x, w, bias])
    return run_a2a_gemm(x, w, bias, dim, heads, group, out, out_dtype, backend, plan, split, comm_sms, asked)


@of_no_graph
def run_a2a_gemm(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    dim: int,
    heads: int | None,
    group: Any,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    backend: str | None,
    plan: str,
    split: Split,
    comm_sms: int,
    asked: Asked | None = None,
) -> torch.Tensor:
    """One call; ``asked``: as it was looked up."""
    group = resolved(group)
    world, rank = ranks(group)
    (depth, columns), lead = w.shape, tuple(x.shape[:-1])
    check_heads(heads, depth, world, "K")
    check_piece(x.shape[-1], depth, world, rank)
    made, _ = result_dtypes(x, out, out_dtype, None)
    view, largest = (scatter_view(lead, depth, dim, world, r) for r in (rank, 0))
    y = result(out, (*view.shape[:-1], columns), made, (x, w, bias))
    if 0 in view.whole:
        return y.copy_(bias.expand(y.shape)) if bias is not None else y.zero_()
    reasons = (dtype_reason(x.dtype, made), "" if view.possible else UNEVEN)
    moved_bytes = math.prod(view.whole) * x.element_size() // world
    taken = backend is None and (plan, split, comm_sms) == (PLAN, SPLIT, 0)
    problem = Problem("a2a_gemm", math.prod(lead), columns, depth, x.dtype, plan, split, comm_sms, open=taken)
    row_bytes = -(-depth // world) * x.element_size()
    choice = choose_way(group, x, moved_bytes, check_backend(backend, MOVING), reasons, problem, row_bytes)
    comm_sms = choice.programs or comm_sms
    plan, split = choice.of(plan, split)
    check_programs(choice.backend, comm_sms)
    serially = None
    if choice.backend == "serial":
        serially = partial(_exchanged_product, small.Again(), group, choice, tuple(view.shape), dim, made)
        went_by = serially(x, w, *([] if bias is None else [bias]), y)
        said = serial_plan("a2a_gemm", "all_to_all", choice, world, rank, view.whole, x.dtype, went_by)
    else:
        part, most = (_part(v.shape, depth, v.batch, v.rows, v.along) for v in (view, largest))
        product = Product(w, y.view(part.batch, part.rows, columns), bias)
        held, tma = x.reshape(view.batch, view.rows, x.shape[-1]), by_tma(most, x.dtype)
        runtime = runtime_of(group)
        blocks = product_blocks(product, part, runtime, tma, blocks_of(choice.config))
        tail = tail_of(product, part, runtime, blocks, choice.backend, tma=tma)
        kernel, grid, arguments = product_arguments(
            product, held, part, runtime, tma=tma, blocks=blocks, left_out=tail.left
        )
        compiled = compiled_kernel(kernel, f"K:{view.along}", plan, split, choice.backend, comm_sms)

        def rest(instance: Instance) -> list[KernelLaunch]:
            return tail_launches(tail, product, part, blocks, instance, kernel, arguments)

        def behind(instance: Instance) -> None:
            for each in rest(instance):
                runtime.launch(each.kernel, each.grid, (), each.arguments, runtime.main_stream())

        warm_tail(tail, product, part, runtime, blocks)
        repeat = asked.repeat([y], rest) if asked is not None else None
        more = LastTiles(tail.left, behind) if tail.left else None
        said = compiled.launch(grid, (), arguments, group=group, backend=choice.backend, behind=more, repeat=repeat)
        said = replace(said, tail=tail.left)
    said = replace(said, operator="a2a_gemm", shape=view.whole, considered=choice.considered, source=choice.source)
    remember(said, warn=choice.forced)
    if serially is not None:
        small.keep(asked, group, went_by, serially, [y], said, choice.forced)
    elif asked is not None:
        asked.keep([y], said, forced=choice.forced)
    return y


@without_autocast
def _exchanged_product(
    again: small.Again,
    group: Any,
    choice: Choice,
    shape: tuple[int, ...],
    dim: int,
    made: torch.dtype,
    *tensors: torch.Tensor,
) -> str:
    """An all-to-all into ``shape``, then the product; ``tensors``: x, w, the bias if there is one, y. Gives what it went by."""
    x, w, *bias, y = tensors
    held = x.new_empty(shape)
    went_by = small.all_to_all(group, choice, x, x.dim() - 1, dim, held, again)
    multiply(held.flatten(0, -2), w, bias[0] if bias else None, made, y.flatten(0, -2))
    return went_by


def _part(shape: tuple[int, ...], depth: int, batch: int, rows: int, along: str) -> GatherView:
    """What a kernel works on of [batch, rows, depth], of which it holds ``shape``."""
    held = torch.Size(shape).numel() // depth
    if along == "B":
        return GatherView(shape, held // max(1, rows), rows, depth, along)
    return GatherView(shape, batch, held // max(1, batch), depth, along)


def _call_scatter(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    scatter_dim: int,
    heads: int | None,
    group: str,
    out_dtype: torch.dtype | None,
    backend: str | None,
    plan: str,
    split: str,
    comm_sms: int,
) -> torch.Tensor:
    found = group_by_name(group)
    return run_a2a_gemm(
        x, w, bias, scatter_dim, heads, found, None, out_dtype, backend, plan, split_of(split), comm_sms
    )


def _fake_scatter(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    scatter_dim: int,
    heads: int | None,
    group: str,
    out_dtype: torch.dtype | None,
    backend: str | None,
    plan: str,
    split: str,
    comm_sms: int,
) -> torch.Tensor:
    world, rank = ranks(group_by_name(group))
    shape = scatter_view(tuple(x.shape[:-1]), w.shape[1], scatter_dim, world, rank).shape
    return x.new_empty(shape, dtype=out_dtype or x.dtype)


_SCATTER = define("overlap::a2a_gemm", _call_scatter, _fake_scatter)
