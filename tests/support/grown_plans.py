"""Small random plans, grown: pieces of tensors lie on ranks, and every operation added takes a piece from where it is by then and
waits for what brought it. Sums are grown piece by piece as trees, stars, chains and doublings; where the drawn channels would let
a sum see a part twice, it is drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from overlap.chunkplan.plan import P2P, Chunk, CommPlan, OpId, TensorSpec
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box

from .plan_model import faults_of

SUM = Reduction("sum")
Key = int
"""Number of an operation in the order in which a plan grows."""


class _Growth:
    """Operations in the order in which they were added, each after all it waits for."""

    def __init__(self, dice: random.Random, world: int, *, wild: bool = True) -> None:
        self.dice = dice
        self.world = world
        self.channels = dice.randint(1, 3) if wild else 0
        self.wild = wild
        self.ops: list[P2P] = []
        self.behind: list[set[Key]] = []
        """By operation: all that is complete when it starts."""
        self.depends: list[list[Key]] = []
        self._last: dict[tuple[int, int], Key] = {}

    def add(self, op: P2P, needs: set[Key], channel: int | None = None) -> Key:
        """Adds ``op`` behind ``needs``: by dependencies, or by its lane where that is behind them already."""
        dice = self.dice
        op = replace(op, channel=dice.randrange(self.channels) if channel is None else channel)
        lane = (op.owner, op.channel)
        behind: set[Key] = set()
        if lane in self._last:
            behind = {self._last[lane], *self.behind[self._last[lane]]}
        depends = [key for key in sorted(needs) if key not in behind or (self.wild and dice.random() < 0.5)]
        if self.wild and self.ops and dice.random() < 0.15:
            depends.append(dice.randrange(len(self.ops)))
        for key in depends:
            behind |= {key, *self.behind[key]}
        key = len(self.ops)
        self.ops.append(op)
        self.behind.append(behind)
        self.depends.append(list(dict.fromkeys(depends)))
        self._last[lane] = key
        return key

    def lists(self) -> tuple[tuple[P2P, ...], ...]:
        """Each rank's list: lanes keep their order and are shuffled into each other."""
        place: dict[Key, OpId] = {}
        rows: list[list[Key]] = []
        for rank in range(self.world):
            lanes: dict[int, list[Key]] = {}
            for key, op in enumerate(self.ops):
                if op.owner == rank:
                    lanes.setdefault(op.channel, []).append(key)
            turns = [channel for channel, keys in lanes.items() for _ in keys]
            if self.wild:
                self.dice.shuffle(turns)
            row = [lanes[channel].pop(0) for channel in turns]
            place.update({key: (rank, index) for index, key in enumerate(row)})
            rows.append(row)
        return tuple(
            tuple(replace(self.ops[key], depends=tuple(place[d] for d in self.depends[key])) for key in row)
            for row in rows
        )


def any_shape(dice: random.Random) -> tuple[int, ...]:
    return tuple(dice.choice((1, 2, 3, 5, 7)) for _ in range(dice.randint(1, 2)))


def _cut(dice: random.Random, box: Box, parts: int) -> list[Box]:
    """``box`` in disjoint boxes, some of them perhaps empty."""
    boxes = [box]
    while len(boxes) < parts:
        old = boxes.pop(dice.randrange(len(boxes)))
        dim = dice.randrange(old.ndim)
        at = dice.randint(old.lo[dim], old.hi[dim])
        boxes += [old.with_interval(dim, old.lo[dim], at), old.with_interval(dim, at, old.hi[dim])]
    return boxes


def _moved(
    dice: random.Random, src: int, dst: int, source: Chunk, target: Chunk, reduce: Reduction | None = None
) -> P2P:
    direction = "local" if src == dst else dice.choice(("push", "pull"))
    return P2P(direction, src, dst, source, target, reduce=reduce)


