"""When everything of one launch would happen on a machine: a plan and schedules, given times by the event model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from overlap.annotate.model import ProgramModel
from overlap.chunkplan.links import Links
from overlap.chunkplan.plan import CommPlan
from overlap.schedule.carried import Carried, WayOf, by_sums, carried
from overlap.schedule.events import simulate
from overlap.schedule.machine import Machine
from overlap.schedule.model import AxisTiles, RankSchedule
from overlap.schedule.product import itemsize_of
from overlap.schedule.tile_sums import adding_seconds
from overlap.schedule.timeline import Timeline
from overlap.schedule.work import TileRun, Work, work_of_schedules

from .planning import Planned


def timeline_of(
    program: ProgramModel,
    planned: Planned,
    machine: Machine,
    *,
    sizes: Mapping[str, int],
    dtype: str = "fp16",
    tile: float | None = None,
    links: Links | None = None,
    ways: WayOf | None = None,
    in_place: bool = False,
) -> Timeline:
    """The predicted timeline of one launch.

    Args:
        sizes: axis to global extent, as the plans were made for.
        dtype: of the tensors.
        tile: seconds that a tile takes; None: `tile_seconds`.
        links: instead of the machine's own.
        ways: who carries operations out; None: lanes all.
        in_place: the kernel can access what is the rank's own in its caller's tensors (`codegen.passes.in_place`).

    Raises:
        PlanError: the machine has not that many ranks, no link between two of them, no rate for the dtype, or does not say how
            fast programs copy.
    """
    seconds = tile_seconds(program, planned, machine, sizes=sizes, dtype=dtype) if tile is None else tile
    return timeline_in_tiles(
        planned.plan,
        planned.schedules,
        planned.parts,
        machine,
        dtype=dtype,
        tile=seconds,
        links=links,
        free=planned.free,
        ways=ways,
        in_place=in_place,
    )


def timeline_in_tiles(
    plan: CommPlan,
    schedules: Sequence[RankSchedule],
    parts: Sequence[RankSchedule],
    machine: Machine,
    *,
    dtype: str,
    tile: float,
    links: Links | None = None,
    free: int = 0,
    ways: WayOf | None = None,
    in_place: bool = False,
) -> Timeline:
    """`timeline_of` schedules alone: of all ranks, and of the parts of a loop that waits, where there is one.

    Args:
        free: units left to sums that are made while tiles run.
        in_place: as `timeline_of` has it.
    """
    if free:
        machine = machine.with_free(free)
    itemsize = itemsize_of(dtype)
    if ways is None:
        found = Carried(machine, by_sums(plan, machine))
    else:
        found = carried(plan, machine, ways, itemsize=itemsize)
    machine = found.machine
    adding = adding_seconds([axis.block for axis in schedules[0].axes], itemsize, machine) if schedules else 0.0
    work = work_of_schedules(plan, schedules, tile, free, in_place, adding)
    if parts:
        work = tuple(_in_parts(plan, parts[rank], own, tile, machine.units) for rank, own in enumerate(work))
    return simulate(plan, machine, found.slowed(work), itemsize=itemsize, links=links, carries=found.carries)


def tile_seconds(
    program: ProgramModel, planned: Planned, machine: Machine, *, sizes: Mapping[str, int], dtype: str = "fp16"
) -> float:
    """`tile_seconds_in` the tile axes of rank 0."""
    return tile_seconds_in(program, planned.axes[0], machine, sizes=sizes, dtype=dtype)


def tile_seconds_in(
    program: ProgramModel,
    axes: Sequence[AxisTiles],
    machine: Machine,
    *,
    sizes: Mapping[str, int],
    dtype: str = "fp16",
) -> float:
    """How long a tile takes that multiplies and adds once for each of its elements and each step of its range axes.

    That is a product's tile; for other kernels it is a guess. Never less than the tile's share of what the host entry's
    tensors take to be read and written once.
    """
    assert program.host is not None
    tensors = (*program.host.inputs, *program.host.outputs)
    elements = sum(math.prod(sizes[axis] for axis in tensor.dims) for tensor in tensors)
    steps = math.prod(sizes[axis.name] for axis in program.kernel.axes if axis.block is None)
    return tile_seconds_of(axes, machine, steps=steps, elements=elements, dtype=dtype)


def tile_seconds_of(
    axes: Sequence[AxisTiles], machine: Machine, *, steps: int, elements: int, dtype: str = "fp16"
) -> float:
    """How long a tile of a grid takes: a product over ``steps``, with ``elements`` read and written by all tiles together."""
    moved = elements * itemsize_of(dtype)
    tiles = math.prod(axis.count for axis in axes)
    work = 2 * math.prod(axis.block for axis in axes) * steps
    waves = max(1, -(-tiles // machine.units))
    return max(work * machine.units / machine.rate(dtype), moved / machine.memory / waves)


def _in_parts(plan: CommPlan, part: RankSchedule, work: Work, seconds: float, units: int) -> Work:
    """The work of tiles that wait inside their loop: the first wave does one part of it after another, the rest waits no more.

    Tiles that send something on besides are taken as waiting for every part before they begin, which is late.
    """
    if any(run.feeds or run.waits for run in work.runs):
        every = tuple(dict.fromkeys(wait.op for run in part.runs for wait in run.waits))
        return Work(tuple(replace(run, waits=tuple(dict.fromkeys((*run.waits, *every)))) for run in work.runs))
    first = min(work.tiles, units)
    blocks = sum(run.tiles for run in part.runs)
    runs = []
    for number, run in enumerate(part.runs):
        waits = tuple(dict.fromkeys(wait.op for wait in run.waits))
        chunk = "" if run.chunk is None else str(plan.op(run.chunk).dst)
        label = f"part {number} of the first {first} tiles: {run.tiles} of {blocks} steps over {part.axes[0].name}"
        runs.append(TileRun(first, seconds * run.tiles / blocks, waits, (), label, chunk, run.chunk, run.peer))
    if work.tiles > first:
        runs.append(TileRun(work.tiles - first, seconds, label=f"the other {work.tiles - first} tiles"))
    return Work(tuple(runs))
