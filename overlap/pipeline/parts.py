"""Schedules of the in-tile loops that wait for chunks, for one world and one set of sizes, verified over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from overlap.annotate.model import Axis, ProgramModel
from overlap.annotate.on import OnSpec
from overlap.annotate.ranged import ranged_loops
from overlap.chunkplan.plan import CommPlan
from overlap.schedule.events import ItemSize
from overlap.schedule.machine import Machine
from overlap.schedule.model import AxisTiles, RankSchedule
from overlap.schedule.ranges import range_reads, schedule_ranges
from overlap.schedule.verify import verify_schedule


def plan_parts(
    program: ProgramModel,
    ons: Sequence[OnSpec],
    plan: CommPlan,
    sizes: Mapping[str, int],
    block_of: Callable[[Axis], int],
    *,
    ordered: bool,
    machine: Machine | None = None,
    itemsize: ItemSize = 2,
) -> tuple[RankSchedule, ...]:
    """The parts of every rank's in-tile loops; none where no tensor is gathered along a range axis.

    Args:
        sizes: axis to global extent.
        block_of: block size of an axis, which names the parameter that holds it.
        machine, itemsize: as `overlap.schedule.runs.schedule_rank` has them.

    Raises:
        PlanError, ScheduleError: the plan cannot serve the loop.
    """
    ranged = {on.tensor: on.dim for on in ons if on.ranged}
    if not ranged:
        return ()
    first = next(on for on in ons if on.ranged)
    loop = ranged_loops(program.kernel, first.param, first.dim)[0]
    axis = replace(program.kernel.axis(loop.axis), block=loop.block)
    tiles = AxisTiles(axis.name, sizes[axis.name], block_of(axis))
    schedules = schedule_ranges(plan, ranged, tiles, ordered=ordered, machine=machine, itemsize=itemsize)
    verify_schedule(schedules, plan, range_reads(plan, ranged, axis.name), (tiles,), ordered=ordered)
    return schedules
