"""Moves that the computing programs make themselves, a part each, between their tiles.

    program p of n   tile | part p of move 0 | tile | part p of move 1 | wait for chunk 0 | tile | ... | parts that are left

Nobody is there for moves alone, so a program that waits for a chunk makes no part meanwhile, and ranks could wait for each
other's parts in a circle. They do not where before each wait a program has made its parts of enough moves:

    level    of an operation: 0 if it is behind none, else one more than the deepest that it is behind (channel order and
             dependencies). The same on all ranks.
    before   the wait for chunks up to level v: every move of the rank of level v or less.

Proof: of the operations never done take one of the lowest level, u. Some program of its rank has not made its part. It is
not held up by what an earlier or this move awaits, which is of lower levels; so it waits for a chunk that does not come, of
level v >= u, and has made its part before that. `verify_interleaved` looks for the circle itself.

Only programs that are resident from the start have parts; the others just wait. A program takes its parts one a tile, the
first of them later for later programs (`pace`), so that at any time few of them copy and the others compute.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from overlap.chunkplan.order import HappensBefore, happens_before, name_op
from overlap.chunkplan.plan import CommPlan, OpId
from overlap.errors import ScheduleError

from .cycles import find_cycle
from .model import RankSchedule
from .moves import Move

Node = tuple[str, int, int]
"""``("op", rank, index)``, or ``("wait", rank, number)`` of one of a rank's waits."""


def levels(order: HappensBefore) -> dict[OpId, int]:
    """Every operation's level: how many stand before it in the longest chain."""
    found: dict[OpId, int] = {}
    for op_id in order.order:
        found[op_id] = max((found[before] + 1 for before, _ in order.predecessors[op_id]), default=0)
    return found


def moves_ahead(schedule: RankSchedule, moves: Sequence[Move], level: Mapping[OpId, int]) -> tuple[int, ...]:
    """For each run, how many of its rank's moves, in their order, a program has made its parts of before it waits.

    Args:
        schedule: runs of tiles, or the parts of an in-tile loop.
        moves: the rank's, as `moves_of` orders them.
        level: `levels` of the plan.
    """
    found = []
    for run in schedule.runs:
        deepest = max((level[wait.op] for wait in run.waits), default=-1)
        found.append(max((n for n, move in enumerate(moves, 1) if level[move.op] <= deepest), default=0))
    return tuple(found)


def waits_of(
    schedules: Sequence[RankSchedule], moves: Sequence[Move], level: Mapping[OpId, int]
) -> list[tuple[tuple[OpId, ...], int]]:
    """A rank's waits: the operations that each is for, and how many moves are ahead of it.

    Args:
        schedules: all there are: of tiles, and of an in-tile loop.
        moves, level: as for `moves_ahead`.
    """
    return [
        (tuple(wait.op for wait in run.waits), ahead)
        for schedule in schedules
        for run, ahead in zip(schedule.runs, moves_ahead(schedule, moves, level), strict=True)
    ]


def pace(tiles: int, programs: int, moves: int) -> int:
    """After how many tiles a program makes its next part, where ``programs`` walk over ``tiles``.

    The parts of a rank take as long as its tiles before the last chunk, each as long as the tiles that need what it answers.
    """
    return max(1, tiles // max(1, programs) // (moves + 1))


def verify_interleaved(
    plan: CommPlan,
    moves: Sequence[Sequence[Move]],
    waits: Sequence[Sequence[tuple[Collection[OpId], int]]],
) -> None:
    """Checks that programs which make moves between their tiles never wait for each other in a circle.

    Args:
        moves: of every rank, in their order.
        waits: of every rank, as `waits_of` gives them. A program may make all other moves behind a wait.

    Raises:
        ScheduleError: names the chain.
        PlanError: the plan is cyclic.
    """
    order = happens_before(plan)
    before: dict[Node, list[Node]] = {
        ("op", *op_id): [("op", *ahead) for ahead, _ in ahead_of] for op_id, ahead_of in order.predecessors.items()
    }
    for rank, own in enumerate(moves):
        for k, move in enumerate(own):
            before[_op(move)] += [("op", *op_id) for op_id in move.awaits]
            if k:
                before[_op(move)].append(_op(own[k - 1]))
        for number, (ops, made) in enumerate(waits[rank]):
            before["wait", rank, number] = [("op", *op_id) for op_id in ops]
            for move in own[made:]:
                before[_op(move)].append(("wait", rank, number))
    cycle = find_cycle(before)
    if cycle:
        chain = " comes after ".join(_in_words(plan, waits, node) for node in cycle)
        operations = [(rank, index) for kind, rank, index in cycle if kind == "op"]
        raise ScheduleError(
            f"deadlock between tiles and the moves that programs make between them: {chain}",
            where=plan.where(operations[0]) if operations else plan.where(),
        )


def _op(move: Move) -> Node:
    rank, index = move.op
    return ("op", rank, index)


def _in_words(plan: CommPlan, waits: Sequence[Sequence[tuple[Collection[OpId], int]]], node: Node) -> str:
    kind, rank, number = node
    if kind == "op":
        return name_op(plan, (rank, number))
    ops, made = waits[rank][number]
    return f"a wait of rank {rank} for {' and '.join(name_op(plan, op) for op in sorted(ops))} with {made} moves made"
