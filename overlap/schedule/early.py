"""Sums that are made while the kernel still runs: which they are, in what order, and what must be whole for each.

    rank r of 4, chunks 0..s-1 of every part
    tiles   round 0: r+1, r+2, r+3, own | round 1: r+1, r+2, r+3, own | ... | round s-1
    sums                                  sum of own chunk 0          | sum of own chunk 1 | ... behind the kernel: the last

The round of an operation is how many earlier ones of its list do the same to the same rank: part j of each has round j.
Ranks that make part j for everybody before part j+1 for anybody find all summands of their chunk 0 after one round. A sum
belongs to the latest round of its summands. Those of the last round stand behind the kernel, with the whole device; the others
wait, on a lane of their own, for their summands and until tiles have made all of the rank's own one, which a counter says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from overlap.chunkplan.plan import P2P, Chunk, CommPlan, OpId
from overlap.errors import PlanError

from .pieces import Piece, Summands, Values, partial_sources, pieces


def rounds_of(plan: CommPlan) -> dict[OpId, int]:
    """The round of every operation."""
    found: dict[OpId, int] = {}
    for rank, ops in enumerate(plan.ops):
        seen: dict[tuple[str, bool, int], int] = defaultdict(int)
        for index, op in enumerate(ops):
            to = op.dst_rank if isinstance(op, P2P) else -1
            key = (op.dst.tensor, op.reduce is not None, to)
            found[rank, index] = seen[key]
            seen[key] += 1
    return found


def in_rounds(plan: CommPlan, produced: Collection[str]) -> CommPlan:
    """The plan with its operations on ``produced`` tensors in the order of their rounds, where that changes no value.

    What is reduced stands ahead of what is not. Plans that rely on the order inside a channel stay as they are.
    """
    rounds = rounds_of(plan)
    placed: dict[OpId, OpId] = {}
    for rank, ops in enumerate(plan.ops):
        placed.update({(rank, index): (rank, index) for index in range(len(ops))})
        places = [index for index, op in enumerate(ops) if op.src.tensor in produced]
        order = sorted(places, key=lambda i: (ops[i].reduce is None, rounds[rank, i], i))
        placed.update({(rank, index): (rank, place) for place, index in zip(places, order, strict=True)})
    if all(old == new for old, new in placed.items()):
        return plan
    lists = [list(ops) for ops in plan.ops]
    spans = [list(row) for row in plan.spans]
    for (rank, index), (_, place) in placed.items():
        op = plan.ops[rank][index]
        lists[rank][place] = replace(op, depends=tuple(placed[dep] for dep in op.depends))
        if spans:
            spans[rank][place] = plan.spans[rank][index]
    made = replace(plan, ops=tuple(map(tuple, lists)), spans=tuple(map(tuple, spans)))
    return made if _same_values(plan, made, placed, produced) else plan


def _same_values(one: CommPlan, other: CommPlan, placed: dict[OpId, OpId], produced: Collection[str]) -> bool:
    """Whether operations send, and ranks end with, the same in both; in ``other`` each stands where ``placed`` says."""
    try:
        before, after = Values(one), Values(other)
    except PlanError:
        return False

    def moved(summands: Summands) -> Summands:
        return tuple(None if op is None else placed[op] for op in summands)

    for op_id, op in one.items():
        if op.src.tensor in produced and isinstance(op, P2P):
            sent = tuple((box, moved(summands)) for box, summands in before.source(op_id))
            if sent != after.source(placed[op_id]):
                return False
    for rank in range(one.world):
        for chunk in one.after[rank]:
            if chunk.tensor in produced:
                ends = tuple((box, moved(summands)) for box, summands in before.result(rank, chunk))
                if ends != after.result(rank, chunk):
                    return False
    return True


@dataclass(frozen=True)
class Added:
    """One sum of what tiles have made: its round, its pieces, and the rank's operations that send it on (none: a result)."""

    round: int
    tensor: str
    pieces: tuple[Piece, ...]
    ops: tuple[OpId, ...] = ()


