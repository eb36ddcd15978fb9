"""What is added to what: the parts of a produced tensor, each with the operations whose data make it up on a rank.

    reduce-scatter, rank 1 of 3: its kernel's own partial, and what ranks 0 and 2 push into slots of their own

    c[2:4]   =   slot of (0, 0)   +   own partial   +   slot of (2, 1)          summands ((0, 0), None, (2, 1))

The value of a chunk on a rank, as an operation sees it, is what the rank's kernel made of it, plus the contributions
of the reducing operations that land in it and happen before; an operation that does not reduce and happens before
replaces it. What is not ordered with the reader is not seen: everything lands in a slot of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from overlap.chunkplan.order import HappensBefore, happens_before, name_op
from overlap.chunkplan.plan import P2P, Chunk, CommPlan, OpId
from overlap.chunkplan.region import Box, uncovered
from overlap.errors import PlanError, ScheduleError, UnsupportedError

Summands = tuple[OpId | None, ...]
"""Operations whose slots are added, in rank order of their sources; None is the kernel's own partial."""


@dataclass(frozen=True)
class Piece:
    """A box of one tensor on one rank whose every element has the same summands.

    ``summands`` stand in rank order of where they come from (None, the rank's own partial, at the rank's place; an
    operation that carries a sum at its source's). One summand alone is copied, not computed with. ``accumulate`` is
    the type that more are added in. ``keep``: the rank's own operations ``ops`` send the result on, from symmetric
    memory (one dense region for the source box of ``ops``, which all of them share); ``out``: it is part of what the rank
    holds after the last operation. Of a piece that is both, the result is the value that is sent on, so that all ranks
    end with the same bits. ``combine`` names the reduction.
    """

    chunk: Chunk
    summands: Summands
    accumulate: str = "fp32"
    keep: bool = False
    out: bool = False
    ops: tuple[OpId, ...] = ()
    combine: str = "sum"


Parts = tuple[tuple[Box, Summands], ...]

Sums = dict[tuple[OpId, ...], tuple[Piece, ...]]
"""By the operations that send it on: the pieces that partition their source box."""


class Values:
    """What chunks are worth on each rank, and to whom: the value rule for one plan, with its happens-before.

    Args:
        lenient: what a rank never has counts as its own, for plans that are carried out though they are wrong.

    Raises:
        PlanError: the plan is cyclic.
    """

    def __init__(self, plan: CommPlan, order: HappensBefore | None = None, *, lenient: bool = False) -> None:
        self.plan = plan
        self.order = order or happens_before(plan)
        self.lenient = lenient
        self._sources: dict[OpId, Parts] = {}
        self._landing: dict[tuple[int, str], list[tuple[OpId, P2P]]] = {}
        for op_id, op in plan.items():
            if isinstance(op, P2P):
                self._landing.setdefault((op.dst_rank, op.dst.tensor), []).append((op_id, op))

    def source(self, op_id: OpId) -> Parts:
        """What an operation sends: its source box cut into parts of equal summands (none for an empty box).

        Raises:
            PlanError: its rank never has some of it.
        """
        if op_id not in self._sources:
            op = self.plan.op(op_id)
            assert isinstance(op, P2P)
            said = f"sends, as {name_op(self.plan, op_id)},"
            self._sources[op_id] = self._parts(
                op.src_rank, op.src, lambda earlier: self.order.before(earlier, op_id), said
            )
        return self._sources[op_id]

    def sends_partial(self, op_id: OpId) -> bool:
        """Whether an operation sends nothing but what the kernel of its rank made."""
        return _own(self.source(op_id))

    def in_place(self, op_id: OpId) -> bool:
        """Whether all that an operation sends lies in memory as it is: the rank's own, or brought without being added."""
        return all(
            len(summands) == 1 and (summands[0] is None or self.plan.op(summands[0]).reduce is None)
            for _, summands in self.source(op_id)
        )

    def result(self, rank: int, chunk: Chunk) -> Parts:
        """``chunk`` on ``rank`` behind all operations, cut into parts of equal summands.

        Raises:
            PlanError: the rank never has some of it.
        """
        return self._parts(rank, chunk, lambda _: True, "ends with")

    def _parts(self, rank: int, chunk: Chunk, seen: Callable[[OpId], bool], said: str) -> Parts:
        if chunk.box.empty:
            return ()
        plan, before = self.plan, self.order.before
        landing = [
            (op_id, op)
            for op_id, op in self._landing.get((rank, chunk.tensor), ())
            if op.dst.box.overlaps(chunk.box) and seen(op_id)
        ]
        held = [c.box for c in plan.before[rank] if c.tensor == chunk.tensor]
        found: list[tuple[Box, Summands]] = []
        for box in _cut([chunk.box], [*(op.dst.box for _, op in landing), *held]):
            here = [(op_id, op) for op_id, op in landing if op.dst.box.contains(box)]
            adding = [op_id for op_id, op in here if op.reduce]
            replacing = [op_id for op_id, op in here if not op.reduce]
            summands: list[OpId | None] = [*adding]
            if replacing:
                last = next((a for a in replacing if all(before(b, a) for b in replacing if b != a)), max(replacing))
                summands = [last, *(op_id for op_id in adding if before(last, op_id))]
            elif any(own.contains(box) for own in held) or (self.lenient and not adding):
                summands.append(None)
            if not summands:
                raise PlanError(
                    f"plan {plan.name}: rank {rank} {said} {Chunk(chunk.tensor, box)}, which it never has",
                    where=plan.where(),
                    help="let the rank make it (`before`), or move it there",
                )
            found.append((box, tuple(sorted(summands, key=lambda op_id: _place(plan, rank, op_id)))))
        return tuple(sorted(found, key=lambda part: part[0].lo))


