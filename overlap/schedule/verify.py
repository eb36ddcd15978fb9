"""The verifier behind the schedule: a permutation, every wait raised, every read waited for, and no deadlock.

The graph of the last check, for two ranks of a kernel that consumes and produces:

    rank 0   wait run 0 -> raise run 0 -> wait run 1 -> raise run 1      in source order
             wait run 0 -> wait run 1 -> raise run 0 -> raise run 1      in a flattened loop
    ops      op -> wait (a run waits for its flag), raise -> op (the op is held back by the run's counter; one that sends
             a sum by every run, since sums stand behind the kernel), op -> op (channel order and dependencies)

In a flattened or fused loop the compiler moves the wait of the next tile before the store and raise of
this one, so a schedule can be sound in one order and deadlock in the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product

from overlap.chunkplan.order import HappensBefore, happens_before, name_op
from overlap.chunkplan.plan import CommPlan, OpId
from overlap.chunkplan.region import Box, union_size
from overlap.chunkplan.verify import check_structure
from overlap.errors import ScheduleError, SourceSpan

from .cycles import find_cycle
from .depgraph import DependenceGraph, Made, TileSet, Windows, check_covered, dependence_graph
from .model import AxisTiles, RankSchedule, Run, TensorRead, TensorWrite
from .pieces import Values
from .runs import axes_of_ranks, windows_of_ranks
from .staying import making, staying, staying_box

Node = tuple[str, int, int]
"""``("op", rank, index)``, ``("wait", rank, run)`` or ``("raise", rank, run)``."""


def verify_schedule(
    schedules: Sequence[RankSchedule],
    plan: CommPlan,
    reads: Sequence[TensorRead],
    axes: Sequence[AxisTiles] | Sequence[Sequence[AxisTiles]],
    *,
    writes: Sequence[TensorWrite] = (),
    windows: Sequence[Windows] | None = None,
    flattened: bool = False,
    ordered: bool = True,
    early: bool = False,
    finish: Collection[int] = (),
) -> None:
    """Checks the schedules of all ranks, in rank order.

    Args:
        axes: the same for all ranks, or one tuple a rank.
        windows: one mapping a rank, as `schedule_all` takes them.
        flattened: check the order of a flattened loop, wait of run i+1 before raise of run i.
        ordered: flags are raised in stream order, so that one may stand for another.
        early: sums are made while kernels run, so that what a rank keeps is counted as well.
        finish: ranks whose tiles wait for what lands in their place (`tile_sums`).

    Raises:
        ScheduleError: names the rank, the run and, for a deadlock, the chain.
        PlanError: the plan is cyclic or malformed, or does not bring what tiles read.
        UnsupportedError: an operation on a written tensor that is no push.
    """
    if len(schedules) != plan.world:
        raise ScheduleError(f"{len(schedules)} schedules for plan {plan.name} of world {plan.world}")
    check_structure(plan)
    values = Values(plan)
    order = values.order
    by_rank, seen = axes_of_ranks(axes, plan.world), windows_of_ranks(windows, plan.world)
    for rank, schedule in enumerate(schedules):
        if schedule.rank != rank or schedule.world != plan.world or schedule.axes != by_rank[rank]:
            raise ScheduleError(
                f"rank {rank}: a schedule for rank {schedule.rank} of {schedule.world} on other axes, or out of order"
            )
        check_covered(plan, reads, schedule.axes, rank, seen[rank])
        _check_permutation(schedule)
        _check_flags(schedule, plan)
        graph = dependence_graph(
            plan,
            reads,
            schedule.axes,
            rank,
            writes=writes,
            windows=seen[rank],
            values=values,
            early=early,
            finish=rank in finish,
        )
        _check_waits(schedule, plan, graph, order if ordered else None)
        _check_counters(schedule, plan, graph)
        if writes:
            _check_making(schedule, plan, writes, seen[rank], values)
        else:
            _check_reading(schedule, graph)
    cycle = _cycle(schedules, plan, order, {write.tensor for write in writes}, flattened=flattened)
    if cycle:
        loop = cycle[:-1]
        start = loop.index(max(loop))  # a wait, the step at which a user sees it hang
        story = [*loop[start:], *loop[:start], loop[start]]
        what = "the flattened order of the tile loop" if flattened else "the order of runs"
        operations = [(rank, index) for kind, rank, index in story if kind == "op"]
        raise ScheduleError(
            f"deadlock in {what}: " + " comes after ".join(_in_words(plan, node) for node in story),
            where=plan.where(operations[0]) if operations else plan.where(),
            help="emit the loop unflattened" if flattened else "",
        )


def flatten_safe(schedules: Sequence[RankSchedule], plan: CommPlan, writes: Sequence[TensorWrite] = ()) -> bool:
    """Whether the tile loop may be flattened: no cycle where wait of run i+1 comes before raise of run i.

    Args:
        schedules: those of all ranks, sound in the order of the source (`verify_schedule`).

    Raises:
        PlanError: the plan is cyclic.
    """
    return not _cycle(schedules, plan, happens_before(plan), {write.tensor for write in writes}, flattened=True)


def _check_permutation(schedule: RankSchedule) -> None:
    """Runs follow each other and partition the grid; listed coordinates number each tile of their run once."""
    where = f"rank {schedule.rank}"
    grid = tuple(axis.count for axis in schedule.axes)
    total = 1
    for count in grid:
        total *= count
    position = 0
    for i, run in enumerate(schedule.runs):
        if run.first != position:
            raise ScheduleError(f"{where} run {i} starts at position {run.first}, the run before it ends at {position}")
        if len(run.origin) != len(grid) or len(run.counts) != len(grid):
            raise ScheduleError(f"{where} run {i} has a box of {len(run.origin)} axes, the grid has {len(grid)}")
        if not all(0 <= lo < lo + n <= end for lo, n, end in zip(run.origin, run.counts, grid, strict=True)):
            raise ScheduleError(
                f"{where} run {i} at {run.origin} of {run.counts} tiles is empty or leaves the grid {grid}"
            )
        for j, other in enumerate(schedule.runs[:i]):
            if _share_tiles(run, other):
                raise ScheduleError(f"{where} runs {j} and {i} both hold a tile: it would be computed twice")
        position += run.tiles
    if position != total:
        raise ScheduleError(f"{where} schedules {position} tiles of a grid of {total}: tiles are missing")
    if schedule.coordinates is None:
        return
    if len(schedule.coordinates) != total:
        raise ScheduleError(f"{where} lists coordinates of {len(schedule.coordinates)} tiles for a grid of {total}")
    for i, run in enumerate(schedule.runs):
        listed = schedule.coordinates[run.first : run.first + run.tiles]
        ends = tuple(lo + n for lo, n in zip(run.origin, run.counts, strict=True))
        for place in listed:
            if len(place) != len(grid) or not all(
                lo <= c < hi for c, lo, hi in zip(place, run.origin, ends, strict=True)
            ):
                raise ScheduleError(f"{where} run {i} lists tile {place}, which lies outside its box")
        if len(set(listed)) != run.tiles:
            raise ScheduleError(f"{where} run {i} lists a tile twice")


def _share_tiles(left: Run, right: Run) -> bool:
    return all(
        a < b + m and b < a + n for a, n, b, m in zip(left.origin, left.counts, right.origin, right.counts, strict=True)
    )


def _check_flags(schedule: RankSchedule, plan: CommPlan) -> None:
    """Every operation that lands here has a slot of its own, every wait names one of them and its count."""
    where = f"rank {schedule.rank}"
    landing = set(plan.arriving(schedule.rank))
    if set(schedule.slots) != landing:
        owner, index = min(set(schedule.slots) ^ landing)
        known = (owner, index) in landing
        raise ScheduleError(
            f"{where}: {name_op(plan, (owner, index))} lands here and has no flag slot"
            if known
            else f"{where}: rank {owner} operation {index} has a flag slot here and does not land here",
            where=plan.where((owner, index)) if known else None,
        )
    if sorted(schedule.slots.values()) != list(range(len(landing))):
        raise ScheduleError(f"{where}: {len(landing)} operations land here, with flag slots {schedule.slots}")
    for i, run in enumerate(schedule.runs):
        for wait in run.waits:
            if wait.op not in landing:
                owner, index = wait.op
                raise ScheduleError(
                    f"{where} run {i} waits for rank {owner} operation {index}, which never raises a flag here"
                )
            if wait.slot != schedule.slots[wait.op]:
                raise ScheduleError(
                    f"{where} run {i} waits for {name_op(plan, wait.op)} at slot {wait.slot}, "
                    f"whose flag is slot {schedule.slots[wait.op]}",
                    where=plan.where(wait.op),
                )
            if wait.count != 1:
                raise ScheduleError(
                    f"{where} run {i} waits for {wait.count} raises of {name_op(plan, wait.op)}, which raises once",
                    where=plan.where(wait.op),
                )
    channels = {channel for channel, _ in schedule.order}
    expected = {c: tuple(i for i, op in enumerate(plan.ops[schedule.rank]) if op.channel == c) for c in channels}
    if dict(schedule.order) != expected or sum(map(len, expected.values())) != len(plan.ops[schedule.rank]):
        raise ScheduleError(f"{where} runs its operations in another order than plan {plan.name}")


def _check_waits(schedule: RankSchedule, plan: CommPlan, graph: DependenceGraph, order: HappensBefore | None) -> None:
    """Every chunk that a tile of a run reads is waited for by the run, or implied by one that is."""
    for i, run in enumerate(schedule.runs):
        waited = [wait.op for wait in run.waits]
        for op in sorted(graph.needed(run.origin, run.counts)):
            if op not in waited and not _implied(op, waited, order):
                raise ScheduleError(
                    f"rank {schedule.rank} run {i} reads {plan.op(op).dst} without a wait for {name_op(plan, op)}",
                    where=plan.where(op),
                )


def _implied(op: OpId, waited: Sequence[OpId], order: HappensBefore | None) -> bool:
    return order is not None and any(order.before(op, later) for later in waited)


def _check_reading(schedule: RankSchedule, graph: DependenceGraph) -> None:
    """Tiles of own runs read nothing that arrives, and nobody else reads any of what they read."""
    if not any(run.own for run in schedule.runs):
        return
    boxes = [(run.origin, run.counts) for run in schedule.runs]
    held = [[chunk for chunk, sets in graph.own if any(s.meets(*box) for s in sets)] for box in boxes]
    for i, (run, box, own) in enumerate(zip(schedule.runs, boxes, held, strict=True)):
        if bool(own) != run.own or (run.own and graph.needed(*box)):
            what = ", ".join(map(str, own)) or "nothing"
            raise ScheduleError(
                f"rank {schedule.rank}: run {i} is {'' if run.own else 'not '}said to read nothing but what the rank holds, of "
                f"which it reads {what}, and {'some' if graph.needed(*box) else 'nothing'} of what arrives"
            )


def _check_making(
    schedule: RankSchedule, plan: CommPlan, writes: Sequence[TensorWrite], windows: Windows, values: Values
) -> None:
    """Tiles of own runs make nothing but what stays of the one tensor, and nobody else makes any of that."""
    if not any(run.own for run in schedule.runs):
        return
    tensor = writes[0].tensor
    box = staying_box(staying(plan, schedule.rank, tensor, values))
    window = windows.get(tensor) or Box.whole(plan.tensor(tensor).shape)
    found = making(schedule.runs, box, schedule.axes, writes, window)
    for i, (run, own) in enumerate(zip(schedule.runs, found, strict=True)):
        if run.own != own or any(write.tensor != tensor for write in writes):
            raise ScheduleError(
                f"rank {schedule.rank}: run {i} is {'' if run.own else 'not '}said to make nothing but what stays of {tensor}, "
                f"which is {box or 'nothing'}"
            )


def _check_counters(schedule: RankSchedule, plan: CommPlan, graph: DependenceGraph) -> None:
    """A counter for each chunk that is sent as tiles make it; exactly the tiles that do count into it, once each."""
    where = f"rank {schedule.rank}"
    for slot, made in enumerate(graph.made):
        if slot >= len(schedule.counters):
            raise ScheduleError(
                f"{where}: no counter says when {made.chunk} is whole, and {_reader(plan, made)}",
                where=_place(plan, made),
            )
        counter = schedule.counters[slot]
        if (counter.slot, counter.chunk, counter.ops) != (slot, made.chunk, made.ops):
            raise ScheduleError(
                f"{where}: counter {slot} (slot {counter.slot}) counts {counter.chunk} for "
                f"{', '.join(map(_op, counter.ops)) or 'nobody'}, it should count {made.chunk} for "
                f"{', '.join(map(_op, made.ops)) or 'a sum'}",
                where=_place(plan, made),
            )
        if counter.target != made.target:
            raise ScheduleError(
                f"{where}: counter {slot} of {made.chunk} waits for {counter.target} tiles, {made.target} make parts of it, "
                f"and then {_reader(plan, made)}",
                where=_place(plan, made),
            )
    if len(schedule.counters) > len(graph.made):
        raise ScheduleError(f"{where}: {len(schedule.counters)} counters for {len(graph.made)} chunks that tiles make")
    for i, run in enumerate(schedule.runs):
        for raised in run.raises:
            if not 0 <= raised.slot < len(graph.made):
                raise ScheduleError(f"{where} run {i} counts into counter {raised.slot}, which does not exist")
            if raised.count != 1:
                raise ScheduleError(f"{where} run {i} counts a tile {raised.count} times into counter {raised.slot}")
        slots = [raised.slot for raised in run.raises]
        for slot, made in enumerate(graph.made):
            writing = _tiles_writing(made.tiles, run)
            if slots.count(slot) != (1 if writing else 0) or writing not in (0, run.tiles):
                raise ScheduleError(
                    f"{where} run {i} counts its {run.tiles} tiles {slots.count(slot)} times into the counter of "
                    f"{made.chunk}, which {writing or 'none'} of them make parts of and {_reader(plan, made, '')}",
                    where=_place(plan, made),
                )


def _reader(plan: CommPlan, made: Made, it: str = " it") -> str:
    """Who reads a chunk when its tiles have made it, for messages."""
    return f"{name_op(plan, made.ops[0])} sends{it}" if made.ops else f"a sum adds{it}"


def _place(plan: CommPlan, made: Made) -> SourceSpan | None:
    return plan.where(made.ops[0] if made.ops else None)


def _tiles_writing(sets: Sequence[TileSet], run: Run) -> int:
    """Tiles of the run that are in at least one of the sets."""
    box = Box(run.origin, tuple(lo + n for lo, n in zip(run.origin, run.counts, strict=True)))
    found = (
        Box(tuple(lo for lo, _ in part), tuple(hi for _, hi in part))
        for tiles in sets
        for part in product(*tiles.intervals)
    )
    return union_size(part.intersect(box) for part in found)


def _cycle(
    schedules: Sequence[RankSchedule],
    plan: CommPlan,
    order: HappensBefore,
    produced: Collection[str],
    *,
    flattened: bool,
) -> list[Node]:
    """A cycle among operations, waits and raises of all ranks; [] if there is none."""
    before: dict[Node, list[Node]] = {
        ("op", *op): [("op", *pred) for pred, _ in preds] for op, preds in order.predecessors.items()
    }
    for schedule in schedules:
        rank = schedule.rank
        line = _program_order(rank, len(schedule.runs), flattened)
        before.update({node: [line[i - 1]] if i else [] for i, node in enumerate(line)})
        held = {counter.slot: counter.ops for counter in schedule.counters}
        for i, run in enumerate(schedule.runs):
            before["wait", rank, i] += [("op", *wait.op) for wait in run.waits]
            for raised in run.raises:
                for owner, index in held[raised.slot]:
                    before["op", owner, index].append(("raise", rank, i))
        partial = {op_id for ops in held.values() for op_id in ops}
        for index, op in enumerate(plan.ops[rank]):
            if op.src.tensor in produced and (rank, index) not in partial and line:
                before["op", rank, index].append(line[-1])
    return find_cycle(before)


def _program_order(rank: int, runs: int, flattened: bool) -> list[Node]:
    """Waits and raises of a rank in the order in which one program executes them."""
    if not flattened:
        return [(kind, rank, i) for i in range(runs) for kind in ("wait", "raise")]
    line: list[Node] = []
    for i in range(runs):
        line.append(("wait", rank, i))
        if i:
            line.append(("raise", rank, i - 1))
    return [*line, ("raise", rank, runs - 1)] if runs else line


def _op(op: OpId) -> str:
    return f"rank {op[0]} operation {op[1]}"


def _in_words(plan: CommPlan, node: Node) -> str:
    kind, rank, number = node
    return name_op(plan, (rank, number)) if kind == "op" else f"the {kind} of rank {rank} run {number}"
