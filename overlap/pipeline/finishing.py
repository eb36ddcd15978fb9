"""Schedules of a kernel whose tiles add what comes of the part that their rank keeps (`tile_sums`), proven over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from overlap.chunkplan.plan import CommPlan
from overlap.chunkplan.region import Box
from overlap.schedule.events import ItemSize
from overlap.schedule.machine import Machine
from overlap.schedule.model import AxisTiles, RankSchedule, TensorWrite
from overlap.schedule.pieces import Values
from overlap.schedule.runs import schedule_all
from overlap.schedule.steps import launch_steps
from overlap.schedule.tile_sums import finished
from overlap.schedule.verify import verify_schedule
from overlap.schedule.verify_steps import verify_steps


def finishing(
    plan: CommPlan,
    schedules: Sequence[RankSchedule],
    axes: Sequence[Sequence[AxisTiles]],
    *,
    writes: Sequence[TensorWrite],
    windows: Sequence[Mapping[str, Box]],
    ordered: bool,
    machine: Machine,
    itemsize: ItemSize,
) -> tuple[RankSchedule, ...]:
    """The schedules of ranks whose tiles can; of the others those given, behind which a sum kernel adds.

    Raises:
        ScheduleError: tiles would wait for each other in a circle, or add up something else than the plan says.
    """
    values = Values(plan)
    made = schedule_all(
        plan, (), axes, writes=writes, windows=windows, ordered=ordered, machine=machine, itemsize=itemsize, finish=True
    )
    tensor = writes[0].tensor
    pieces = [finished(plan, own, writes, windows[own.rank][tensor], values) for own in made]
    able = frozenset(rank for rank, found in enumerate(pieces) if found is not None)
    chosen = tuple(made[rank] if rank in able else own for rank, own in enumerate(schedules))
    verify_schedule(chosen, plan, (), axes, writes=writes, windows=windows, ordered=ordered, finish=able)
    added = [tuple(dict.fromkeys(piece for piece in found or () if piece is not None)) for found in pieces]
    verify_steps(
        [launch_steps(plan, r, produced=[tensor], finished=added[r]) for r in range(plan.world)], plan, [tensor]
    )
    return chosen
