"""Memory of a plan, rank by rank and tensor by tensor: which operations touch which box, and which of them collide.

A reduction is carried out on the destination later, from memory that holds what arrived. So it collides with no reader:
who is not ordered behind it does not see it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from overlap.errors import PlanError

from .order import HappensBefore, also_at, name_op
from .plan import P2P, Chunk, Collective, CommOp, CommPlan, OpId
from .region import Box, overlap_of, uncovered

PlaceId = tuple[int, str]
"""A rank and a tensor in its memory."""


@dataclass
class Touched:
    """Everything that concerns one box of one tensor on one rank."""

    held: bool = False
    readers: list[tuple[OpId, bool]] = field(default_factory=list)
    """Operations that read it, and whether only to add to it."""
    writers: list[OpId] = field(default_factory=list)


class Place:
    """The boxes of one tensor on one rank that anything touches, and which of them share elements.

    ``touched[i]`` belongs to ``boxes[i]``, and ``near[i]`` numbers the boxes that share elements with it: itself first.
    """

    def __init__(self, touched: dict[Box, Touched]) -> None:
        self.boxes = list(touched)
        self.touched = list(touched.values())
        self.number = {box: i for i, box in enumerate(self.boxes)}
        self.near: list[list[int]] = [[i] for i in range(len(self.boxes))]
        for i, j, _ in overlap_of(self.boxes):
            self.near[i].append(j)
            self.near[j].append(i)


def places_of(plan: CommPlan) -> dict[PlaceId, Place]:
    """Every place that the plan touches, before, during or after its operations; empty boxes are left out."""
    found: dict[PlaceId, dict[Box, Touched]] = defaultdict(lambda: defaultdict(Touched))
    for rank, chunks in enumerate(plan.before):
        for chunk in chunks:
            if not chunk.box.empty:
                found[rank, chunk.tensor][chunk.box].held = True
    for op_id, op in plan.items():
        for rank, chunk, adding in _reads(op_id, op):
            if not chunk.box.empty:
                found[rank, chunk.tensor][chunk.box].readers.append((op_id, adding))
        for rank, chunk in _writes(op_id, op):
            found[rank, chunk.tensor][chunk.box].writers.append(op_id)
    for rank, chunks in enumerate(plan.after):
        for chunk in chunks:
            if not chunk.box.empty:
                found[rank, chunk.tensor][chunk.box]
    return {place: Place(dict(found[place])) for place in sorted(found)}


def adds(op: CommOp) -> bool:
    """Whether an operation adds to what is at its destination; every other one replaces it."""
    return isinstance(op, P2P) and op.reduce is not None


def reduced_tensors(plan: CommPlan) -> frozenset[str]:
    """Tensors that some operation of the plan reduces."""
    kinds = ("all_reduce", "reduce_scatter")
    return frozenset(
        op.dst.tensor for _, op in plan.items() if adds(op) or (isinstance(op, Collective) and op.kind in kinds)
    )


def _reads(op_id: OpId, op: CommOp) -> Iterator[tuple[int, Chunk, bool]]:
    if isinstance(op, Collective):
        yield op_id[0], op.src, False
        return
    yield op.src_rank, op.src, False
    if op.reduce:
        yield op.dst_rank, op.dst, True


def _writes(op_id: OpId, op: CommOp) -> Iterator[tuple[int, Chunk]]:
    """What an operation overwrites; a gather and an exchange leave the rank's own part as it is."""
    if isinstance(op, P2P):
        boxes = [op.dst.box]
    elif op.kind in ("all_gather", "all_to_all") and op.src.tensor == op.dst.tensor:
        boxes = op.dst.box.subtract(op.src.box)
    else:
        boxes = [op.dst.box]
    rank = op.dst_rank if isinstance(op, P2P) else op_id[0]
    for box in boxes:
        if not box.empty:
            yield rank, Chunk(op.dst.tensor, box)


# Collisions


def check_place(plan: CommPlan, order: HappensBefore, at: PlaceId, place: Place, partial: bool) -> None:
    """What operations read is there, and nothing overwrites what it must not.

    Args:
        partial: the tensor is reduced, so that what a rank owns of it is a part of a sum, which a sum may replace.

    Raises:
        PlanError: an operation reads what is not there, two unordered ones write or one reads and one writes the same
            elements, or one overwrites what a rank owns.
    """
    for i, touched in enumerate(place.touched):
        for reader, _ in touched.readers:
            _check_read(plan, order, at, i, reader, place)
    for i, touched in enumerate(place.touched):
        for writer in touched.writers:
            for j in place.near[i]:
                _check_write(plan, order, at, i, j, writer, place, partial)


