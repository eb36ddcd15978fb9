"""The steps of a rank behind its kernel: what leaves it, and the sums of what comes in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.errors import UnsupportedError

from .early import Added, early_sums, kept_chunks, rounds_of, sums_of
from .moves import behind_another
from .pieces import Piece, Sums, Values, partial_sources, pieces
from .staying import staying
from .step import Await, Branch, Copy, Fork, Gather, Hold, Join, Raise, Step, Sum, Whole


def stages(produced: Collection[str], values: Values) -> dict[OpId, int]:
    """How many sums stand, one behind the other, before each operation.

    An operation that sends a sum is one stage behind the last of the operations that land in it.
    """
    found: dict[OpId, int] = {}
    order = values.order
    for op_id in order.order:
        stage = max((found[before] for before, _ in order.predecessors[op_id]), default=0)
        if values.plan.op(op_id).src.tensor in produced:
            for _, summands in values.source(op_id):
                stage = max([stage, *(found[landed] + 1 for landed in summands if landed is not None)])
        found[op_id] = stage
    return found


class Producing:
    """The steps of a rank behind its kernel: what leaves it, and the sums of what comes in."""

    def __init__(
        self,
        plan: CommPlan,
        rank: int,
        produced: Collection[str],
        stores: bool | Collection[OpId],
        *,
        early: bool = False,
        sums_store: Collection[OpId] = (),
        in_place: bool = False,
        finished: Collection[Piece] = (),
    ) -> None:
        values = Values(plan)
        stage = stages(produced, values)
        self._plan = plan
        self._rank = rank
        self._stages: dict[int, list[OpId]] = {}
        for index, op in enumerate(plan.ops[rank]):
            if op.src.tensor in produced:
                self._stages.setdefault(stage[rank, index], []).append((rank, index))
        self.partial = {op: chunk for chunk, ops in partial_sources(plan, rank, produced, values) for op in ops}
        # An empty chunk has no tile that could raise its flag.
        sends = (op for op, chunk in self.partial.items() if not chunk.box.empty)
        self.stored = tuple(sorted(op for op in sends if stores is True or (stores and op in stores)))
        for op_id in self.stored:
            if plan.op(op_id).depends:
                raise UnsupportedError(
                    f"plan {plan.name}, {name_op(plan, op_id)} depends on another, and tiles that store it would wait for "
                    "that",
                    where=plan.where(op_id),
                    help="copy_engine carries this plan out",
                )
        copied = {n: [op_id for op_id in ops if op_id not in self.stored] for n, ops in self._stages.items()}
        self._stages = {n: ops for n, ops in copied.items() if ops}
        self._by_sums = frozenset(sums_store)
        """Operations that sums carry out."""
        found = (staying(plan, rank, tensor, values) for tensor in (sorted(produced) if in_place else ()))
        self.placed = tuple(piece for several in found for piece in several)
        """What tiles store in results themselves."""
        self.finished = tuple(finished)
        """What tiles add up themselves, and store there too."""
        self._pieces = {tensor: self._summed(tensor, values) for tensor in produced}
        self._waited: set[OpId] = set()
        """What the main stream's sums have seen landed."""
        self.behind: dict[int, set[OpId]] = {}
        self.joined: set[int] = set()
        """Lanes that `steps` joins itself."""
        self.early = early_sums(plan, rank, produced, values) if early else ()
        """Sums that are made while the kernel runs, on a lane of their own behind all channels."""
        self.kept = kept_chunks(plan, rank, produced, values) if early else ()
        """Chunks that such sums add and no operation sends, with their rounds."""
        self._sums = sums_of(plan, rank, produced, values) if self.early else ()

    def _summed(self, tensor: str, values: Values) -> tuple[Sums, tuple[Piece, ...]]:
        """As `pieces`, without what tiles store in the result themselves."""
        sums, result = pieces(self._plan, self._rank, tensor, values)
        return sums, tuple(piece for piece in result if piece not in (*self.placed, *self.finished))

    def forks(self) -> list[Step]:
        """Lanes whose first operation sends what the kernel makes; with early sums all of them, and that of the sums."""
        if self.early:
            used = {self._plan.op(op).channel for ops in self._stages.values() for op in ops if op not in self._by_sums}
            placing = {self._place_lane} if self._rounds_placed() else ()
            self.behind = {lane: set() for lane in sorted({*used, self._sum_lane, *placing})}
            return [Fork(lane) for lane in self.behind]
        first = {self._plan.op(op).channel for op in self._stages.get(0, ())}
        self.behind = {lane: set() for lane in sorted(first)}
        return [Fork(lane) for lane in self.behind]

    @property
    def _sum_lane(self) -> int:
        return 1 + max((op.channel for _, op in self._plan.items()), default=-1)

    @property
    def _place_lane(self) -> int:
        return self._sum_lane + 1

    def _rounds_placed(self) -> dict[int, list[tuple[str, tuple[Piece, ...]]]]:
        """By round, the parts of results that other ranks' sums store here while the rank has sums of its own to make."""
        rounds, last = rounds_of(self._plan), self._sums[-1].round
        found: dict[int, list[tuple[str, tuple[Piece, ...]]]] = {}
        for tensor, (_, result) in self._pieces.items():
            several: dict[int, list[Piece]] = {}
            for piece in result:
                if not piece.keep and self._by_sums.issuperset(piece.summands):
                    several.setdefault(_round(piece, rounds), []).append(piece)
            for number, here in several.items():
                if number < last:
                    found.setdefault(number, []).append((tensor, tuple(here)))
        return dict(sorted(found.items()))

    def steps(self) -> list[Step]:
        return self._early_steps() if self.early else self._late_steps()

    def _early_steps(self) -> list[Step]:
        """By rounds: what tiles made leaves, what has come is added up, sums leave; the last round behind the kernel.

        Sums that others store here arrive meanwhile. A lane puts them in their place round by round, beside the kernel and beside
        the last sum, which links hold up: nobody waits for that lane but the end of the call.
        """
        plan, lane = self._plan, self._sum_lane
        rounds = rounds_of(plan)
        adding = {op: added for added in self._sums for op in added.ops}
        own = [(self._rank, i) for i, op in enumerate(plan.ops[self._rank]) if op.src.tensor in self._pieces]
        numbers = sorted({*(rounds[op] for op in own if op not in adding), *(added.round for added in self._sums)})
        last = self._sums[-1].round
        steps: list[Step] = []
        held: dict[int, set[object]] = {}
        done: set[OpId] = set()
        placing = self._rounds_placed()
        placed = {piece for several in placing.values() for _, here in several for piece in here}
        for number in numbers:
            for op in own:
                if op not in adding and rounds[op] == number and op not in done:
                    steps += self._sent(op, held)
                    done.add(op)
            if number == last:
                steps.append(Join(lane))
                self.joined.add(lane)
            for added in (each for each in self._sums if each.round == number):
                ahead = self._own_ahead(added.tensor, rounds, placed) if number == last else ()
                steps += self._sum(replace(added, pieces=(*ahead, *added.pieces)), None if number == last else lane)
                placed.update(ahead)
                for op in added.ops:
                    if op not in self._by_sums:
                        steps += carry_out(plan, op, self.behind)
                    done.add(op)
            for ended in [each for each in placing if each <= number]:
                steps += self._placed(placing.pop(ended))
        for several in placing.values():
            steps += self._placed(several)
        if self._place_lane in self.behind:
            steps.append(Join(self._place_lane))
            self.joined.add(self._place_lane)
        for tensor, (_, result) in self._pieces.items():
            summed = {piece for added in self._sums for piece in added.pieces} | placed
            left = [piece for piece in result if piece not in summed]
            if left:
                # As they arrive: what came first is put in its place while the last is on its way.
                left.sort(key=lambda piece: _round(piece, rounds))
                steps.append(Sum(tensor, tuple(left)))
        return steps

    def _placed(self, several: list[tuple[str, tuple[Piece, ...]]]) -> list[Step]:
        """What has come of a round, put in its place."""
        return [step for tensor, here in several for step in self._sum(Added(0, tensor, here), self._place_lane)]

    def _own_ahead(self, tensor: str, rounds: dict[OpId, int], placed: Collection[Piece]) -> tuple[Piece, ...]:
        """Parts of the result that the launch of the last sum puts in their place before it waits for the last copies: what
        the rank itself has made of them and nobody adds to, as of an exchange."""
        return tuple(
            piece
            for piece in self._pieces[tensor][1]
            if not piece.keep and _round(piece, rounds) < 0 and piece not in placed
        )

    def _sum(self, added: Added, lane: int | None) -> list[Step]:
        """A sum with what it waits for, and forks of the lanes that send it on."""
        steps: list[Step] = []
        ops = tuple(sorted({op for piece in added.pieces for op in piece.summands if op is not None}))
        if lane is not None:
            own = dict.fromkeys(piece.chunk for piece in added.pieces if None in piece.summands)
            steps += [Whole(lane, chunk) for chunk in own]
            steps.append(Gather(lane, ops))
            self.behind[lane].update(ops)
        steps.append(Sum(added.tensor, added.pieces, lane, self._stored(added.ops)))
        if lane is None:
            self._waited.update(ops)
        for channel in sorted({self._plan.op(op).channel for op in added.ops if op not in self._by_sums}):
            steps.append(Fork(channel) if lane is None else Branch(channel, lane))
            self.behind[channel].update(self._waited if lane is None else self.behind[lane])
        return steps

    def _stored(self, ops: Collection[OpId]) -> tuple[OpId, ...]:
        """Those of the operations that send a sum which it carries out itself."""
        return tuple(op for op in ops if op in self._by_sums)

    def _sent(self, op: OpId, held: dict[int, set[object]]) -> list[Step]:
        """An operation that sends what tiles made, held until that is whole."""
        seen = held.setdefault(self._plan.op(op).channel, set())
        hold: list[Step] = []
        if op in self.partial and self.partial[op] not in seen:
            seen.add(self.partial[op])
            hold = [Hold(self._plan.op(op).channel, op)]
        return carry_out(self._plan, op, self.behind, hold)

    def _late_steps(self) -> list[Step]:
        steps: list[Step] = []
        held: dict[int, set[object]] = {}
        added: dict[tuple[OpId, ...], int] = {}
        """How many sums stand before a group of operations may send theirs, that sum included."""
        forked = dict.fromkeys(self.behind, 0)
        """How many sums stood before each lane's last fork."""
        sums = 0
        for stage in sorted(self._stages):
            for op in self._stages[stage]:
                lane = self._plan.op(op).channel
                group, tensor, wanted = self._group(op)
                if group not in added:
                    # One sum a group: what is sent first leaves while the next is added up.
                    if wanted:
                        steps.append(Sum(tensor, wanted, stores=self._stored(group)))
                        sums += 1
                        self._waited.update(o for piece in wanted for o in piece.summands if o is not None)
                    added[group] = sums if wanted else 0
                if op in self._by_sums:
                    continue
                if lane not in forked or added[group] > forked[lane]:
                    steps.append(Fork(lane))
                    forked[lane] = sums
                    self.behind.setdefault(lane, set()).update(self._waited)
                steps += self._sent(op, held)
        for tensor, (_, result) in self._pieces.items():
            left = [piece for piece in result if not piece.keep]
            if left:
                # What the rank has made itself is there, what others send may be on its way.
                left.sort(key=lambda piece: any(op is not None for op in piece.summands))
                steps.append(Sum(tensor, tuple(left)))
        return steps

    def _group(self, op: OpId) -> tuple[tuple[OpId, ...], str, tuple[Piece, ...]]:
        """The operations that send what ``op`` does, their tensor, and the pieces of the sum they send (none: a partial)."""
        tensor = self._plan.op(op).src.tensor
        for group, kept in self._pieces[tensor][0].items():
            if op in group:
                return group, tensor, kept
        return (op,), tensor, ()


