"""Whose parts make up a sum: the value of every chunk of a reduced tensor, as the set of parts that it counts.

At the start a rank's value is its own part, numbered as the tensor says. A move carries the value that its source has
when it starts, a reduction adds it to what is there. Values are kept by boxes and never by element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from overlap.errors import PlanError

from .memory import Place, PlaceId, adds
from .order import HappensBefore, also_at, collective_groups, name_op
from .parts import Parts, Twice, disjoint, initial, placed, put, ranks_of, together
from .plan import P2P, Chunk, Collective, CommPlan, OpId
from .reduction import REDUCTIONS
from .region import Box, uncovered
from .summands import Summands


class Contributions:
    """The values of the tensors in ``checked``, and of those that feed them, over a plan without collisions.

    Args:
        places: of `overlap.chunkplan.memory.places_of`.
        checked: names of tensors whose chunks are sums of one part from each rank.

    Raises:
        PlanError: a collective brings values of another tensor.
    """

    def __init__(
        self, plan: CommPlan, order: HappensBefore, places: dict[PlaceId, Place], checked: frozenset[str]
    ) -> None:
        self.plan = plan
        self.order = order
        self.places = places
        self.checked = checked
        self.brought: dict[OpId, Parts] = {}
        """What each operation puts at its destination."""
        self._summands = Summands(plan)
        self._parts = self._summands.numbers
        self._when = {op_id: number for number, op_id in enumerate(order.order)}
        self._known: dict[tuple[PlaceId, Box, tuple[OpId, ...]], Parts] = {}
        self._carry(self._feeding())

    def check(self) -> None:
        """Every promised chunk counts every rank, once. A sum that reaches no promised chunk may be anything.

        Raises:
            PlanError: names the rank that is missing or counted twice, the chunk, and the operations.
        """
        promised = [
            (rank, chunk.tensor, self.value((rank, chunk.tensor), chunk.box, None))
            for rank, chunks in enumerate(self.plan.after)
            for chunk in chunks
            if chunk.tensor in self.checked and not chunk.box.empty
        ]
        for _, _, parts in promised:
            for _, _, twice in parts:
                if twice is not None:
                    raise self._twice(twice)
        for rank, tensor, parts in promised:
            for whole, mask, _ in sorted(parts, key=lambda part: part[0].lo):
                for box in self._summands.cut(tensor, rank, whole):
                    wanted = self._summands.wanted(tensor, rank, box, mask)
                    if mask != wanted:
                        raise self._missing(rank, Chunk(tensor, box), mask, wanted)

    # Values

    def value(self, at: PlaceId, box: Box, reader: OpId | None) -> Parts:
        """What operation ``reader`` sees at a box that the plan touches; None: what is there in the end."""
        place = self.places[at]
        own: list[Box] = []
        groups: dict[Box, list[OpId]] = {}
        for j in place.near[place.number[box]]:
            touched = place.touched[j]
            if touched.held:
                own.append(place.boxes[j])
            seen = touched.writers
            if reader is not None:
                seen = [writer for writer in seen if self.order.before(writer, reader)]
            if seen:
                groups.setdefault(place.boxes[j].intersect(box), []).extend(seen)
        if not groups:
            return initial(box, own, self._part(at))
        if len(groups) == 1 and box in groups:
            return self._folded(at, box, own, self._in_order(groups[box]))
        parts: Parts = []
        for boxes, writers in together(groups):
            behind = self._in_order(writers)
            for alone in disjoint(boxes):
                parts += self._folded(at, alone, own, behind)
        for rest in uncovered(sorted(groups, key=lambda other: other.lo), box):
            parts += initial(rest, own, self._part(at))
        return parts

    def _part(self, at: PlaceId) -> int:
        """The number of the part that a rank holds of a tensor."""
        return self._parts[at[1]][at[0]]

    def _holders(self, tensor: str, mask: int) -> list[int]:
        """A rank for each part that ``mask`` counts."""
        return [self._holder(tensor, part) for part in ranks_of(mask)]

    def _holder(self, tensor: str, part: int) -> int:
        """A rank that holds a part of a tensor; of another tensor, where the part came from there."""
        rows = (self._parts[tensor], *self._parts.values())
        return next(row.index(part) for row in rows if part in row)

    def _in_order(self, ops: Iterable[OpId]) -> tuple[OpId, ...]:
        return tuple(sorted(ops, key=self._when.__getitem__))

    def _folded(self, at: PlaceId, box: Box, own: Sequence[Box], writers: tuple[OpId, ...]) -> Parts:
        """The value of ``box`` behind ``writers``, one after the other."""
        known = self._known.get((at, box, writers))
        if known is not None:
            return known
        parts = initial(box, own, self._part(at))
        for writer in writers:
            op = self.plan.op(writer)
            once = op.reduce is not None and REDUCTIONS[op.reduce.op].idempotent
            for part, mask, carried in self.brought.get(writer, []):
                parts = put(parts, part, mask, adds(op), writer, once, carried)
        parts = placed(parts, at, writers)
        self._known[at, box, writers] = parts
        return parts

    def _feeding(self) -> frozenset[str]:
        """The checked tensors, and those whose values reach one."""
        found = set(self.checked)
        while True:
            more = {op.src.tensor for _, op in self.plan.items() if op.dst.tensor in found} - found
            if not more:
                return frozenset(found)
            found |= more

    def _carry(self, tensors: frozenset[str]) -> None:
        members = {member: group for group in collective_groups(self.plan) for member in group}
        for op_id in self.order.order:
            op = self.plan.op(op_id)
            if op.dst.tensor not in tensors or op_id in self.brought:
                continue
            if isinstance(op, Collective):
                self._collective(members[op_id])
            elif not op.src.box.empty:
                offset = [to - start for start, to in zip(op.src.box.lo, op.dst.box.lo, strict=True)]
                seen = self.value((op.src_rank, op.src.tensor), op.src.box, op_id)
                moved = [(box.translate(offset), mask, twice) for box, mask, twice in seen] if any(offset) else seen
                self.brought[op_id] = moved

    def _collective(self, group: tuple[OpId, ...]) -> None:
        """All members start together: each takes what the others have then."""
        given: list[tuple[OpId, Parts]] = []
        for member in group:
            op = self.plan.op(member)
            if op.src.tensor != op.dst.tensor:
                raise PlanError(
                    f"plan {self.plan.name}: {name_op(self.plan, member)} goes from one tensor to another, so whose "
                    f"parts reach {op.dst.tensor} cannot be told",
                    where=self.plan.where(member),
                    help="stay in one tensor, or write it as pushes with `reduce`",
                )
            if not op.src.box.empty:
                given.append((member, self.value((member[0], op.src.tensor), op.src.box, member)))
        for member in group:
            op = self.plan.op(member)
            assert isinstance(op, Collective)
            sums = op.kind in ("all_reduce", "reduce_scatter")
            parts: Parts = [] if op.dst.box.empty else [(op.dst.box, 0, None)]
            for giver, values in given:
                for box, mask, carried in values:
                    parts = put(parts, box, mask, sums, giver, carried=carried)
            self.brought[member] = placed(parts, (member[0], op.dst.tensor), call=member)

    # Stories

    def _twice(self, twice: Twice) -> PlanError:
        mask, second, at, box, writers, call = twice
        assert at is not None and box is not None
        if call is not None:
            return PlanError(
                f"plan {self.plan.name}: rank {self._holders(at[1], mask)[0]} is counted twice in "
                f"{Chunk(at[1], box)} by {name_op(self.plan, call)}",
                where=self.plan.where(call),
                help=f"what rank {second[0]} gives counts it already: let each rank give its own part",
            )
        counted = ranks_of(mask)[0]
        first = self._source(at, box, counted, writers[: writers.index(second)])
        if isinstance(first, tuple) and second < first and not self.order.before(first, second):
            first, second = second, first
        brings = self._mask_of(second, box)
        first_holder = self._holder(at[1], counted)
        ranks = ", ".join(map(str, self._holders(at[1], brings)))
        told = f", which brings the sum of ranks {ranks}" if brings & brings - 1 else ""
        return PlanError(
            f"plan {self.plan.name}: rank {first_holder} is counted twice in {Chunk(at[1], box)} on rank {at[0]}: by "
            f"{self._named(first)} and by {name_op(self.plan, second)}{told}",
            where=self.plan.where(second),
            help="a sum takes each rank's part once: leave one of the two out, or let it carry a part without that rank"
            + (also_at(self.plan, first, second) if isinstance(first, tuple) else ""),
        )

    def _missing(self, rank: int, chunk: Chunk, mask: int, wanted: int) -> PlanError:
        at = (rank, chunk.tensor)
        if not wanted & ~mask:
            return self._foreign(rank, chunk, mask & ~wanted)
        lost = ranks_of(wanted & ~mask)[0]
        holder = self._holder(chunk.tensor, lost)
        said = f"plan {self.plan.name}: rank {rank} ends with {chunk} without the part of rank {holder}"
        replaced = self._replaced(at, chunk.box, lost)
        late = self._late(at, chunk.box, lost, mask)
        if late is not None and (replaced is None or isinstance(replaced[1], int)):
            return self._late_error(said, *late)
        seen = self._writers(at, chunk.box, None)
        if replaced is not None:
            writer, source = replaced
            return PlanError(
                f"{said}: {name_op(self.plan, writer)} replaces what came from {self._named(source)}",
                where=self.plan.where(writer),
                help="add it with `reduce: sum`, or let what it carries count that rank first"
                + (also_at(self.plan, source, writer) if isinstance(source, tuple) else ""),
            )
        if not any(adds(self.plan.op(writer)) for writer in seen):
            way = f"nothing is added to {chunk.tensor} there: take a plan that reduces, such as reduce_scatter_1d"
        else:
            way = f"add an operation that brings the part of rank {holder} to rank {rank}, with `reduce: sum`"
        return PlanError(said, where=self.plan.where(), help=way)

    def _foreign(self, rank: int, chunk: Chunk, mask: int) -> PlanError:
        """A sum that counts something else, which came by way of another tensor."""
        other = next((name for name, parts in self._parts.items() if ranks_of(mask)[0] in parts), chunk.tensor)
        holder = self._holder(other, ranks_of(mask)[0])
        group = self.plan.tensor(chunk.tensor).group
        apart = group(holder) != group(rank)
        return PlanError(
            f"plan {self.plan.name}: rank {rank} ends with {chunk} that counts {other} of rank {holder}, which is "
            + ("in another group" if apart else f"no part of {chunk.tensor}"),
            where=self.plan.where(),
            help="a sum counts the ranks of one group: give both tensors the same `groups`"
            if apart
            else f"rank {holder} holds a part of {chunk.tensor} itself: leave that out of `before`, or do not add {other}",
        )

    def _late_error(self, said: str, bringer: OpId, reader: OpId) -> PlanError:
        op = self.plan.op(bringer)
        assert isinstance(op, P2P)
        turned = self.order.before(reader, bringer)
        return PlanError(
            f"{said}: {name_op(self.plan, bringer)} adds it on rank {op.dst_rank}, but "
            f"{name_op(self.plan, reader)} {'comes before that' if turned else 'does not wait for that'}",
            where=self.plan.where(reader),
            help=(
                "turn the two round"
                if turned
                else f"make the second depend on the first, `depends: [[{bringer[0]}, {bringer[1]}]]`"
            )
            + also_at(self.plan, bringer, reader),
        )

    def _replaced(self, at: PlaceId, box: Box, lost: int) -> tuple[OpId, OpId | int] | None:
        """The last move into a place, and what had brought the lost part before it."""
        seen = self._writers(at, box, None)
        last = next((i for i in reversed(range(len(seen))) if not adds(self.plan.op(seen[i]))), None)
        source = None if last is None else self._source(at, box, lost, seen[:last])
        return None if last is None or source is None else (seen[last], source)

    def _named(self, source: OpId | int | None) -> str:
        return name_op(self.plan, source) if isinstance(source, tuple) else f"rank {source} itself"

    def _writers(self, at: PlaceId, box: Box, reader: OpId | None) -> list[OpId]:
        """Operations that land on a place in ``box`` and are seen by ``reader``, one after the other."""
        found = [
            writer
            for other, touched in zip(self.places[at].boxes, self.places[at].touched, strict=True)
            if other.overlaps(box)
            for writer in touched.writers
            if reader is None or self.order.before(writer, reader)
        ]
        return list(self._in_order(found))

    def _mask_of(self, op_id: OpId, box: Box) -> int:
        """The ranks counted by what an operation puts into ``box``."""
        counted = 0
        for part, mask, _ in self.brought.get(op_id, []):
            counted |= mask if part.overlaps(box) else 0
        return counted

    def _source(self, at: PlaceId, box: Box, part: int, writers: Sequence[OpId]) -> OpId | int | None:
        """What put a part into the value of ``box`` behind ``writers``: an operation, or the rank."""
        place = self.places[at]
        owned = any(
            touched.held and other.overlaps(box) for other, touched in zip(place.boxes, place.touched, strict=True)
        )
        found: OpId | int | None = at[0] if owned and part == self._part(at) else None
        for writer in writers:
            mask = self._mask_of(writer, box)
            if mask >> part & 1:
                found = writer
            elif not adds(self.plan.op(writer)) and any(other.overlaps(box) for other, _, _ in self.brought[writer]):
                found = None
        return found

    def _late(self, at: PlaceId, box: Box, lost: int, counted: int) -> tuple[OpId, OpId] | None:
        """An operation that brings the lost part to a rank, and one that sends that rank's value on too early.

        One whose parts are ``counted`` in the end is none: it would be counted twice.
        """
        seen: set[OpId] = set()
        waiting = [(writer, box) for writer in self._writers(at, box, None)]
        while waiting:
            reader, region = waiting.pop(0)
            op = self.plan.op(reader)
            if reader in seen or not isinstance(op, P2P):
                continue
            seen.add(reader)
            offset = [start - to for start, to in zip(op.src.box.lo, op.dst.box.lo, strict=True)]
            source = region.intersect(op.dst.box).translate(offset)
            place = (op.src_rank, op.src.tensor)
            before = self._writers(place, source, reader)
            for writer in self._writers(place, source, None):
                brings = self._mask_of(writer, source)
                if writer not in before and adds(self.plan.op(writer)) and brings >> lost & 1 and not brings & counted:
                    return writer, reader
            waiting += [(writer, source) for writer in before]
        return None