def _check_read(plan: CommPlan, order: HappensBefore, at: PlaceId, i: int, reader: OpId, place: Place) -> None:
    """The rank holds the chunk, from the start or by what happens before."""
    rank, chunk = at[0], Chunk(at[1], place.boxes[i])
    near = [(place.boxes[j], place.touched[j]) for j in place.near[i]]
    held = [box for box, touched in near if touched.held]
    if any(box.contains(chunk.box) for box in held):
        return
    arrivals = [(box, writer) for box, touched in near for writer in touched.writers if writer != reader]
    held += [box for box, writer in arrivals if order.before(writer, reader)]
    missing = uncovered(held, chunk.box)
    if not missing:
        return
    bringing = [writer for box, writer in arrivals if box.overlaps(missing[0])]
    if bringing:
        late = bringing[0]
        way = (
            f"{name_op(plan, late)} brings it: make the reader depend on that, `depends: [[{late[0]}, {late[1]}]]`"
            if not order.before(reader, late)
            else f"{name_op(plan, late)} brings it, but only behind the reader: turn the two round"
        ) + also_at(plan, late, reader)
    else:
        group = plan.tensor(chunk.tensor).group
        owners = [
            r
            for r, chunks in enumerate(plan.before)
            if group(r) == group(rank) and any(_same(c, chunk, missing[0]) for c in chunks)
        ]
        way = (f"rank {owners[0]} owns it at the start" if owners else "no rank owns it at the start") + (
            f", and nothing brings it to rank {rank}"
        )
    raise PlanError(
        f"plan {plan.name}: {name_op(plan, reader)} reads {Chunk(chunk.tensor, missing[0])} on rank {rank}, "
        "which does not hold it then",
        where=plan.where(reader),
        help=way,
    )


def _same(chunk: Chunk, wanted: Chunk, box: Box) -> bool:
    return chunk.tensor == wanted.tensor and chunk.box.contains(box)


def _check_write(
    plan: CommPlan, order: HappensBefore, at: PlaceId, i: int, j: int, writer: OpId, place: Place, partial: bool
) -> None:
    """No owner, other writer or reader is in the way of a write."""
    rank, touched = at[0], place.touched[j]

    def shared() -> Chunk:
        return Chunk(at[1], place.boxes[i].intersect(place.boxes[j]))

    adding = adds(plan.op(writer))
    if touched.held and not adding and not partial:
        raise PlanError(
            f"plan {plan.name}: {name_op(plan, writer)} overwrites {shared()}, which rank {rank} owns",
            where=plan.where(writer),
            help="a rank does not receive what it owns: leave the operation out with `when`, or move less",
        )
    for second in touched.writers:
        both = adding and adds(plan.op(second))
        if second > writer and not both and not order.ordered(writer, second):
            one = adding or adds(plan.op(second))
            raise PlanError(
                f"plan {plan.name}: {shared()} on rank {rank} is written twice, by {name_op(plan, writer)} and by "
                f"{name_op(plan, second)}, and nothing says which comes first",
                where=plan.where(second),
                help=(
                    f"make the later of the two depend on the other, `depends: [[{writer[0]}, {writer[1]}]]`"
                    if one
                    else "remove one of the two"
                )
                + also_at(plan, writer, second),
            )
    if adding:
        return
    for reader, only_to_add in touched.readers:
        if reader != writer and not only_to_add and not order.ordered(writer, reader):
            raise PlanError(
                f"plan {plan.name}: {name_op(plan, reader)} reads {shared()} on rank {rank} while "
                f"{name_op(plan, writer)} may be overwriting it",
                where=plan.where(reader),
                help=f"make the later of the two depend on the other, `depends: [[{writer[0]}, {writer[1]}]]`"
                + also_at(plan, writer, reader),
            )


def check_after(plan: CommPlan, places: dict[PlaceId, Place], rank: int, chunk: Chunk) -> None:
    """A promised chunk is there in the end.

    Raises:
        PlanError: a part of it is not.
    """
    if chunk.box.empty:
        return
    place = places[rank, chunk.tensor]
    near = place.near[place.number[chunk.box]]
    have = [place.boxes[i] for i in near if place.touched[i].held or place.touched[i].writers]
    have.sort(key=lambda box: box.lo)
    missing = uncovered(have, chunk.box)
    if missing:
        raise PlanError(
            f"plan {plan.name}: rank {rank} ends without {Chunk(chunk.tensor, missing[0])} of its `after` {chunk}",
            where=plan.where(),
            help=f"add an operation that brings it to rank {rank}, or take it out of `after`",
        )