def _round(piece: Piece, rounds: dict[OpId, int]) -> int:
    """The latest round of what a piece is made of; -1 where nothing of it has come from elsewhere."""
    return max((rounds[op] for op in piece.summands if op is not None), default=-1)


def carry_out(
    plan: CommPlan,
    op_id: OpId,
    behind: dict[int, set[OpId]],
    hold: list[Step] | None = None,
    lane: int | None = None,
    moved: Collection[OpId] = (),
    given: bool = False,
) -> list[Step]:
    """Await what the operation depends on, copy, raise its flag; ``behind`` is what each lane has seen.

    Its lane is its channel where none is given. ``moved``: operations that no lane carries out. ``given``: see `Copy`.
    """
    op = _copied(plan, op_id)
    lane = op.channel if lane is None else lane
    steps: list[Step] = []
    ahead = behind_another(plan, op_id, moved) if moved else None
    for dep in (*op.depends, *((ahead,) if ahead is not None else ())):
        if dep not in behind[lane]:
            steps.append(Await(lane, dep, _copied(plan, dep).dst_rank))
            behind[lane].add(dep)
    behind[lane].add(op_id)
    return [*steps, *(hold or ()), Copy(lane, op_id, given), Raise(lane, op_id)]


def _copied(plan: CommPlan, op_id: OpId) -> P2P:
    op = plan.op(op_id)
    assert isinstance(op, P2P)
    return op
