"""One call of `ag_gemm`: which way it goes, and the launches it is made of.

One gather serves several weights (q, k, v; gate and up): the largest product is the fused kernel, the others run right
behind it on the gathered buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from overlap import settings
from overlap.api import CompiledKernel, compile, small
from overlap.api.auto import Problem, choose_auto
from overlap.api.fallback import ASKED, MOVING, Choice, check_backend, check_plan, choose
from overlap.api.groups import resolved
from overlap.backends.capabilities import AUTO, SERIAL
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.region import shard_interval
from overlap.errors import UsageError
from overlap.runtime.calls.operands import check_operands
from overlap.runtime.instance import Instance
from overlap.runtime.launch.in_place import LastTiles
from overlap.runtime.of_group import runtime_of
from overlap.runtime.repeat.repeat import KernelLaunch
from overlap.schedule.operators import TILE_ROWS

from .arguments import (
    FUSED_DTYPES,
    UNEVEN,
    check_alike,
    check_memory,
    check_programs,
    check_written,
    labelled,
    named,
    overlapping,
    ranks,
)
from .autocast import without_autocast
from .blocks import blocks_of
from .graphs import of_no_graph
from .products import (
    Product,
    arrivals_launches,
    by_tma,
    copy_launch,
    product_arguments,
    product_blocks,
    product_launch,
    warm_arrivals,
    warm_copy,
    warm_product,
)
from .record import remember, serial_plan
from .repeat import Asked, repeated
from .tail import tail_launches, tail_of, warm_tail
from .tuned import tuned_choice
from .views import GatherView, gather_view

PLAN, PUSHED = "all_gather_1d", "all_gather_1d_push"


def check_arguments(
    group: Any,
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    outs: Sequence[torch.Tensor] | None,
) -> None:
    """Raises UsageError unless weights and biases fit ``x``."""
    if not weights:
        raise UsageError("no weight was given", help="w is [D, N], or a list of such")
    if len(biases) != len(weights):
        raise UsageError(f"{len(biases)} biases for {len(weights)} weights", help="one, or None, for each weight")
    check_memory(group, outs, *labelled(x, weights, biases))
    for i, out in enumerate(outs or ()):
        check_written(f"out {i}", out)
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        if w.dim() != 2 or x.dim() < 1 or w.shape[0] != x.shape[-1]:
            raise UsageError(
                f"weight {i} has shape {tuple(w.shape)}, x has {tuple(x.shape)}",
                help="w is [D, N] with D the last dimension of x; the weight of a Linear layer is passed as weight.t()",
            )
        check_alike(x, (f"weight {i}", w), (f"bias {i}", b))
        if b is not None and tuple(b.shape) != (w.shape[1],):
            raise UsageError(f"bias {i} has shape {tuple(b.shape)}, its weight {tuple(w.shape)}", help="bias is [N]")


def default_plan(view: GatherView, dtype: torch.dtype, world: int, *, alone: bool = True) -> str:
    """The plan of a call by copy engine that names none, the same on every rank.

    It pushes where tiles can read the rank's own rows where its caller has them, as far as sizes tell: that took two H200s 2 to
    9 % less than pulling (docs/performance.md). What only one rank knows, its weight and how its x lies in memory, decides
    whether that rank stages it, not how it goes.

    Args:
        alone: nobody but one product reads what is gathered, on any rank: ranks pass as many weights as each other, and want
            the gathered tensor, for themselves or for gradients, all or none.
    """
    matrices = view.along == "B"
    whole, unit = (view.batch, 1) if matrices else (view.rows, TILE_ROWS)
    edges = {edge for rank in range(world) for edge in shard_interval(whole, world, rank)}
    shard = -(-whole // world) * view.depth * dtype.itemsize * (view.rows if matrices else view.batch)
    in_one_piece = matrices or view.batch == 1
    possible = alone and world > 1 and in_one_piece and by_tma(view, dtype) and bool(settings.get("in_place"))
    fits = all(edge % unit == 0 or edge == whole for edge in edges) and shard >= settings.get("given_bytes")
    return PUSHED if possible and fits else PLAN


@of_no_graph
@without_autocast
def run(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    gather_dim: int,
    gather_size: int | None,
    group: Any,
    outs: Sequence[torch.Tensor] | None,
    backend: str | None,
    plan: str | None,
    split: Split,
    comm_sms: int,
    return_gathered: bool,
    asked: Asked | None = None,
) -> list[torch.Tensor]:
    """One call with its arguments as lists; results in the order of the weights, then the gathered x if wanted.

    ``asked``: the call, if it was looked up already.
    """
    group = resolved(group)
    if asked is None:
        options = (len(weights), gather_dim, gather_size, backend, plan, split, comm_sms, return_gathered)
        found = repeated("ag_gemm", group, (x, *weights, *biases), outs, options)
        if isinstance(found, list):
            return found
        asked = found
    world, rank = ranks(group)
    view = gather_view(x, gather_dim, gather_size, world, rank)
    dim = gather_dim % x.dim()
    shapes = [(*view.whole[:-1], w.shape[1]) for w in weights]
    ys = _results(shapes, outs, [x, *weights, *biases])
    if 0 in (view.batch, view.rows, view.depth):
        return _nothing_to_move(x, view, ys, biases, return_gathered)
    columns = world * sum(w.shape[1] for w in weights)
    rows, taken = view.batch * view.rows, backend is None and plan is None and (split, comm_sms) == (1, 0)
    problem = Problem("ag_gemm", rows, columns, view.depth, x.dtype, plan, split, comm_sms, open=taken)
    choice = _choose(x, view, group, check_backend(backend, MOVING), problem)
    comm_sms = choice.programs or comm_sms
    usual = default_plan(view, x.dtype, world, alone=len(weights) == 1 and not return_gathered)
    plan, split = choice.of(plan or (usual if choice.backend == "copy_engine" else PLAN), split)
    check_programs(choice.backend, comm_sms)
    if choice.backend == "serial":
        biased = tuple(b is not None for b in biases)
        call = partial(_serially, small.Again(), group, choice, view.whole, dim, biased)
        whole, went_by = call(x, *weights, *[b for b in biases if b is not None], *ys)
        said = serial_plan("ag_gemm", "gather", choice, world, rank, view.whole, x.dtype, went_by)
        remember(said, warn=choice.forced)
        if return_gathered:
            return [*ys, whole]
        small.keep(asked, group, went_by, call, ys, said, choice.forced)
        return ys

    shard = view.shard(x, dim)
    runtime = runtime_of(group)
    products = [
        Product(w, y.view(view.batch, view.rows, w.shape[1]), b) for w, y, b in zip(weights, ys, biases, strict=True)
    ]
    first = max(range(len(products)), key=lambda i: products[i].columns)
    whole = None
    if return_gathered:
        whole = torch.empty(view.whole, dtype=x.dtype, device=x.device)
        warm_copy(whole, runtime)
    largest, tma = products[first], by_tma(view, x.dtype)
    blocks = product_blocks(largest, view, runtime, tma, blocks_of(choice.config))
    rows_cut = split if view.along == "M" else None
    tail = tail_of(largest, view, runtime, blocks, choice.backend, tma=tma, split=rows_cut)
    kernel, grid, arguments = product_arguments(largest, shard, view, runtime, blocks=blocks, left_out=tail.left)
    compiled = compiled_kernel(kernel, view.along, plan, split, choice.backend, comm_sms)

    others = products[:first] + products[first + 1 :]

    def further(instance: Instance) -> list[KernelLaunch]:
        gathered = instance.buffer.view(view.batch, view.rows, view.depth)
        found = [] if largest.columns else arrivals_launches(instance)
        found += tail_launches(tail, largest, view, blocks, instance, kernel, arguments)
        found += [product_launch(product, gathered, view, runtime) for product in others if product.columns]
        return found if whole is None else [*found, copy_launch(gathered, whole)]

    def behind(instance: Instance) -> None:
        for each in further(instance):
            runtime.launch(each.kernel, each.grid, (), each.arguments, runtime.main_stream())

    warm_tail(tail, largest, view, runtime, blocks)
    if not largest.columns:
        warm_arrivals(runtime, x.device)
    for product in others:
        warm_product(product, view, runtime)
    results = ys if whole is None else [*ys, whole]
    repeat = asked.repeat(results, further) if asked is not None else None
    more: Callable[[Instance], None] | None = behind if others or whole is not None else None
    if more is None and tail.left:
        more = LastTiles(tail.left, behind)
    said = compiled.launch(grid, (), arguments, group=group, backend=choice.backend, behind=more, repeat=repeat)
    said = replace(said, operator="ag_gemm", considered=choice.considered, source=choice.source, tail=tail.left)
    remember(said, warn=choice.forced)
    if asked is not None:
        asked.keep(results, said, forced=choice.forced)
    return results


@without_autocast
def _serially(
    again: small.Again,
    group: Any,
    choice: Choice,
    shape: tuple[int, ...],
    dim: int,
    biased: tuple[bool, ...],
    *tensors: torch.Tensor,
) -> tuple[torch.Tensor, str]:
    """A collective, then the products; ``tensors``: x, the weights, the biases that there are, the results.

    Gives the gathered x, and what it went by.
    """
    x, *further = tensors
    count = len(biased)
    weights, biases, ys = further[:count], iter(further[count:-count]), further[-count:]
    whole, went_by = small.gather(group, choice, x, shape, dim, again=again)
    rows = whole.flatten(0, -2)
    for y, w, has_bias in zip(ys, weights, biased, strict=True):
        place = y.flatten(0, -2)
        if has_bias:  # added before the result is rounded
            torch.addmm(next(biases), rows, w, out=place)
        else:
            torch.mm(rows, w, out=place)
    return whole, went_by


def compiled_kernel(
    kernel: Any, along: str, plan: str, split: Split, backend: str = "copy_engine", comm_sms: int = 0
) -> CompiledKernel:
    """A GEMM kernel that gathers A along an axis."""
    return _compiled(kernel, along, plan, split, backend, comm_sms)


@cache
def _compiled(kernel: Any, along: str, plan: str, split: Split, backend: str, comm_sms: int) -> CompiledKernel:
    return compile(plan=plan, on=f"a[{along}]", split=split, backend=backend, comm_sms=comm_sms)(kernel)


def _choose(x: torch.Tensor, view: GatherView, group: Any, asked: str | None, problem: Problem) -> Choice:
    check_plan(problem.plan)
    reason, moved_bytes = "", math.prod(view.whole) * x.element_size()
    if x.dtype not in FUSED_DTYPES:
        reason = f"no kernel for {x.dtype}"
    elif not view.possible:
        reason = UNEVEN
    if reason and asked not in (None, SERIAL, AUTO):
        raise UsageError(f"{asked} is impossible here: {reason}", help='leave backend out, or backend="serial"')
    if reason and not hasattr(group, "overlap_runtime"):
        return Choice(SERIAL, ASKED if asked == SERIAL else reason, forced=asked != SERIAL)
    if reason:
        raise UsageError(f"a simulated group has no collectives, and no fused kernel takes this: {reason}")
    if asked == AUTO:
        return choose_auto(group, x, problem, moved_bytes)
    found = tuned_choice(group, x, problem) if asked is None else None
    return found or named(choose(group, x, moved_bytes, asked), asked, problem)


def _results(
    shapes: Sequence[tuple[int, ...]],
    outs: Sequence[torch.Tensor] | None,
    operands: Sequence[torch.Tensor | None],
) -> list[torch.Tensor]:
    x = operands[0]
    assert x is not None
    if outs is None:
        return [torch.empty(shape, dtype=x.dtype, device=x.device) for shape in shapes]
    if len(outs) != len(shapes):
        raise UsageError(f"{len(outs)} tensors in out for {len(shapes)} weights")
    check_operands((f"out {i}", y) for i, y in enumerate(outs))
    for i, (y, shape) in enumerate(zip(outs, shapes, strict=True)):
        if tuple(y.shape) != shape or y.dtype != x.dtype or y.device != x.device or not y.is_contiguous():
            raise UsageError(
                f"out {i} is {tuple(y.shape)} {y.dtype} on {y.device} with strides {y.stride()}",
                help=f"it must be {shape} {x.dtype} on {x.device}, contiguous",
            )
        if overlapping(y, (*operands, *outs[:i])):
            raise UsageError(
                f"out {i} shares memory with an operand or another result",
                help="pass memory of its own, or leave out= away",
            )
    return list(outs)


def _nothing_to_move(
    x: torch.Tensor, view: GatherView, ys: list[torch.Tensor], biases: Sequence[torch.Tensor | None], gathered: bool
) -> list[torch.Tensor]:
    """Results where the gathered tensor has no elements: empty sums, which every rank knows by itself."""
    for y, b in zip(ys, biases, strict=True):
        y.copy_(b.expand(y.shape)) if b is not None else y.zero_()
    return [*ys, torch.empty(view.whole, dtype=x.dtype, device=x.device)] if gathered else ys