def pieces(
    plan: CommPlan, rank: int, tensor: str, known: Values | HappensBefore | None = None, *, in_place: bool = False
) -> tuple[Sums, tuple[Piece, ...]]:
    """What ``rank`` adds up of a produced tensor: for its own operations, and as its result.

    Returns ``(sums, result)``: for each group of own operations that send the same sum the pieces of their source
    box (operations that send the kernel's own partial are in none, see `partial_sources`), and the pieces that partition
    ``plan.after[rank]``. A piece that is both stands in both, the same object, with ``keep`` and ``out``.

    Args:
        known: the plan's values, or its happens-before, where the caller has either already.
        in_place: what operations bring without adding lands where it belongs, so that it is sent on from there, and is
            in no sum either; for plans without a kernel.

    Raises:
        PlanError: the plan is cyclic, or a rank sends or ends with what it never had.
        UnsupportedError: contributions to one element that are combined in different ways.
    """
    values = known if isinstance(known, Values) else Values(plan, known)
    groups: dict[tuple[Box, Parts], list[OpId]] = {}
    for op_id in _sent(plan, rank, (tensor,)):
        parts = values.source(op_id)
        if not (values.in_place(op_id) if in_place else _own(parts)):
            groups.setdefault((plan.op(op_id).src.box, parts), []).append(op_id)

    wanted: list[Box] = []
    for chunk in plan.after[rank]:
        if chunk.tensor == tensor:
            wanted += uncovered(wanted, chunk.box)
    finals = [part for box in wanted for part in values.result(rank, Chunk(tensor, box))]
    for _, parts in groups:
        for box, summands in parts:
            finals = [
                (piece, found)
                for part, found in finals
                for piece in (_cut([part], [box]) if found == summands and part.overlaps(box) else [part])
            ]
    left = set(finals)

    sums: Sums = {}
    for (_, parts), ops in groups.items():
        kept = []
        for box, summands in parts:
            out = (box, summands) in left
            left.discard((box, summands))
            kept.append(_piece(plan, Chunk(tensor, box), summands, tuple(ops), out))
        sums[tuple(ops)] = tuple(kept)
    result = [_piece(plan, Chunk(tensor, box), summands, (), True) for box, summands in left]
    result += [piece for kept in sums.values() for piece in kept if piece.out]
    return sums, tuple(sorted(result, key=lambda piece: piece.chunk.box.lo))


