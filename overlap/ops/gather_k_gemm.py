"""`ag_gemm_k`: y = gather(x) @ w of an x sharded along the dimension it is multiplied along.

    rank r   x shard -> own slot | copies from peers ...
             every tile: own piece of K | piece of r+1 | piece of r+2 | ...

Every rank wants all of y, or its own columns of it, and the weight is its own: the pieces of x are what moves. A tile
waits between parts of its loop over K, not before it.
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
from overlap.runtime.of_group import runtime_of

from .arguments import (
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
from .gather_call import PLAN, compiled_kernel
from .graphs import of_no_graph
from .products import Product, product_arguments
from .record import remember, serial_plan
from .repeat import Asked, repeated
from .views import GatherView


def ag_gemm_k(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    group: Any = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    backend: str | None = None,
    plan: str = PLAN,
    split: SplitLike = 1,
    comm_sms: int = 0,
) -> torch.Tensor:
    """``gather(x, -1) @ w + bias`` over the ranks of ``group``.

    Args:
        x: this rank's piece [..., K_r] of an input sharded along K; pieces follow `torch.chunk`; any strides.
        w: this rank's weight [K, N], all of K; any strides.
        bias: [N] of x's dtype.
        group: process group, its name, DeviceMesh, (mesh, dim), or a simulated group; None is the default group.
        out: where the result goes, [..., N], of its dtype.
        out_dtype: of the result; by default ``out``'s, else x's.
        backend: ``copy_engine`` (fused), ``ldst_reserved`` or ``tma_reserved`` (fused, some of the kernel's programs move
            the pieces), ``ldst_inline`` or ``tma_inline`` (fused, all of them do between their tiles) or ``serial`` (a
            collective, then torch's product); by default fused, and serial where that is impossible or slower, which
            `last_plan` and the log say.
        plan: the plan template that moves the pieces.
        split: chunks a piece is cut into, along the rows: a tile then waits for its part of every rank's. Whole pieces, 1, are
            waited for inside the loop over K instead.
        comm_sms: programs that move the pieces, with a backend that reserves some; 0: an eighth of the multiprocessors.

    Raises:
        UsageError: shapes, dtypes or devices that do not fit each other.
        RuntimeContractError: an x that is not this rank's piece of K.
    """
    split = split_of(split)
    options = (out_dtype, backend, plan, split, comm_sms)
    asked = repeated("ag_gemm_k", group, (x, w, bias), None if out is None else (out,), options)
    if isinstance(asked, list):
        return asked[0]
    check_product(group, x, w, bias, out, sharded_depth=True)
    if out is None and not no_group(group) and traced(group, [x, w, bias]):
        return _OPERATOR(x, w, bias, group_name(group), out_dtype, backend, plan, split_text(split), comm_sms)
    refuse_gradient("ag_gemm_k", [x, w, bias])
    return run(x, w, bias, group, out, out_dtype, backend, plan, split, comm_sms, asked)


@of_no_graph
def run(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
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
    depth, columns = w.shape
    check_piece(x.shape[-1], depth, world, rank)
    made, _ = result_dtypes(x, out, out_dtype, None)
    lead = tuple(x.shape[:-1])
    y = result(out, (*lead, columns), made, (x, w, bias))
    whole = (*lead, depth)
    if 0 in whole:
        return y.copy_(bias.expand(y.shape)) if bias is not None else y.zero_()
    moved_bytes = math.prod(whole) * x.element_size()
    taken = backend is None and (plan, split, comm_sms) == (PLAN, 1, 0)
    problem = Problem("ag_gemm_k", math.prod(lead), columns * world, depth, x.dtype, plan, split, comm_sms, open=taken)
    reasons = [dtype_reason(x.dtype, made)]
    row_bytes = -(-depth // world) * x.element_size()
    choice = choose_way(group, x, moved_bytes, check_backend(backend, MOVING), reasons, problem, row_bytes)
    comm_sms = choice.programs or comm_sms
    plan, split = choice.of(plan, split)
    check_programs(choice.backend, comm_sms)
    serially = None
    if choice.backend == "serial":
        serially = partial(_gathered_product, small.Again(), group, choice, tuple(whole), made)
        went_by = serially(x, w, *([] if bias is None else [bias]), y)
        said = serial_plan("ag_gemm_k", "gather", choice, world, rank, whole, x.dtype, went_by)
    else:
        view = GatherView(whole, 1, math.prod(lead), depth, "K")
        product = Product(w, y.view(1, view.rows, columns), bias)
        held = x.reshape(1, view.rows, x.shape[-1])
        kernel, grid, arguments = product_arguments(
            product, held, view, runtime_of(group), blocks=blocks_of(choice.config)
        )
        compiled = compiled_kernel(kernel, along_of(split), plan, split, choice.backend, comm_sms)
        repeat = asked.repeat([y]) if asked is not None else None
        said = compiled.launch(grid, (), arguments, group=group, backend=choice.backend, repeat=repeat)
    said = replace(said, operator="ag_gemm_k", shape=whole, considered=choice.considered, source=choice.source)
    remember(said, warn=choice.forced)
    if serially is not None:
        small.keep(asked, group, went_by, serially, [y], said, choice.forced)
    elif asked is not None:
        asked.keep([y], said, forced=choice.forced)
    return y


@without_autocast
def _gathered_product(
    again: small.Again,
    group: Any,
    choice: Choice,
    whole: tuple[int, ...],
    made: torch.dtype,
    *tensors: torch.Tensor,
) -> str:
    """A gather into ``whole``, then the product; ``tensors``: x, w, the bias if there is one, y. Gives what it went by."""
    x, w, *bias, y = tensors
    gathered, went_by = small.gather(group, choice, x, whole, x.dim() - 1, again=again)
    multiply(gathered.flatten(0, -2), w, bias[0] if bias else None, made, y.flatten(0, -2))
    return went_by


def along_of(split: Split) -> str:
    """Along which axis pieces are gathered, and parts of theirs awaited."""
    return "K" if split == 1 else "K/M"


def _call(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    group: str,
    out_dtype: torch.dtype | None,
    backend: str | None,
    plan: str,
    split: str,
    comm_sms: int,
) -> torch.Tensor:
    return run(x, w, bias, group_by_name(group), None, out_dtype, backend, plan, split_of(split), comm_sms)


def _fake(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    group: str,
    out_dtype: torch.dtype | None,
    backend: str | None,
    plan: str,
    split: str,
    comm_sms: int,
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[1]), dtype=out_dtype or x.dtype)


_OPERATOR = define("overlap::ag_gemm_k", _call, _fake)