def moves(dice: random.Random, spec: TensorSpec, world: int) -> CommPlan:
    """Pieces that some ranks own go to those that want them, from whoever has them by then."""
    tensor, shape = spec.name, spec.shape
    kind = dice.choice(("gather", "exchange", "some", "broadcast", "neighbours"))
    pieces = _cut(dice, Box.whole(shape), dice.randint(2, world + 2))
    first = dice.randrange(world)
    owners = [{first} if kind == "broadcast" else {dice.randrange(world)} for _ in pieces]
    if kind == "some":
        owners = [found | {r for r in range(world) if dice.random() < 0.3} for found in owners]
    wanted: list[set[int]] = []
    for found in owners:
        owner = min(found)
        wanted.append(
            {
                "gather": set(range(world)),
                "broadcast": set(range(world)),
                "exchange": {dice.randrange(world)},
                "some": {r for r in range(world) if dice.random() < 0.6},
                "neighbours": {r for r in range(world) if abs(r - owner) <= 1},
            }[kind]
        )
    growth = _Growth(dice, world)
    copies = [_Copies(dice, growth, Chunk(tensor, box), found) for box, found in zip(pieces, owners, strict=True)]
    legs = [(number, rank) for number, found in enumerate(wanted) for rank in found]
    # Some pieces also pass through ranks that do not keep them.
    legs += [(number, dice.randrange(world)) for number in range(len(pieces)) if dice.random() < 0.2]
    dice.shuffle(legs)
    for number, rank in legs:
        copies[number].bring(rank)
    for number in range(len(pieces)):
        if dice.random() < 0.2:
            copies[number].bring_again()
    before = [
        [Chunk(tensor, box) for box, found in zip(pieces, owners, strict=True) if r in found] for r in range(world)
    ]
    after = [
        [Chunk(tensor, box) for box, found in zip(pieces, wanted, strict=True) if r in found] for r in range(world)
    ]
    if kind in ("gather", "broadcast") and dice.random() < 0.5:
        after = [[Chunk(tensor, Box.whole(shape))] for _ in range(world)]
    return _plan(kind, world, (spec,), before, after, growth)


class _Copies:
    """Where a piece is while a plan grows: by rank the parts it came in, each with the operation that brought it."""

    def __init__(self, dice: random.Random, growth: _Growth, chunk: Chunk, owners: set[int]) -> None:
        self.dice = dice
        self.growth = growth
        self.chunk = chunk
        self.owners = owners
        self.on: dict[int, list[tuple[Box, Key | None]]] = {rank: [(chunk.box, None)] for rank in owners}
        self.readers: dict[int, set[Key]] = {}

    def bring(self, rank: int) -> None:
        """To a rank that does not have it: whole or in parts, each part from some rank that has it."""
        if rank in self.on:
            return
        parts = _cut(self.dice, self.chunk.box, self.dice.choice((1, 1, 1, 2, 3)))
        arrived: list[tuple[Box, Key | None]] = [(part, self._send(part, rank, set())) for part in parts]
        self.on[rank] = arrived

    def bring_again(self) -> None:
        """A second time to a rank that does not own it, behind all that brought it there and all that read it there."""
        ranks = sorted(set(self.on) - self.owners)
        if not ranks:
            return
        rank = self.dice.choice(ranks)
        brought = {key for _, key in self.on[rank] if key is not None}
        key = self._send(self.chunk.box, rank, brought | self.readers.get(rank, set()))
        self.on[rank].append((self.chunk.box, key))
        if len(self.on) < self.growth.world and self.dice.random() < 0.5:
            self.bring(next(r for r in range(self.growth.world) if r not in self.on))

    def _send(self, part: Box, rank: int, needs: set[Key]) -> Key:
        sources = [r for r in sorted(self.on) if r != rank]
        relays = [r for r in sources if r not in self.owners]
        source = self.dice.choice(relays if relays and self.dice.random() < 0.6 else sources)
        needs = needs | {key for held, key in self.on[source] if key is not None and held.overlaps(part)}
        chunk = Chunk(self.chunk.tensor, part)
        key = self.growth.add(_moved(self.dice, source, rank, chunk, chunk), needs)
        self.readers.setdefault(source, set()).add(key)
        return key


