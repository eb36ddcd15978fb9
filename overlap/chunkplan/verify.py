"""The plan verifier: does a plan, carried out in any order it allows, leave every rank with what it promises?

Checked, in this order: every name, rank, index and box exists; collectives are joined by all their ranks; no cycle;
a source has its chunk before it is read; no two unordered writes, no write over owned data, no write beside an
unordered read; every chunk of ``after`` is there. An empty chunk reads and writes nothing.

A box names values: inside one tensor a chunk keeps its place. Reductions of one kind into the same box commute;
that all contributions arrive is not checked here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from overlap.errors import PlanError

from .order import HappensBefore, collective_groups, happens_before, name_op
from .plan import P2P, Chunk, Collective, CommOp, CommPlan, OpId
from .region import Box, overlap_of, uncovered


def verify_plan(plan: CommPlan) -> None:
    """Returns if the plan keeps its promise.

    Raises:
        PlanError: it does not; the message says which rank, operation and chunk, and which two collide.
    """
    check_structure(plan)
    order = happens_before(plan)
    places = _places(plan)
    for (rank, tensor), place in sorted(places.items()):
        _check_place(plan, order, rank, tensor, place)
    for rank, chunks in enumerate(plan.after):
        for chunk in chunks:
            _check_after(plan, places, rank, chunk)


# Structure


def check_structure(plan: CommPlan) -> None:
    """Every rank, index, tensor and box that the plan names exists.

    Raises:
        PlanError: the first one that does not.
    """
    if plan.world < 1:
        raise PlanError(
            f"plan {plan.name}: a world of {plan.world} ranks", where=plan.where(), help="a world has 1 rank or more"
        )
    for what, lists in (("ops", plan.ops), ("before", plan.before), ("after", plan.after)):
        if len(lists) != plan.world:
            raise PlanError(
                f"plan {plan.name}: `{what}` has {len(lists)} lists for a world of {plan.world}",
                where=plan.where(),
                help="give one a rank",
            )
    names = [spec.name for spec in plan.tensors]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PlanError(
            f"plan {plan.name}: tensor `{twice}` is declared twice", where=plan.where(), help="declare each tensor once"
        )
    for what, lists in (("before", plan.before), ("after", plan.after)):
        for rank, chunks in enumerate(lists):
            for chunk in chunks:
                _check_chunk(plan, chunk, f"`{what}` of rank {rank}", None)
    for op_id, op in plan.items():
        _check_op(plan, op_id, op)
    for members in collective_groups(plan):
        _check_collective(plan, members)


def _check_chunk(plan: CommPlan, chunk: Chunk, what: str, op_id: OpId | None) -> None:
    where = plan.where(op_id)
    try:
        spec = plan.tensor(chunk.tensor)
    except KeyError:
        known = ", ".join(spec.name for spec in plan.tensors)
        raise PlanError(
            f"plan {plan.name}: {what} names the tensor `{chunk.tensor}`",
            where=where,
            help=f"there is {known or 'none'}",
        ) from None
    if chunk.box.ndim != len(spec.shape) or not all(
        0 <= low and high <= size for low, high, size in zip(chunk.box.lo, chunk.box.hi, spec.shape, strict=True)
    ):
        raise PlanError(
            f"plan {plan.name}: {what}, {chunk}, is not inside tensor {spec}",
            where=where,
            help="keep boxes inside the tensor",
        )


def _check_op(plan: CommPlan, op_id: OpId, op: CommOp) -> None:
    rank = op_id[0]

    def fail(message: str, help: str) -> PlanError:
        return PlanError(f"plan {plan.name}: {message}", where=plan.where(op_id), help=help)

    ranks = op.ranks if isinstance(op, Collective) else (op.src_rank, op.dst_rank)
    for named in ranks:
        if not 0 <= named < plan.world:
            raise fail(
                f"rank {rank} operation {op_id[1]} names rank {named} in a world of {plan.world}",
                f"ranks are 0 to {plan.world - 1}",
            )
    said = name_op(plan, op_id)
    _check_chunk(plan, op.src, f"the source of {said}", op_id)
    _check_chunk(plan, op.dst, f"the destination of {said}", op_id)
    for dep in op.depends:
        if not (0 <= dep[0] < plan.world and 0 <= dep[1] < len(plan.ops[dep[0]])):
            raise fail(
                f"{said} depends on rank {dep[0]} operation {dep[1]}, which does not exist",
                "a dependency is (rank, index into that rank's list), counted from 0",
            )
    if op.channel < 0:
        raise fail(f"{said} runs in channel {op.channel}", "channels are counted from 0")
    if isinstance(op, Collective):
        if rank not in op.ranks or len(set(op.ranks)) != len(op.ranks):
            raise fail(
                f"{said} stands in the list of rank {rank}", "a collective stands once in the list of each of its ranks"
            )
        return
    if (op.direction == "local") != (op.src_rank == op.dst_rank):
        raise fail(
            f"{said} goes from rank {op.src_rank} to rank {op.dst_rank} as `{op.direction}`",
            "`local` inside a rank, `pull` or `push` between two",
        )
    if op.owner != rank:
        raise fail(
            f"{said} stands in the list of rank {rank}, not of rank {op.owner}",
            "a push stands in the list of its source, a pull in that of its destination",
        )
    if op.src.box.shape != op.dst.box.shape:
        raise fail(f"{said} moves {op.src} into {op.dst}", "source and destination have one shape")
    if op.src.tensor == op.dst.tensor and op.src.box != op.dst.box and not op.src.box.empty:
        raise fail(
            f"{said} puts {op.src} where {op.dst} belongs",
            "inside one tensor a chunk keeps its place; another place is another tensor",
        )


def _check_collective(plan: CommPlan, members: tuple[OpId, ...]) -> None:
    first = plan.op(members[0])
    assert isinstance(first, Collective)
    absent = sorted(set(first.ranks) - {rank for rank, _ in members})
    if absent:
        raise PlanError(
            f"plan {plan.name}: rank {absent[0]} never joins {name_op(plan, members[0])}",
            where=plan.where(members[0]),
            help="a collective stands in the list of each of its ranks, equally often",
        )
    if first.kind == "all_gather" and first.src.tensor == first.dst.tensor:
        given = [plan.op(member).src.box for member in members]
        for member in members:
            missing = uncovered(given, plan.op(member).dst.box)
            if missing:
                raise PlanError(
                    f"plan {plan.name}: no rank gives {Chunk(first.src.tensor, missing[0])} to {name_op(plan, member)}",
                    where=plan.where(member),
                    help="the sources of an all_gather make up its destination",
                )


# Memory: who touches what, rank by rank and tensor by tensor


@dataclass
class _Touched:
    """Everything that concerns one box of one tensor on one rank."""

    held: bool = False
    readers: list[tuple[OpId, bool]] = field(default_factory=list)
    """Operations that read it, and whether only to add to it."""
    writers: list[OpId] = field(default_factory=list)


_Place = dict[Box, _Touched]


def _places(plan: CommPlan) -> dict[tuple[int, str], _Place]:
    places: dict[tuple[int, str], _Place] = defaultdict(lambda: defaultdict(_Touched))
    for rank, chunks in enumerate(plan.before):
        for chunk in chunks:
            if not chunk.box.empty:
                places[rank, chunk.tensor][chunk.box].held = True
    for op_id, op in plan.items():
        for rank, chunk, adding in _reads(op_id, op):
            if not chunk.box.empty:
                places[rank, chunk.tensor][chunk.box].readers.append((op_id, adding))
        for rank, chunk in _writes(op_id, op):
            places[rank, chunk.tensor][chunk.box].writers.append(op_id)
    return places


def _reads(op_id: OpId, op: CommOp) -> Iterator[tuple[int, Chunk, bool]]:
    if isinstance(op, Collective):
        yield op_id[0], op.src, False
        return
    yield op.src_rank, op.src, False
    if op.reduce:
        yield op.dst_rank, op.dst, True


def _writes(op_id: OpId, op: CommOp) -> Iterator[tuple[int, Chunk]]:
    """What an operation overwrites; a gather leaves the rank's own part as it is."""
    if isinstance(op, P2P):
        boxes = [op.dst.box]
    elif op.kind == "all_gather" and op.src.tensor == op.dst.tensor:
        boxes = op.dst.box.subtract(op.src.box)
    else:
        boxes = [op.dst.box]
    rank = op.dst_rank if isinstance(op, P2P) else op_id[0]
    for box in boxes:
        if not box.empty:
            yield rank, Chunk(op.dst.tensor, box)


