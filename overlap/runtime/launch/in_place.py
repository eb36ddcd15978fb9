"""Whether a launch accesses the rank's own part of its tensor where its caller has it, and what the kernel is given then.

    staged      own part -> window of symmetric memory | kernel reads window
    in place                                             kernel reads own part in the caller's tensor, the rest in the window

The kernel is the same either way (`codegen.passes.in_place`): it takes a second descriptor, of the own part, and where that part
lies in what it sees. Where nothing is accessed in place it is given the descriptor of the window again, and a place of zeros.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from overlap import settings
from overlap.chunkplan.region import Box

from ..calls.resolve import Bound
from ..instance import Instance, LaunchTable
from ..memory.part import Part

ALIGNED = 16
"""Bytes that a descriptor's address and its strides are multiples of."""


class Own(NamedTuple):
    """``taken``: the own part is accessed in place. ``arguments``: what the kernel is given, by parameter; ``callers``: those
    that lie in a tensor of the call."""

    taken: bool
    arguments: dict[str, Any]
    callers: frozenset[str] = frozenset()


NOTHING = Own(False, {})


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
    """What of a result is stored where it belongs: the view of the caller's tensor, and its box; None: nothing."""
    return None


def _inputs_part(
    instance: Instance, table: LaunchTable, bound: Bound, given: Mapping[str, torch.Tensor], behind: int | None
) -> tuple[torch.Tensor, Box] | None:
    """What of an input is read where the caller has it: the view of the caller's tensor, and its box; None: nothing."""
    return None


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
    """Whether TMA takes a view of a caller's tensor: its address and strides, each of these a multiple of the one inside it."""
    size = view.element_size()
    strides = _strides(view, window)
    if view.dtype != window.dtype or view.data_ptr() % ALIGNED or strides[-1] != 1 or not view.numel():
        return False
    outer = strides[-2::-1]
    inner, reach = 1, view.shape[-1]
    for stride, extent in zip(outer, view.shape[-2::-1], strict=True):
        if stride * size % ALIGNED or stride % inner or stride < reach:
            return False
        inner, reach = stride, stride * extent
    return True


def in_place_asked() -> bool:
    """Whether the setting lets anything be accessed in place."""
    return bool(settings.get("in_place"))
