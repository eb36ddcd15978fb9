"""Sums that are made while the kernel runs: whether, and what the kernel leaves free for them.

    multiprocessors   tiles | tiles | ... | tiles | free: sums, as their summands arrive

A grid that fills the device and walks over tiles lets nothing run before it ends, so it gets fewer programs. Other grids make
room as their blocks end, and the lane of the sums is served first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from overlap import settings

from ..calls.resolve import Bound
from ..operator import Operator

if TYPE_CHECKING:
    from ..instance import Instance

Grid = tuple[int, int, int]


def asked_sums(operator: Operator) -> int | None:
    """Multiprocessors that the operator's kernel is asked to leave free; 0: sums follow the kernel; None: nobody asks."""
    if not any(comm.produced for comm in operator.comms):
        return 0
    asked = settings.get("sum_sms", operator.realization.sum_sms)
    return None if asked is None else int(asked)


def beside_sums(instance: Instance, bound: Bound, grid: Grid) -> tuple[Bound, Grid]:
    """The launch of a kernel with as many programs fewer as its sums need multiprocessors."""
    operator, units = instance.operator, instance.runtime.sm_count
    if not (instance.early and operator.programs is not None) or grid[1:] != (1, 1):
        return bound, grid
    each = -(-grid[0] // units)
    programs = min(grid[0], each * max(1, units - instance.sum_sms))
    if programs == grid[0] or any(bound.arguments[name] != grid[0] for name in operator.programs):
        return bound, grid
    return replace(bound, arguments=_counted(bound.arguments, operator.programs, programs)), (programs, 1, 1)


def _counted(arguments: Mapping[str, Any], names: tuple[str, ...], programs: int) -> dict[str, Any]:
    return {**arguments, **dict.fromkeys(names, programs)}
