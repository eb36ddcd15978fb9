"""Whether a launch accesses the rank's own part of its tensor where its caller has it, and what the kernel is given then.

    staged      own part -> window of symmetric memory | kernel reads window
    in place                                             kernel reads own part in the caller's tensor, the rest in the window

The kernel is the same either way (`codegen.passes.in_place`): it takes a second descriptor, of the own part, and where that part
lies in what it sees. Where nothing is accessed in place it is given the descriptor of the window again, and a place of zeros.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from overlap import settings
from overlap.chunkplan.region import Box
from overlap.schedule.staying import staying, staying_box

from ..calls.resolve import Bound
from ..calls.shapes import overlapping
from ..instance import Instance, LaunchTable
from ..memory.part import Part
from .givens import all_given
from .opening import layout_key

ALIGNED = 16
"""Bytes that a descriptor's address and its strides are multiples of."""


class Own(NamedTuple):
    """``taken``: the own part is accessed in place. ``arguments``: what the kernel is given, by parameter; ``callers``: those
    that lie in a tensor of the call."""

    taken: bool
    arguments: dict[str, Any]
    callers: frozenset[str] = frozenset()


NOTHING = Own(False, {})


class LastTiles:
    """Work behind a kernel that makes the ``left`` last of its tiles, and reads the gathered buffer for nothing else."""

    def __init__(self, left: int, enqueue: Callable[[Instance], None]) -> None:
        self.left = left
        self._enqueue = enqueue

    def __call__(self, instance: Instance) -> None:
        self._enqueue(instance)


def own_arguments(
    instance: Instance,
    table: LaunchTable,
    bound: Bound,
    given: Mapping[str, torch.Tensor],
    results: Mapping[str, torch.Tensor],
    behind: int | None = 0,
) -> Own:
    """What a kernel is given of the rank's own part, and whether that is accessed in place.

    Args:
        table: of the launch; without tiles there may be no descriptor.
        bound: the launch; its arguments name tensors in symmetric memory.
        given: what the call brings of inputs; ``results``: of results.
        behind: of the last tiles, those that a later launch makes of the gathered buffer; None: it reads all of that.
    """
    operator = instance.operator
    own, origin = operator.parameter("own"), operator.parameter("origin")
    if not own:
        return NOTHING
    (comm,) = operator.comms
    described = bound.arguments[comm.param]
    part = instance.parts[comm.tensor]
    if comm.produced:
        found = _results_part(instance, table, bound, results)
    else:
        found = _inputs_part(instance, table, bound, given, behind)
    if found is None:
        return Own(False, {own: described, origin: _place(instance, None, part)})
    view, box = found
    made = copy.copy(described)
    made.base, made.shape, made.strides = view, list(view.shape), _strides(view, part.tensor)
    return Own(True, {own: made, origin: _place(instance, box, part)}, frozenset((own,)))


def _place(instance: Instance, box: Box | None, part: Part) -> torch.Tensor:
    """Words that say where a box of the window lies in it: begin and end along each dimension; zeros for None."""
    key = ("own part", box)
    found: torch.Tensor | None = instance.prepared.get(key)
    if found is None:
        words = [0, 0] * part.window.ndim
        if box is not None:
            ends = zip(box.lo, box.hi, part.window.lo, strict=True)
            words = [end - start for lo, hi, start in ends for end in (lo, hi)]
        found = instance.prepared[key] = instance.workspace.table(words)
    return found


def _strides(view: torch.Tensor, window: torch.Tensor) -> list[int]:
    """Of a view for its descriptor; along a dimension of one element, where a tensor may say anything, the window's."""
    return [s if n > 1 else t for n, s, t in zip(view.shape, view.stride(), window.stride(), strict=True)]


def _results_part(
    instance: Instance, table: LaunchTable, bound: Bound, results: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, Box] | None:
    """What of a result is stored where it belongs: the view of the caller's tensor, and its box; None: nothing.

    That is what tiles make and nobody sends or adds to, where no tile makes a part of it and a part of anything else
    (`schedule.staying`). Tiles store it while others still read, so never in memory of an argument.
    """
    (comm,) = instance.operator.comms
    part, result = instance.parts[comm.tensor], results.get(comm.tensor)
    if not in_place_asked() or result is None or comm.adds or not any(run.own for run in table.schedule.runs):
        return None
    box = _staying(instance, part)
    if box is None or any(
        lo != at and d != comm.held for d, (lo, at) in enumerate(zip(box.lo, part.window.lo, strict=True))
    ):
        return None  # the kernel counts from where it begins along one dimension
    view = result[tuple(slice(a - o, b - o) for a, b, o in zip(box.lo, box.hi, part.held.lo, strict=True))]
    fits = described_as(bound.arguments[comm.param], part) and can_describe(view, part.tensor)
    return (view, box) if fits and not read_by(result, bound) else None