def _accumulates(op: CommOp) -> bool:
    return op.reduce is not None if isinstance(op, P2P) else op.kind in ("all_reduce", "reduce_scatter")


def _check_place(plan: CommPlan, order: HappensBefore, rank: int, tensor: str, place: _Place) -> None:
    boxes = list(place)
    near: dict[int, list[int]] = {i: [i] for i in range(len(boxes))}
    for i, j, _ in overlap_of(boxes):
        near[i].append(j)
        near[j].append(i)
    touched = [place[box] for box in boxes]
    for i, box in enumerate(boxes):
        for reader, _ in touched[i].readers:
            _check_read(plan, order, rank, Chunk(tensor, box), reader, [(boxes[j], touched[j]) for j in near[i]])
    for i, box in enumerate(boxes):
        for writer in touched[i].writers:
            for j in near[i]:
                _check_write(plan, order, rank, Chunk(tensor, box), writer, Chunk(tensor, boxes[j]), touched[j])


def _check_read(
    plan: CommPlan, order: HappensBefore, rank: int, chunk: Chunk, reader: OpId, near: list[tuple[Box, _Touched]]
) -> None:
    """The rank holds the chunk, from the start or by what happens before."""
    arrivals = [(box, writer) for box, touched in near for writer in touched.writers if writer != reader]
    held = [box for box, touched in near if touched.held]
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
        )
    else:
        owners = [r for r, chunks in enumerate(plan.before) if any(_same(c, chunk, missing[0]) for c in chunks)]
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
    plan: CommPlan, order: HappensBefore, rank: int, chunk: Chunk, writer: OpId, other: Chunk, touched: _Touched
) -> None:
    """No owner, other writer or reader is in the way of a write."""
    op = plan.op(writer)
    shared = Chunk(chunk.tensor, chunk.box.intersect(other.box))
    if touched.held and not _accumulates(op):
        raise PlanError(
            f"plan {plan.name}: {name_op(plan, writer)} overwrites {shared}, which rank {rank} owns",
            where=plan.where(writer),
            help="a rank does not receive what it owns: leave the operation out with `when`, or move less",
        )
    for second in touched.writers:
        commute = _accumulates(op) and _accumulates(plan.op(second)) and op.reduce == plan.op(second).reduce
        if second > writer and not commute and not order.ordered(writer, second):
            raise PlanError(
                f"plan {plan.name}: {shared} on rank {rank} is written twice, by {name_op(plan, writer)} and by "
                f"{name_op(plan, second)}, and nothing says which comes first",
                where=plan.where(second),
                help="remove one of the two",
            )
    for reader, adding in touched.readers:
        if reader != writer and not (adding and _accumulates(op)):
            if not order.ordered(writer, reader):
                raise PlanError(
                    f"plan {plan.name}: {name_op(plan, reader)} reads {shared} on rank {rank} while "
                    f"{name_op(plan, writer)} may be overwriting it",
                    where=plan.where(reader),
                    help=f"make the later of the two depend on the other, `depends: [[{writer[0]}, {writer[1]}]]`",
                )


def _check_after(plan: CommPlan, places: dict[tuple[int, str], _Place], rank: int, chunk: Chunk) -> None:
    place = places.get((rank, chunk.tensor), {})
    have = sorted((box for box, touched in place.items() if touched.held or touched.writers), key=lambda box: box.lo)
    missing = uncovered(have, chunk.box)
    if missing:
        raise PlanError(
            f"plan {plan.name}: rank {rank} ends without {Chunk(chunk.tensor, missing[0])} of its `after` {chunk}",
            where=plan.where(),
            help=f"add an operation that brings it to rank {rank}, or take it out of `after`",
        )
