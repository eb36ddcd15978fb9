"""Plans and schedules of a kernel for one world and one set of sizes, verified over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from overlap import settings
from overlap.annotate.model import Axis, ProgramModel
from overlap.annotate.on import OnSpec
from overlap.backends import backend as find_backend
from overlap.backends import backends
from overlap.backends.base import Realization
from overlap.backends.capabilities import Need, require
from overlap.backends.carriers import Carriers, moves_strided
from overlap.backends.ways import machine_of
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.collectives.direct import settled
from overlap.chunkplan.merge import merge_plans
from overlap.chunkplan.named import named_backends
from overlap.chunkplan.order import happens_before
from overlap.chunkplan.pins import pins_of
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.chunkplan.region import Box
from overlap.chunkplan.verify import verify_contributions, verify_plan
from overlap.chunkplan.window import kernel_window
from overlap.codegen import PlanText
from overlap.errors import UsageError
from overlap.schedule.cut import cut_along
from overlap.schedule.early import can_be_early, in_rounds
from overlap.schedule.events import ItemSize
from overlap.schedule.givens import needs_no_stage, sent_as_given
from overlap.schedule.interleave import levels, verify_interleaved, waits_of
from overlap.schedule.machine import machine_for
from overlap.schedule.model import AxisTiles, RankSchedule, TensorRead, TensorWrite
from overlap.schedule.pushes import pushes
from overlap.schedule.runs import schedule_all
from overlap.schedule.steps import Kernel, Step, launch_steps
from overlap.schedule.strided import narrow_by
from overlap.schedule.verify import flatten_safe, verify_schedule
from overlap.schedule.verify_steps import verify_steps
from overlap.schedule.words import word_steps

from .finishing import finishing
from .kinds import check_kind
from .parts import plan_parts

PROBED_WORLDS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Planned:
    """All communicated tensors of one kernel in one world: their merged plan, and what each rank's kernel works on.

    ``windows[rank]`` maps a tensor to the box of it that the rank's kernel sees or makes, ``axes[rank]`` are the
    rank's tile axes: the part of an all-to-all's axis that a rank works on is its own. ``parts`` are the schedules of
    in-tile loops that wait for chunks, one a rank, where there are any. ``flatten_safe`` is of a loop over all tiles: those that
    add what comes (`finishing`) have one of their own. ``free``: multiprocessors left to sums that are made
    while the kernel runs.
    """

    plan: CommPlan
    reads: tuple[TensorRead, ...]
    writes: tuple[TensorWrite, ...]
    windows: tuple[Mapping[str, Box], ...]
    axes: tuple[tuple[AxisTiles, ...], ...]
    schedules: tuple[RankSchedule, ...]
    flatten_safe: bool
    parts: tuple[RankSchedule, ...] = ()
    free: int = 0


def tile_axes(program: ProgramModel) -> tuple[Axis, ...]:
    """Tile axes in table order: declared axes that a pid map names."""
    mapped = {axis for axis, _ in program.kernel.regions[0].pid_map}
    return tuple(a for a in program.kernel.axes if a.block is not None and a.name in mapped)


def tensor_reads(program: ProgramModel, ons: Sequence[OnSpec]) -> tuple[TensorRead, ...]:
    """How tiles read the communicated inputs that they wait for before they begin."""
    names = {a.name for a in tile_axes(program)}
    reads = []
    for on in ons:
        for access in program.kernel.accesses:
            if access.tensor == on.param and access.mode == "read" and not (on.produced or on.ranged):
                wraps = access.wraps or (False,) * len(access.axes)
                read = TensorRead(on.tensor, tuple(a if a in names else None for a in access.axes), wraps)
                if read not in reads:
                    reads.append(read)
    return tuple(reads)


def tensor_writes(program: ProgramModel, ons: Sequence[OnSpec]) -> tuple[TensorWrite, ...]:
    """How tiles store the communicated results."""
    names = {a.name for a in tile_axes(program)}
    writes = []
    for on in ons:
        for access in program.kernel.accesses:
            if access.tensor == on.param and access.mode != "read" and on.produced:
                write = TensorWrite(on.tensor, tuple(a if a in names else None for a in access.axes))
                if write not in writes:
                    writes.append(write)
    return tuple(writes)


def plan_for(
    on: OnSpec, program: ProgramModel, text: PlanText, realization: Realization, world: int, sizes: Mapping[str, int]
) -> CommPlan:
    """The verified plan of one communicated tensor, for one world and one set of sizes (axis to global extent).

    Of one that a library carries out nothing is left for the launch (`settled`).
    """
    assert program.host is not None
    shape = tuple(sizes[d] for d in program.host.tensor(on.tensor).dims)
    plan = build_plan(
        text.text,
        world=world,
        tensor=TensorSpec(on.tensor, shape),
        dim=on.dim,
        to_dim=on.to_dim,
        split=realization.split,
        split_dim=cut_along(
            on.tensor,
            on.dim,
            on.to_dim if on.by_dim is None else on.by_dim,
            () if on.produced else tensor_reads(program, [on]),
        ),
        # What tiles make leaves by the rank that made it: a reader could not know when it is whole.
        direction="push" if on.produced else find_backend(realization.backend).default_direction,
        path=text.path,
    )
    verify_plan(plan)
    made = [on.tensor] if on.produced else []
    Carriers.of(realization.backend, [(text.text, on.produced)]).check(plan, str(on), made)
    check_kind(plan, on)
    if on.reduces:
        verify_contributions(plan, on.tensor)
    plan = settled(plan, produced=on.produced)
    if realization.strided and moves_strided(realization.backend, realization.strided, on.produced):
        # Memory orders and dtypes are known to a call; the same is proven of its plan then.
        limit, rows = settings.get("strided_row_bytes"), tuple(range(len(shape)))
        chosen = realization.strided
        return narrow_by(plan, on.tensor, chosen, order=rows, itemsize=2, limit=limit, produced=on.produced)
    return plan


def check_backend(ons: Sequence[OnSpec], plans: Sequence[PlanText], realization: Realization) -> Carriers:
    """Refuses a backend that cannot move the tensors whose plans leave operations to it; returns who carries out what.

    Raises:
        UnsupportedError: names the tensor and the backends that can, or two backends that do not go together.
    """
    for on, plan in zip(ons, plans, strict=True):
        moves = "result" if on.produced else "input"
        if None in named_backends(plan.text, plan.path):
            require(find_backend(realization.backend), Need(str(on), on.tensor, moves))
    return carriers_of(ons, plans, realization)


def check_programs(carriers: Carriers, realization: Realization) -> None:
    """Raises UsageError where programs are to move chunks that nobody takes."""
    mover = find_backend(carriers.moving or realization.backend)
    if realization.comm_sms and not mover.comm_sms:
        takers = " or ".join(other.name for other in backends.values() if other.comm_sms)
        raise UsageError(f"{mover.name} takes no multiprocessors: comm_sms must be 0", help=f"--backend {takers}")


def carriers_of(ons: Sequence[OnSpec], plans: Sequence[PlanText], realization: Realization) -> Carriers:
    """Who carries out which operations of the plans."""
    pairs = [(text.text, on.produced) for on, text in zip(ons, plans, strict=True)]
    return Carriers.of(realization.backend, pairs, realization.strided)


def plan_launch(
    program: ProgramModel,
    ons: Sequence[OnSpec],
    plans: Sequence[PlanText],
    realization: Realization,
    world: int,
    sizes: Mapping[str, int],
    block_of: Callable[[Axis], int],
    itemsize: ItemSize = 2,
) -> Planned:
    """Plans, windows, schedules and steps of every rank, each verified.

    Args:
        sizes: axis to global extent.
        block_of: block size of a tile axis.
        itemsize: bytes of an element of the communicated tensors, of all or of each.

    Raises:
        PlanError, ScheduleError, UnsupportedError: the plans cannot serve the kernel, or each other.
    """
    single = [plan_for(on, program, text, realization, world, sizes) for on, text in zip(ons, plans, strict=True)]
    plan = merge_plans(single)
    carriers = carriers_of(ons, plans, realization)
    produced = tuple(on.tensor for on in ons if on.produced)
    plan, free = _in_rounds(plan, produced, carriers, realization)
    early = free > 0
    windows = tuple(
        {on.tensor: kernel_window(plan, on.tensor, on.kind, on.produced, rank) for on in ons} for rank in range(world)
    )
    axes = tuple(
        tuple(
            AxisTiles(a.name, _extent(program, ons, a.name, windows[rank], sizes), block_of(a))
            for a in tile_axes(program)
        )
        for rank in range(world)
    )
    reads, writes = tensor_reads(program, ons), tensor_writes(program, ons)
    ordered = carriers.ordered(plan)
    machine = machine_for(world, plan.mesh, realization.machine, stretched=True)
    machine = machine_of(machine, plan, carriers, produced, realization.comm_sms)
    schedules = schedule_all(
        plan,
        reads,
        axes,
        writes=writes,
        windows=windows,
        ordered=ordered,
        machine=machine,
        itemsize=itemsize,
        early=early,
    )
    verify_schedule(schedules, plan, reads, axes, writes=writes, windows=windows, ordered=ordered, early=early)
    stored, moved = carriers.stored(plan, produced), carriers.moved(plan, produced)
    steps = [
        word_steps(plan, rank, produced)
        if carriers.words
        else launch_steps(plan, rank, produced=produced, stores=stored, moves=moved, early=early)
        for rank in range(world)
    ]
    for rank, schedule in enumerate(schedules) if carriers.storing else ():
        pushes(schedule, plan, writes, windows[rank][produced[0]], stored)
    if not carriers.words:  # nothing is raised, waited for or credited
        verify_steps(steps, plan, produced=produced)
        own = [any(run.own for run in schedule.runs) for schedule in schedules]
        if any(own) and not (stored or moved):
            in_place = partial(_in_place, plan, produced=produced, early=early)
            verify_steps(
                [in_place(rank) if own[rank] else steps[rank] for rank in range(world)], plan, produced=produced
            )
    safe = flatten_safe(schedules, plan, writes)
    if realization.tile_sums and writes and not reads and carriers.chosen == "copy_engine":
        schedules = finishing(
            plan,
            schedules,
            axes,
            writes=writes,
            windows=windows,
            ordered=ordered,
            machine=machine,
            itemsize=itemsize,
        )
    parts = plan_parts(program, ons, plan, sizes, block_of, ordered=ordered, machine=machine, itemsize=itemsize)
    if carriers.moving is not None and find_backend(carriers.moving).inline:
        level = levels(happens_before(plan))
        moves = [next(step.moves for step in own if isinstance(step, Kernel)) for own in steps]
        walked = [[schedules[rank], *parts[rank : rank + 1]] for rank in range(world)]
        verify_interleaved(plan, moves, [waits_of(*given, level) for given in zip(walked, moves, strict=True)])
    return Planned(plan, reads, writes, windows, axes, schedules, safe, parts, free)


def _in_place(plan: CommPlan, rank: int, produced: Sequence[str], early: bool) -> tuple[Step, ...]:
    """The steps of a launch whose tiles access what is the rank's own in its caller's tensors, as far as they can."""
    if produced:
        return launch_steps(plan, rank, produced=produced, early=early, in_place=True)
    given = sent_as_given(plan, rank)
    possible = needs_no_stage(plan, rank, range(len(plan.ops[rank])), given)
    return launch_steps(plan, rank, given=given, in_place=possible)


def _in_rounds(
    plan: CommPlan, produced: tuple[str, ...], carriers: Carriers, realization: Realization
) -> tuple[CommPlan, int]:
    """The plan in the order that serves sums beside the kernel, and the multiprocessors that they get; 0: they follow it."""
    # Beside tiles that add nothing runs.
    asked = 0 if realization.tile_sums else settings.get("sum_sms", realization.sum_sms)
    if not (produced and asked):  # None: it is for whoever launches to offer some
        return plan, 0
    rounds = in_rounds(plan, produced)
    early = can_be_early(rounds, produced, carriers.stored(rounds, produced))
    return (rounds, int(asked)) if early else (plan, 0)


def _extent(
    program: ProgramModel, ons: Sequence[OnSpec], axis: str, windows: Mapping[str, Box], sizes: Mapping[str, int]
) -> int:
    """Elements of an axis that the rank's kernel works on: its part, where an all-to-all gives it one."""
    assert program.host is not None
    for on in ons:
        if on.local == axis:
            d = program.host.tensor(on.tensor).dims.index(axis)
            return windows[on.tensor].hi[d] - windows[on.tensor].lo[d]
    return sizes[axis]