def _staying(instance: Instance, part: Part) -> Box | None:
    """What of a result stays where this rank makes it; None where that is nothing, or no box."""
    key = ("staying", part.name)
    if key not in instance.prepared:
        instance.prepared[key] = staying_box(staying(instance.plan, instance.runtime.rank, part.name))
    found: Box | None = instance.prepared[key]
    return found


def read_by(tensor: torch.Tensor, bound: Bound, but: str = "") -> bool:
    """Whether a tensor lies in memory of an argument of the launch, other than that of the parameter ``but``."""
    storage = tensor.untyped_storage().data_ptr()
    bases = (getattr(value, "base", value) for name, value in bound.arguments.items() if name != but)
    read = (base for base in bases if isinstance(base, torch.Tensor) and base.numel())
    return any(base.untyped_storage().data_ptr() == storage and overlapping(base, tensor) for base in read)


def _inputs_part(
    instance: Instance, table: LaunchTable, bound: Bound, given: Mapping[str, torch.Tensor], behind: int | None
) -> tuple[torch.Tensor, Box] | None:
    """What of an input is read where the caller has it: the view of the caller's tensor, and its box; None: nothing."""
    (comm,) = instance.operator.comms
    part, described = instance.parts[comm.tensor], bound.arguments[comm.param]
    if not in_place_asked() or not table.tiles or not described_as(described, part):
        return None
    if read_by(part.tensor, bound, but=comm.param):
        return None  # passed a second time, it is read in symmetric memory
    box = part.held.intersect(part.window)
    if box.empty:
        return None
    view = given[comm.tensor][part.inside(box)]
    blocks = tuple(described.block_shape)
    key = ("read in place", table, blocks, behind, layout_key(given), settings.get("given_bytes"))
    possible: bool | None = instance.prepared.get(key)
    if possible is None:
        alone = can_describe(view, part.tensor) and _nobody_else(instance, table, bound, box, blocks, behind)
        possible = instance.prepared[key] = alone and all_given(instance, given)
    return (view, box) if possible else None


def _nobody_else(
    instance: Instance, table: LaunchTable, bound: Bound, box: Box, blocks: tuple[int, ...], behind: int | None
) -> bool:
    """Whether all that read any of the rank's own part, ``box``, read nothing else at once, and are tiles of the kernel.

    Args:
        blocks: of the descriptor, which tiles load one of at a time.
        behind: as `own_arguments` has it.
    """
    operator = instance.operator
    (comm,) = operator.comms
    dim, window = comm.dim, instance.parts[comm.tensor].window
    across = all(d == dim or (box.lo[d], box.hi[d]) == (window.lo[d], window.hi[d]) for d in range(window.ndim))
    if not across or behind is None or operator.parameter("log"):
        return False
    if operator.taken_by is None:
        own = [run for run in table.schedule.runs if run.own]
        return bool(own) and all(run.first + run.tiles <= table.tiles - behind for run in own)
    _, block = operator.taken_by.sizes(bound.arguments)
    begin, end = box.lo[dim] - window.lo[dim], box.hi[dim] - window.lo[dim]
    whole = begin % block == 0 and (end % block == 0 or box.hi[dim] == window.hi[dim])
    return whole and block == blocks[dim] and not behind


def described_as(value: Any, part: Part) -> bool:
    """Whether a descriptor is of all that the kernel sees or makes of a tensor, dimension by dimension."""
    shape, strides = tuple(value.shape), tuple(value.strides)
    window = part.tensor
    return (
        getattr(value, "base", None) is not None
        and shape == tuple(window.shape)
        and all(n == 1 or s == t for n, s, t in zip(shape, strides, window.stride(), strict=True))
        and value.base.data_ptr() == window.data_ptr()
    )


def can_describe(view: torch.Tensor, window: torch.Tensor) -> bool:
    """Whether TMA takes a view of a caller's tensor: elements of its own, one behind the other, at an address and strides of
    multiples of 16 bytes. Dimensions may lie in memory in any order."""
    size, strides = view.element_size(), _strides(view, window)
    aligned = view.data_ptr() % ALIGNED == 0 and all(s > 0 and s * size % ALIGNED == 0 for s in strides[:-1])
    return view.numel() > 0 and view.dtype == window.dtype and strides[-1] == 1 and aligned


def in_place_asked() -> bool:
    """Whether the setting lets anything be accessed in place."""
    return bool(settings.get("in_place"))
