"""Parts of an in-tile loop: its blocks cut by last arrival, as tiles of a grid with one axis are.

    K = 136, 4 ranks, block 32, rank 1 (arrivals: own 1, then 2, 3, 0)
    block           0      1      2      3      4
    reads chunks    0     0 1    1 2    2 3     3
    parts           [2] waits 2     [3, 4] waits 3     [0, 1] waits 0

Every tile of the rank walks the same parts in this order. A block that straddles two chunks comes with the later of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from overlap.chunkplan.plan import CommPlan

from .events import ItemSize
from .machine import Machine
from .model import AxisTiles, RankSchedule, TensorRead
from .runs import schedule_all, schedule_rank


def range_reads(plan: CommPlan, tensors: Mapping[str, int], axis: str) -> tuple[TensorRead, ...]:
    """How blocks of a range axis read the tensors gathered along it.

    Args:
        tensors: the dimension of each that is ``axis``.
    """
    ranks = {spec.name: len(spec.shape) for spec in plan.tensors}
    return tuple(
        TensorRead(
            name,
            tuple(axis if d == dim else None for d in range(ranks[name])),
            tuple(False for _ in range(ranks[name])),
        )
        for name, dim in tensors.items()
    )


def schedule_range(
    plan: CommPlan,
    tensors: Mapping[str, int],
    axis: AxisTiles,
    rank: int,
    *,
    ordered: bool = True,
    machine: Machine | None = None,
    itemsize: ItemSize = 2,
) -> RankSchedule:
    """The parts of one rank's loop over ``axis``: a schedule whose tiles are the loop's blocks.

    Args:
        plan: what moves, other tensors included.
        tensors: the gathered tensors and the dimension of each that is ``axis``.
        ordered: flags are raised in stream order (`schedule_rank`).
        machine, itemsize: as `schedule_rank` has them.

    Raises:
        ScheduleError: the axis does not fit a tensor.
        PlanError: the plan is cyclic or malformed, or does not bring all of a tensor.
    """
    reads = range_reads(plan, tensors, axis.name)
    return schedule_rank(plan, reads, (axis,), rank, ordered=ordered, machine=machine, itemsize=itemsize)


def schedule_ranges(
    plan: CommPlan,
    tensors: Mapping[str, int],
    axis: AxisTiles,
    *,
    ordered: bool = True,
    machine: Machine | None = None,
    itemsize: ItemSize = 2,
) -> tuple[RankSchedule, ...]:
    """`schedule_range` for every rank."""
    reads = range_reads(plan, tensors, axis.name)
    return schedule_all(plan, reads, (axis,), ordered=ordered, machine=machine, itemsize=itemsize)