def probe(
    program: ProgramModel,
    ons: Sequence[OnSpec],
    plans: Sequence[PlanText],
    realization: Realization,
    world: int | None,
) -> bool:
    """Plans small launches, so that plans that cannot serve the kernel are refused at compile time.

    The sizes make ragged shards; the same checks run again for the real sizes at the first call.

    Args:
        world: the world the module is pinned to, or None.

    Returns:
        whether the tile loop may be flattened: in that order no ranks wait for each other in a circle.
    """
    host = program.host
    assert host is not None
    pins = [pins_of(text.text, text.path, on.tensor) for on, text in zip(ons, plans, strict=True)]
    pinned = [pin.world for pin in pins if pin.world is not None]
    worlds = [world] if world is not None else pinned[:1] or list(PROBED_WORLDS)
    safe = True
    for size in worlds:
        sizes = {d: 3 * size + 2 + 5 * i for i, d in enumerate(sorted(_axes(program)))}
        for on, pin in zip(ons, pins, strict=True):
            dims = host.tensor(on.tensor).dims
            if pin.shape is not None and len(pin.shape) == len(dims):
                sizes.update({d: n for d, n in zip(dims, pin.shape, strict=True) if n is not None})
        planned = plan_launch(program, ons, plans, realization, size, sizes, lambda axis: 2)
        safe = safe and planned.flatten_safe
    return safe


def _axes(program: ProgramModel) -> set[str]:
    assert program.host is not None
    named = {d for t in (*program.host.inputs, *program.host.outputs) for d in t.dims}
    return named | {a.name for a in program.kernel.axes}