def sums_of(plan: CommPlan, rank: int, produced: Collection[str], values: Values | None = None) -> tuple[Added, ...]:
    """All sums of a rank of what tiles of all ranks have made, by round; those that are sent on come first in each."""
    values = values or Values(plan)
    rounds = rounds_of(plan)

    def round_of(piece: Piece) -> int:
        return max(rounds[op] for op in piece.summands if op is not None)

    found: list[Added] = []
    for tensor in sorted(set(produced)):
        sums, result = pieces(plan, rank, tensor, values)
        for ops, kept in sums.items():
            arriving = [piece for piece in kept if _arrives(values, piece)]
            if arriving:
                found.append(Added(max(map(round_of, arriving)), tensor, kept, ops))
        by_round: dict[int, list[Piece]] = defaultdict(list)
        for piece in result:
            if not piece.keep and _arrives(values, piece):
                by_round[round_of(piece)].append(piece)
        found += [Added(number, tensor, tuple(several)) for number, several in by_round.items()]
    return tuple(sorted(found, key=lambda added: added.round))


def early_sums(plan: CommPlan, rank: int, produced: Collection[str], values: Values | None = None) -> tuple[Added, ...]:
    """Those that are made while the kernel runs: of all rounds but the last."""
    found = sums_of(plan, rank, produced, values)
    return tuple(added for added in found if added.round < found[-1].round)


def kept_chunks(
    plan: CommPlan, rank: int, produced: Collection[str], values: Values | None = None
) -> tuple[tuple[Chunk, int], ...]:
    """Chunks of the kernel's partial that no operation sends and an early sum adds; each with its round.

    Each has a counter, behind those of `pieces.partial_sources`.
    """
    values = values or Values(plan)
    sent = {chunk for chunk, _ in partial_sources(plan, rank, produced, values)}
    found: dict[Chunk, int] = {}
    for added in early_sums(plan, rank, produced, values):
        for piece in added.pieces:
            if None in piece.summands and piece.chunk not in sent:
                found.setdefault(piece.chunk, added.round)
    return tuple(found.items())


def can_be_early(
    plan: CommPlan, produced: Collection[str], stored: Collection[OpId] = (), values: Values | None = None
) -> bool:
    """Whether sums of a plan, on any rank, can be made while kernels run. The same on every rank.

    Tiles are not stored where they go; what is sent on is a sum of what tiles made, never of sums; every channel has its
    operations in the order of the rounds; and what waits for an operation stands, on every rank, behind all of its round that
    wait for none.
    """
    if not produced:
        return False
    values = values or Values(plan)
    rounds = rounds_of(plan)
    for op_id, op in plan.items():
        if op.src.tensor not in produced:
            continue
        if op_id in stored or not isinstance(op, P2P):
            return False
        for _, summands in values.source(op_id):
            if summands != (None,) and not all(o is None or values.sends_partial(o) for o in summands):
                return False
    for rank, ops in enumerate(plan.ops):
        sums = {op: added.round for added in sums_of(plan, rank, produced, values) for op in added.ops}
        last: dict[int, tuple[int, bool]] = {}
        waited: set[int] = set()
        for index, op in enumerate(ops):
            if op.src.tensor in produced:
                place = (sums.get((rank, index), rounds[rank, index]), (rank, index) in sums)
                if place < last.get(op.channel, place) or not (op.depends or place[1]) and place[0] in waited:
                    return False
                last[op.channel] = place
                for dep in op.depends:
                    ahead = plan.op(dep)
                    if ahead.src.tensor not in produced or ahead.depends or rounds[dep] > place[0]:
                        return False
                if op.depends and not place[1]:
                    waited.add(place[0])
    return any(early_sums(plan, rank, produced, values) for rank in range(plan.world))


def _arrives(values: Values, piece: Piece) -> bool:
    """Whether a piece is made of what tiles made, some of it on other ranks."""
    landed = [op for op in piece.summands if op is not None]
    return bool(landed) and all(map(values.sends_partial, landed))


def places_of(plan: CommPlan, rank: int, kept: Sequence[tuple[Chunk, int]], sent: Collection[OpId]) -> list[int]:
    """Where chunks that are kept stand among those that are sent, in which tiles make them: behind their round.

    Args:
        sent: operations of the rank that send what tiles made. One at index i stands at 2 i.
    """
    rounds = rounds_of(plan)
    found = []
    for _, number in kept:
        ahead = [index for own, index in sent if own == rank and rounds[own, index] <= number]
        found.append(2 * max(ahead, default=-1) + 1)
    return found