def packed(dice: random.Random, world: int) -> CommPlan:
    """Pieces of ``a`` are laid one behind the other into ``b``, mostly of another rank, and some of ``b`` travels on."""
    shape = (dice.choice((3, 5, 7)), *((dice.randint(1, 2),) if dice.random() < 0.5 else ()))
    rows = [Box((0, *(0 for _ in shape[1:])), shape)]
    growth = _Growth(dice, world)
    room = 0
    before: list[list[Chunk]] = [[] for _ in range(world)]
    after: list[list[Chunk]] = [[] for _ in range(world)]
    placed: list[tuple[int, int, Box, Key]] = []
    for _ in range(dice.randint(1, 4)):
        source, target = dice.randrange(world), dice.randrange(world)
        lo = dice.randint(0, shape[0])
        taken = rows[0].with_interval(0, lo, dice.randint(lo, shape[0]))
        length = taken.hi[0] - taken.lo[0]
        into = taken.with_interval(0, room, room + length)
        if not any(chunk.box.contains(taken) for chunk in before[source]):
            before[source].append(Chunk("a", taken))
        key = growth.add(_moved(dice, source, target, Chunk("a", taken), Chunk("b", into)), set())
        placed.append((source, target, into, key))
        after[target].append(Chunk("b", into))
        room += length
    for _, target, into, key in placed:
        others = [r for r in range(world) if r != target]
        if others and dice.random() < 0.4:
            reader = dice.choice(others)
            growth.add(_moved(dice, target, reader, Chunk("b", into), Chunk("b", into)), {key})
            after[reader].append(Chunk("b", into))
    tensors = (TensorSpec("a", shape), TensorSpec("b", (room, *shape[1:])))
    return _plan("packed", world, tensors, before, after, growth)


def sums(dice: random.Random, spec: TensorSpec, world: int) -> CommPlan:
    """Every rank starts with a part of everything; each piece is summed its own way, and the sums travel on."""
    if world > 1 and dice.random() < 0.2:
        # Some ranks hold the same part: one of them gives it.
        parts = [0, 1, *(dice.randrange(world) for _ in range(world - 2))]
        dice.shuffle(parts)
        spec = replace(spec, parts=tuple(sorted(set(parts)).index(part) for part in parts))
    for attempt in range(6):
        plan = _sums_once(dice, spec, world, wild=attempt < 5)
        if not faults_of(plan):
            return plan
    raise AssertionError("sums with a channel a piece see no part twice")


def _sums_once(dice: random.Random, spec: TensorSpec, world: int, *, wild: bool) -> CommPlan:
    whole = Chunk(spec.name, Box.whole(spec.shape))
    growth = _Growth(dice, world, wild=wild)
    pulls = wild and dice.random() < 0.3
    after: list[list[Chunk]] = [[] for _ in range(world)]
    for number, box in enumerate(_cut(dice, whole.box, dice.randint(1, world + 1))):
        chunk = Chunk(spec.name, box)
        summing = _Summing(dice, growth, chunk, spec.parts or tuple(range(world)), None if wild else number, pulls)
        have = dice.choice((summing.star, summing.tree, summing.tree, summing.tree, summing.doubling))()
        for rank in sorted(range(world), key=lambda _: dice.random()):
            if rank not in have and dice.random() < 0.6:
                source = dice.choice(sorted(have))
                # It replaces what the rank itself has sent.
                have[rank] = {summing.send(source, rank, have[source] | summing.sent[rank], reduce=None)}
        for rank in have:
            after[rank].append(chunk)
    return _plan("sums", world, (spec,), [[whole]] * world, after, growth)


Summed = dict[int, set[Key]]
"""By rank that has the whole sum: what it waits for."""


@dataclass
class _Summing:
    """Ways to sum one chunk, of which rank r holds ``parts[r]``; ``channel`` None leaves channels to chance."""

    dice: random.Random
    growth: _Growth
    chunk: Chunk
    parts: tuple[int, ...]
    channel: int | None
    pulls: bool

    def __post_init__(self) -> None:
        self.sent: list[set[Key]] = [set() for _ in self.parts]
        """By rank."""

    def send(self, source: int, target: int, needs: set[Key], reduce: Reduction | None = SUM) -> Key:
        op = P2P("push", source, target, self.chunk, self.chunk, reduce=reduce)
        if self.pulls:
            op = replace(op, direction=self.dice.choice(("push", "pull")))
        key = self.growth.add(op, needs, self.channel)
        self.sent[source].add(key)
        return key

    def star(self) -> Summed:
        """Every part goes from one rank to all that sum."""
        world = self.growth.world
        targets = self.dice.sample(range(world), self.dice.randint(1, world))
        legs = [(self._holder(part), t) for t in targets for part in set(self.parts) if part != self.parts[t]]
        self.dice.shuffle(legs)
        have: Summed = {target: set() for target in targets}
        for rank, target in legs:
            have[target].add(self.send(rank, target, set()))
        return have

    def tree(self) -> Summed:
        """Every rank adds what its children send to its own part, and sends the sum to its parent; a chain is a tree."""
        ranks = [self._holder(part) for part in sorted(set(self.parts), key=lambda _: self.dice.random())]
        chain = self.dice.random() < 0.4
        arrived: Summed = {rank: set() for rank in ranks}
        for place in reversed(range(1, len(ranks))):
            parent = ranks[place - 1 if chain else self.dice.randrange(place)]
            arrived[parent].add(self.send(ranks[place], parent, arrived[ranks[place]]))
        return {ranks[0]: arrived[ranks[0]]}

    def doubling(self) -> Summed:
        """Pairs exchange, then pairs of pairs: worlds of 1, 2 and 4 parts. Others are summed as a tree."""
        world = self.growth.world
        if world & world - 1 or len(set(self.parts)) < world:
            return self.tree()
        arrived: Summed = {rank: set() for rank in range(world)}
        bit = 1
        while bit < world:
            sent = {rank: self.send(rank, rank ^ bit, arrived[rank]) for rank in range(world)}
            arrived = {rank: {*arrived[rank], sent[rank ^ bit]} for rank in range(world)}
            bit *= 2
        return arrived

    def _holder(self, part: int) -> int:
        return self.dice.choice([rank for rank, own in enumerate(self.parts) if own == part])