def partial_sources(
    plan: CommPlan, rank: int, produced: Collection[str], known: Values | HappensBefore | None = None
) -> tuple[tuple[Chunk, tuple[OpId, ...]], ...]:
    """Chunks of the kernel's own partials that operations of ``rank`` send: each with these operations, in list order.

    The position of a chunk is the slot of its counter (`model.Counter`), the same for all sizes of tiles.

    Raises:
        PlanError: as `pieces`.
    """
    values = known if isinstance(known, Values) else Values(plan, known)
    found: dict[Chunk, list[OpId]] = {}
    for op_id in _sent(plan, rank, produced):
        if values.sends_partial(op_id):
            found.setdefault(plan.op(op_id).src, []).append(op_id)
    return tuple((chunk, tuple(ops)) for chunk, ops in found.items())


def check_produced(plan: CommPlan, produced: Collection[str]) -> None:
    """Refuses operations on produced tensors that no realization carries out.

    Raises:
        ScheduleError: a tensor that the plan does not have.
        UnsupportedError: an operation on one that is no push of a chunk to the same place on another rank.
    """
    names = [spec.name for spec in plan.tensors]
    for tensor in produced:
        if tensor not in names:
            raise ScheduleError(
                f"tiles write {tensor!r}, which plan {plan.name} does not communicate",
                help=f"there are: {', '.join(names) or 'none'}",
            )
    for op_id, op in plan.items():
        touched = sorted({op.src.tensor, op.dst.tensor} & set(produced))
        if not touched or not isinstance(op, P2P):
            continue
        said, where = f"plan {plan.name}, {name_op(plan, op_id)}", plan.where(op_id)
        if op.direction == "pull":
            raise UnsupportedError(
                f"{said}: {touched[0]} is made by tiles, and who reads it cannot know when a chunk of it is whole",
                where=where,
                help="use push: the rank that makes a chunk sends it",
            )
        if op.src.tensor != op.dst.tensor:
            raise UnsupportedError(
                f"{said}: {touched[0]} is made by tiles, and its chunks move inside that tensor only",
                where=where,
                help="leave out `into`",
            )


def _sent(plan: CommPlan, rank: int, produced: Collection[str]) -> Iterator[OpId]:
    """Operations of the rank's list that send of these tensors."""
    for index, op in enumerate(plan.ops[rank]):
        if isinstance(op, P2P) and op.direction == "push" and op.src.tensor in produced:
            yield rank, index


def _own(parts: Parts) -> bool:
    return all(summands == (None,) for _, summands in parts)


def _place(plan: CommPlan, rank: int, op_id: OpId | None) -> tuple[int, OpId]:
    """Sums are taken in rank order of their sources, so that every rank gets the same bits."""
    if op_id is None:
        return rank, (-1, -1)
    op = plan.op(op_id)
    assert isinstance(op, P2P)
    return op.src_rank, op_id


def _cut(boxes: Sequence[Box], edges: Iterable[Box]) -> list[Box]:
    """``boxes`` cut so that each lies inside or outside of every box of ``edges``."""
    parts = list(boxes)
    for edge in edges:
        parts = [
            piece
            for part in parts
            for piece in ([part.intersect(edge), *part.subtract(edge)] if part.overlaps(edge) else [part])
        ]
    return parts


def _piece(plan: CommPlan, chunk: Chunk, summands: Summands, ops: tuple[OpId, ...], out: bool) -> Piece:
    ways: dict[tuple[str, str], OpId] = {}
    for op_id in summands:
        reduce = plan.op(op_id).reduce if op_id is not None else None
        if op_id is not None and reduce:
            ways.setdefault((str(reduce), getattr(reduce, "accumulate", "fp32")), op_id)
    if len(ways) > 1:
        (first, one), (second, other) = list(ways.items())[:2]
        raise UnsupportedError(
            f"plan {plan.name}: {chunk} is combined by {first[0]} in {first[1]} ({name_op(plan, one)}) and by "
            f"{second[0]} in {second[1]} ({name_op(plan, other)})",
            where=plan.where(other),
            help="give all operations into a chunk the same `reduce`",
        )
    combine, accumulate = next(iter(ways), ("sum", "fp32"))
    return Piece(chunk, summands, accumulate, bool(ops), out, ops, combine)
