"""The verifier behind `steps`: all ranks' launch steps obey the protocol, checked without running them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.verify import check_structure
from overlap.errors import ScheduleError

from .cycles import find_cycle
from .moves import behind_another, moves_of
from .pieces import Values, check_produced
from .steps import (
    Await,
    Branch,
    Copy,
    Credit,
    Entry,
    Fork,
    Gather,
    Hold,
    Join,
    Kernel,
    Raise,
    Stage,
    Step,
    Sum,
    Whole,
    directions,
)
from .verify_givens import check_given
from .verify_sums import Produced, check_holds, check_sums

MAIN = -1
"""The main stream, where a lane is asked for."""


def verify_steps(
    steps: Sequence[Sequence[Step]], plan: CommPlan, produced: Collection[str] = (), *, blocking: bool = False
) -> None:
    """Checks the steps of all ranks, in rank order, for one launch of ``plan``.

    On each rank: one entry first, with the waits and resets the plan needs; lanes forked before use and joined after it;
    every operation of the rank copied once, in its channel and behind all it depends on, its flag raised behind it (by the
    kernel's own programs: in channel order, awaiting all that the plan says);
    one kernel, behind a stage of what the entry does not stage; a chunk that tiles make held back until it is whole, a sum that
    is sent on added up before; everything the rank ends with summed once; one credit for each peer behind the last read.
    Across ranks: no cycle of waits.

    Args:
        produced: tensors of the plan that the kernel writes.
        blocking: also no cycle where each host waits for a kernel to end before it enqueues more
            (``CUDA_LAUNCH_BLOCKING=1``).

    Raises:
        ScheduleError: names the rank, the step and, for a deadlock, the chain.
        PlanError: the plan is malformed; with ``produced`` also cyclic.
        UnsupportedError: an operation on a produced tensor that is no push.
    """
    check_structure(plan)
    if len(steps) != plan.world:
        raise ScheduleError(f"launch steps of {len(steps)} ranks for plan {plan.name} of world {plan.world}")
    check_produced(plan, produced)
    values = Values(plan) if produced else None
    for rank, own in enumerate(steps):
        early = any(isinstance(step, Whole) for step in own)
        made = Produced.of(plan, rank, produced, values, early)
        moving = any(isinstance(step, Kernel) and step.moves for step in own)
        _check_entry(own, plan, rank, bool(made.own if early else made.partial), moving)
        check_lanes(own, rank)
        check_copies(own, plan, rank)
        check_given(own, plan, rank, produced)
        check_holds(own, rank, made)
        check_sums(own, rank, made)
        _check_credits(own, plan, rank, produced)
    check_progress(steps, plan, produced, blocking)


def _check_entry(steps: Sequence[Step], plan: CommPlan, rank: int, made: bool, moving: bool) -> None:
    pulls, _ = directions(plan)
    entries = [step for step in steps if isinstance(step, Entry)]
    if len(entries) != 1 or steps[0] is not entries[0]:
        raise ScheduleError(f"rank {rank}: a launch begins with its one entry step, here are {len(entries)}")
    if plan.world > 1 and not entries[0].wait_done:
        raise ScheduleError(f"rank {rank}: the entry overwrites its shard without waiting for the peers' done credits")
    if entries[0].ready != pulls:
        raise ScheduleError(
            f"rank {rank}: the entry {'exchanges' if entries[0].ready else 'does not exchange'} ready, and the plan "
            f"{'pulls' if pulls else 'does not pull'}"
        )
    if entries[0].counters != (made or moving):
        raise ScheduleError(
            f"rank {rank}: the entry {'resets' if entries[0].counters else 'does not reset'} counters, and "
            + (
                "its kernel counts moves"
                if moving
                else f"tiles of the rank make {'' if made else 'no '}chunks that are sent"
            )
        )
    kernels = sum(isinstance(step, Kernel) for step in steps)
    if kernels != 1:
        raise ScheduleError(f"rank {rank}: {kernels} kernels in a launch")


def _lane(step: Step) -> int:
    """The stream that a step is enqueued on; of a fork that which it goes on behind."""
    if isinstance(step, Await | Hold | Whole | Gather | Copy | Raise):
        return step.lane
    if isinstance(step, Branch):
        return step.behind
    return step.lane if isinstance(step, Credit | Sum) and step.lane is not None else MAIN


def check_lanes(steps: Sequence[Step], rank: int) -> None:
    """Forked before use, again only behind a sum, and joined once behind the last use."""
    forked: dict[int, int] = {}
    behind: dict[tuple[int, int], int] = {}
    joined: set[int] = set()
    sums: dict[int, int] = {}
    for step in steps:
        if isinstance(step, Branch):
            source, lane = step.behind, step.lane
            if lane not in forked or lane in joined or behind.get((lane, source)) == sums.get(source, 0):
                raise ScheduleError(f"rank {rank}: lane {lane} goes on behind lane {source} twice, or is not open")
            behind[lane, source] = sums.get(source, 0)
        if isinstance(step, Sum):
            sums[_lane(step)] = sums.get(_lane(step), 0) + 1
        elif isinstance(step, Fork):
            if step.lane in joined or forked.get(step.lane) == sums.get(MAIN, 0):
                raise ScheduleError(f"rank {rank}: lane {step.lane} is forked twice, or behind its join")
            forked[step.lane] = sums.get(MAIN, 0)
        elif isinstance(step, Join):
            if step.lane not in forked or step.lane in joined:
                raise ScheduleError(f"rank {rank}: lane {step.lane} is joined without a fork, or twice")
            joined.add(step.lane)
        if not isinstance(step, Fork | Join) and _lane(step) != MAIN:
            if _lane(step) not in forked:
                raise ScheduleError(f"rank {rank}: {step} on lane {_lane(step)} before its fork")
            if _lane(step) in joined:
                raise ScheduleError(f"rank {rank}: {step} on lane {_lane(step)} behind its join")
    if set(forked) != joined:
        lane = min(set(forked) - joined)
        raise ScheduleError(f"rank {rank}: lane {lane} is never joined, so the call would return before it ends")


def check_copies(steps: Sequence[Step], plan: CommPlan, rank: int, lanes: Mapping[int, int] | None = None) -> None:
    """Every operation of the rank copied once, in its channel and behind what it depends on, its flag raised behind it.

    ``lanes``: by channel, the lane that carries it out; a lane each, of the same number, where it is None.
    """
    summed: set[OpId] = set()
    behind: dict[int, set[OpId]] = {}
    copied: dict[OpId, int] = {}
    raised: set[OpId] = set()
    moved = {move.op for step in steps if isinstance(step, Kernel) for move in step.moves}
    for step in steps:
        if isinstance(step, Kernel):
            for op_id in step.stores:
                op = _find(plan, op_id, rank)
                if op_id[0] != rank or op_id in copied or op.depends:
                    raise ScheduleError(
                        f"rank {rank}: the kernel stores {name_op(plan, op_id)}, which is not its own, is stored twice or "
                        "waits",
                        where=plan.where(op_id),
                    )
                copied[op_id] = MAIN
                raised.add(op_id)
            _check_moves(step, plan, rank, copied)
            copied.update((move.op, MAIN) for move in step.moves)
            raised.update(move.op for move in step.moves)
        elif isinstance(step, Sum):
            added = {op_id for piece in step.pieces for op_id in piece.summands if op_id is not None}
            (summed if step.lane is None else behind.setdefault(step.lane, set())).update(added)
            for op_id in step.stores:
                op = _find(plan, op_id, rank)
                if op_id[0] != rank or op_id in copied or not added.issuperset(op.depends):
                    raise ScheduleError(
                        f"rank {rank}: a sum of {step.tensor} stores {name_op(plan, op_id)}, which is not its own, is stored "
                        "twice or waits for more than the sum does",
                        where=plan.where(op_id),
                    )
                copied[op_id] = MAIN
                raised.add(op_id)
        elif isinstance(step, Fork):
            behind.setdefault(step.lane, set()).update(summed)
        elif isinstance(step, Branch):
            behind.setdefault(step.lane, set()).update(behind.get(step.behind, ()))
        elif isinstance(step, Gather):
            for op_id in step.ops:
                if _find(plan, op_id, rank).dst_rank != rank:
                    raise ScheduleError(
                        f"rank {rank}: lane {step.lane} waits for {name_op(plan, op_id)}, which lands elsewhere",
                        where=plan.where(op_id),
                    )
            behind.setdefault(step.lane, set()).update(step.ops)
        elif isinstance(step, Await):
            op = _find(plan, step.op, rank)
            if step.rank != op.dst_rank:
                raise ScheduleError(
                    f"rank {rank}: lane {step.lane} awaits {name_op(plan, step.op)} at rank {step.rank}, "
                    f"and it lands at rank {op.dst_rank}",
                    where=plan.where(step.op),
                )
            behind.setdefault(step.lane, set()).add(step.op)
        elif isinstance(step, Copy):
            op = _find(plan, step.op, rank)
            wanted = op.channel if lanes is None else lanes.get(op.channel)
            if step.op[0] != rank or step.op in copied or step.lane != wanted:
                raise ScheduleError(
                    f"rank {rank}: lane {step.lane} copies {name_op(plan, step.op)}, which rank {step.op[0]} copies once, "
                    f"in channel {op.channel}",
                    where=plan.where(step.op),
                )
            before = behind.setdefault(step.lane, set())
            ahead = behind_another(plan, step.op, moved) if moved else None
            for dep in (*op.depends, *((ahead,) if ahead is not None else ())):
                if dep not in before:
                    raise ScheduleError(
                        f"rank {rank}: lane {step.lane} copies {name_op(plan, step.op)} without awaiting "
                        f"{name_op(plan, dep)}",
                        where=plan.where(step.op),
                    )
            later = [
                i
                for (_, i), lane in copied.items()
                if lane == step.lane and i > step.op[1] and plan.op((rank, i)).channel == op.channel
            ]
            if later:
                raise ScheduleError(
                    f"rank {rank}: lane {step.lane} copies {name_op(plan, step.op)} behind "
                    f"{name_op(plan, (rank, later[0]))}",
                    where=plan.where(step.op),
                )
            copied[step.op] = step.lane
            before.add(step.op)
        elif isinstance(step, Raise):
            if copied.get(step.op) != step.lane or step.op in raised:
                raise ScheduleError(
                    f"rank {rank}: lane {step.lane} raises the flag of {name_op(plan, step.op)} without its copy before "
                    "it, or twice",
                    where=plan.where(step.op),
                )
            raised.add(step.op)
    for index in range(len(plan.ops[rank])):
        for kind, found in (("copied", copied), ("raised", raised)):
            if (rank, index) not in found:
                raise ScheduleError(
                    f"rank {rank}: {name_op(plan, (rank, index))} is never {kind}", where=plan.where((rank, index))
                )


def _check_moves(kernel: Kernel, plan: CommPlan, rank: int, copied: Collection[OpId]) -> None:
    """Every operation once, in the order of its channel, behind what it depends on and what touches the same memory."""
    if not kernel.moves:
        return
    moved = {move.op for move in kernel.moves}
    wanted = {move.op: set(move.awaits) for move in moves_of(plan, rank, moved=moved)}
    seen: dict[int, int] = {}
    for move in kernel.moves:
        op = _find(plan, move.op, rank)
        if move.op not in wanted or move.op in copied:
            raise ScheduleError(
                f"rank {rank}: the kernel moves {name_op(plan, move.op)}, which is not its own, or twice",
                where=plan.where(move.op),
            )
        if seen.setdefault(op.channel, -1) > move.op[1]:
            raise ScheduleError(
                f"rank {rank}: the kernel moves {name_op(plan, move.op)} behind {name_op(plan, (rank, seen[op.channel]))}",
                where=plan.where(move.op),
            )
        seen[op.channel] = move.op[1]
        missing = wanted.pop(move.op) - set(move.awaits)
        if missing:
            raise ScheduleError(
                f"rank {rank}: the kernel moves {name_op(plan, move.op)} without awaiting {name_op(plan, min(missing))}",
                where=plan.where(move.op),
            )


def _check_credits(steps: Sequence[Step], plan: CommPlan, rank: int, produced: Collection[str]) -> None:
    _, pushes = directions(plan)
    # What lanes send of what tiles make only the rank itself writes.
    reading = {op.channel for op in plan.ops[rank] if op.src.tensor not in produced}
    given: list[int] = []
    open_lanes: set[int] = set()
    kernel_done = False
    copies_left = [step.op for step in steps if isinstance(step, Copy)]
    moves_left = sum(len(step.moves) for step in steps if isinstance(step, Kernel))
    adding = {step.lane for step in steps if isinstance(step, Sum) and step.lane is not None}
    sums_left = sum(isinstance(step, Sum) for step in steps)
    for step in steps:
        if isinstance(step, Fork):
            open_lanes.add(step.lane)
        elif isinstance(step, Join):
            open_lanes.discard(step.lane)
        elif isinstance(step, Kernel):
            kernel_done = True
            moves_left -= len(step.moves)
        elif isinstance(step, Sum):
            sums_left -= 1
        elif isinstance(step, Copy):
            copies_left.remove(step.op)
        elif isinstance(step, Credit):
            busy = open_lanes - {_lane(step)} if _lane(step) != MAIN else open_lanes
            working = (reading | adding) & busy
            if working or copies_left or moves_left:
                raise ScheduleError(f"rank {rank}: the credit to rank {step.peer} does not follow the last copy")
            if pushes and (_lane(step) != MAIN or not kernel_done or sums_left):
                raise ScheduleError(
                    f"rank {rank}: the credit to rank {step.peer} does not follow the kernel and the sums, "
                    "which read what peers push"
                )
            given.append(step.peer)
    expected = sorted(set(range(plan.world)) - {rank})
    if sorted(given) != expected:
        raise ScheduleError(f"rank {rank}: credits to ranks {sorted(given)}, each of {expected} must get one")


def check_progress(steps: Sequence[Sequence[Step]], plan: CommPlan, produced: Collection[str], blocking: bool) -> None:
    """No cycle of stream order, forks, joins, awaited flags and the flags that kernels and sums wait for.

    What a kernel makes is there when the kernel ends, though copies leave before: the order of its tiles is checked by
    `verify.verify_schedule`.
    """
    Node = tuple[int, int]
    raisers: dict[OpId, Node] = {}
    for rank, own in enumerate(steps):
        for i, step in enumerate(own):
            raised = (step.op,) if isinstance(step, Raise) else step.stores if isinstance(step, Kernel | Sum) else ()
            raisers.update(dict.fromkeys(raised, (rank, i)))
            if isinstance(step, Kernel):
                # Moves begin with the kernel and end before it: each is a node of its own.
                raisers.update((move.op, (rank, -1 - k)) for k, move in enumerate(step.moves))
    before: dict[Node, list[Node]] = {}
    for rank, own in enumerate(steps):
        tails: dict[int, list[Node]] = {}
        kernel: list[Node] = []
        host: list[Node] = []
        for i, step in enumerate(own):
            node = (rank, i)
            stream = _lane(step)
            before[node] = [*tails.get(stream, ())]
            if blocking:
                before[node] += host
            if isinstance(step, Fork | Branch):
                tails[step.lane] = [*tails.get(step.lane, ()), node]
            elif isinstance(step, Join):
                before[node] += tails[step.lane]
            elif isinstance(step, Await):
                before[node].append(raisers[step.op])
            elif isinstance(step, Gather):
                before[node] += [raisers[op] for op in step.ops]
            elif isinstance(step, Hold | Whole):
                before[node] += kernel
            elif isinstance(step, Kernel):
                kernel = [node]
                begun = [*before[node]]
                for k, move in enumerate(step.moves):
                    before[rank, -1 - k] = [*begun, *(raisers[op] for op in move.awaits)]
                    begun = [(rank, -1 - k)]
                    before[node] += begun
                fed = (op for op in plan.arriving(rank) if plan.op(op).dst.tensor not in produced)
                before[node] += [raisers[op] for op in fed]
            elif isinstance(step, Sum):
                summands = {op_id for piece in step.pieces for op_id in piece.summands}
                before[node] += [raisers[op_id] for op_id in sorted(op for op in summands if op is not None)]
            if isinstance(step, Entry | Stage | Await | Gather | Kernel | Sum):
                host = [node]
            tails[stream] = [node]
    cycle = find_cycle(before)
    if cycle:
        chain = " waits for ".join(_node(steps, rank, i) for rank, i in cycle)
        raise ScheduleError(
            f"deadlock among launch steps{', where hosts wait for kernels' if blocking else ''}: {chain}"
        )


def _node(steps: Sequence[Sequence[Step]], rank: int, i: int) -> str:
    if i >= 0:
        return f"step {i} of rank {rank} ({_show(steps[rank][i])})"
    moves = next(step.moves for step in steps[rank] if isinstance(step, Kernel))
    return f"a move of rank {rank}'s kernel ({_op(moves[-1 - i].op)})"


def _show(step: Step) -> str:
    if isinstance(step, Await | Hold | Copy | Raise):
        return f"{type(step).__name__} of {_op(step.op)}"
    return type(step).__name__


def _op(op: OpId) -> str:
    return f"rank {op[0]} operation {op[1]}"


def _find(plan: CommPlan, op_id: OpId, rank: int) -> P2P:
    owner, index = op_id
    if not (0 <= owner < len(plan.ops) and 0 <= index < len(plan.ops[owner])):
        raise ScheduleError(f"rank {rank}: a step of {_op(op_id)}, which plan {plan.name} does not have")
    op = plan.op(op_id)
    if not isinstance(op, P2P):
        raise ScheduleError(f"rank {rank}: a step of {_op(op_id)}, which is no copy")
    return op