def gathered_parts(dice: random.Random, world: int) -> CommPlan:
    """Every rank holds a part in ``p``; pieces are summed in ``c``, onto a part that lies there or is copied there first."""
    shape = any_shape(dice)
    growth = _Growth(dice, world)
    before: list[list[Chunk]] = [[Chunk("p", Box.whole(shape))] for _ in range(world)]
    after: list[list[Chunk]] = [[] for _ in range(world)]
    for box in _cut(dice, Box.whole(shape), dice.randint(1, world)):
        part, total, root = Chunk("p", box), Chunk("c", box), dice.randrange(world)
        needs: set[Key] = set()
        if dice.random() < 0.5:
            before[root].append(total)
        else:
            needs = {growth.add(_moved(dice, root, root, part, total), set())}
        ranks = [rank for rank in range(world) if rank != root]
        dice.shuffle(ranks)
        summed = {growth.add(_moved(dice, rank, root, part, total, SUM), needs) for rank in ranks}
        after[root].append(total)
        if dice.random() < 0.5:
            growth.add(P2P("push", root, ranks[0], total, total), summed | needs)
            after[ranks[0]].append(total)
    return _plan("gathered_parts", world, (TensorSpec("c", shape), TensorSpec("p", shape)), before, after, growth)


def grouped(dice: random.Random) -> CommPlan:
    """Ranks in groups, each with a tensor of its own under one name."""
    world = dice.randint(2, 4)
    drawn = [dice.randrange(2) for _ in range(world)]
    groups = tuple(sorted(set(drawn)).index(group) for group in drawn)
    spec = TensorSpec("a", any_shape(dice))
    grow = dice.choice((moves, sums))
    before: list[tuple[Chunk, ...]] = [()] * world
    after: list[tuple[Chunk, ...]] = [()] * world
    ops: list[tuple[P2P, ...]] = [()] * world
    parts = [0] * world
    for group in set(groups):
        ranks = [rank for rank in range(world) if groups[rank] == group]
        plan = grow(dice, spec, len(ranks))
        for own, rank in enumerate(ranks):
            before[rank], after[rank] = plan.before[own], plan.after[own]
            parts[rank] = plan.tensors[0].parts[own] if plan.tensors[0].parts else own
            ops[rank] = tuple(
                replace(
                    op,
                    src_rank=ranks[op.src_rank],
                    dst_rank=ranks[op.dst_rank],
                    depends=tuple((ranks[r], i) for r, i in op.depends),
                )
                for op in plan.ops[own]
            )
    spec = replace(spec, parts=tuple(parts), groups=groups)
    return CommPlan("grouped", world, (spec,), tuple(before), tuple(after), tuple(ops))


def _plan(
    name: str,
    world: int,
    tensors: tuple[TensorSpec, ...],
    before: Sequence[Sequence[Chunk]],
    after: Sequence[Sequence[Chunk]],
    growth: _Growth,
) -> CommPlan:
    return CommPlan(name, world, tensors, tuple(map(tuple, before)), tuple(map(tuple, after)), growth.lists())
