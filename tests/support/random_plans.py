"""Small random plans that are right, and ways to break them.

A right plan is grown: pieces of tensors lie on ranks, and every operation added takes a piece from where it is by then and
waits for what brought it. Channels, directions, relays, empty pieces, dependencies beyond those needed and the order in
lists are drawn. Sums are grown piece by piece as trees, stars, chains and doublings; where the drawn channels would let a
sum see a part twice, it is drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.merge import merge_plans
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import P2P, Chunk, CommPlan, OpId, TensorSpec
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box, uncovered
from overlap.chunkplan.structure import check_structure
from overlap.errors import PlanError

from .plan_model import faults_of

SUM = Reduction("sum")
Key = int
"""Number of an operation in the order in which a plan grows."""
_WORLDS = (1, 2, 2, 3, 3, 3, 4, 4, 4)


@dataclass(frozen=True)
class Case:
    """A plan, the seed that gives it again, and what was broken; nothing where it is right."""

    seed: int
    plan: CommPlan
    broken: tuple[str, ...] = ()


def cases(count: int, first: int = 0) -> Iterator[Case]:
    """``count`` plans: every third one right, the others broken once or twice."""
    for seed in range(first, first + count):
        yield case(seed)


def case(seed: int) -> Case:
    """The plan of a seed."""
    dice = random.Random(seed)
    plan = right_plan(dice)
    broken: list[str] = []
    for _ in range(min(2, seed % 3)):
        name, plan = break_plan(plan, dice)
        broken.append(name)
        if dice.random() < 0.6:
            break
    return Case(seed, plan, tuple(broken))


def right_plan(dice: random.Random) -> CommPlan:
    """A plan that keeps its promise in every order."""
    kind = dice.random()
    if kind < 0.35:
        return _moves(dice, TensorSpec("a", _shape(dice)), dice.choice(_WORLDS))
    if kind < 0.6:
        return _sums(dice, TensorSpec("c", _shape(dice)), dice.choice(_WORLDS))
    if kind < 0.7:
        world = dice.randint(2, 4)
        moves, sums = TensorSpec("a", _shape(dice)), TensorSpec("c", _shape(dice))
        return merge_plans([_moves(dice, moves, world), _sums(dice, sums, world)], name="moves_and_sums")
    if kind < 0.75:
        return _packed(dice, dice.randint(1, 4))
    if kind < 0.79:
        return _gathered_parts(dice, dice.randint(2, 4))
    if kind < 0.85:
        return _grouped(dice)
    return _template(dice)


# Growing


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


def _shape(dice: random.Random) -> tuple[int, ...]:
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


def _moves(dice: random.Random, spec: TensorSpec, world: int) -> CommPlan:
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


def _packed(dice: random.Random, world: int) -> CommPlan:
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


def _sums(dice: random.Random, spec: TensorSpec, world: int) -> CommPlan:
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


def _gathered_parts(dice: random.Random, world: int) -> CommPlan:
    """Every rank holds a part in ``p``; pieces are summed in ``c``, onto a part that lies there or is copied there first."""
    shape = _shape(dice)
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


def _grouped(dice: random.Random) -> CommPlan:
    """Ranks in groups, each with a tensor of its own under one name."""
    world = dice.randint(2, 4)
    drawn = [dice.randrange(2) for _ in range(world)]
    groups = tuple(sorted(set(drawn)).index(group) for group in drawn)
    spec = TensorSpec("a", _shape(dice))
    grow = dice.choice((_moves, _sums))
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


_TEMPLATES = (
    "all_gather_1d",
    "all_gather_ring",
    "all_gather_double_ring",
    "all_gather_ring_both_ways",
    "all_gather_2d",
    "all_reduce_one_shot",
    "all_reduce_two_shot",
    "all_reduce_ring",
    "all_reduce_2d",
    "all_to_all_1d",
    "all_to_all_2d",
    "broadcast",
    "halo",
    "kv_ring",
    "reduce_scatter_1d",
    "reduce_scatter_2d",
    "reduce_scatter_ring",
)
_MESHES = ((1, 2), (2, 1), (2, 2), (1, 3), (3, 1))


def _template(dice: random.Random) -> CommPlan:
    """A shipped template on a small world or mesh."""
    name = dice.choice(_TEMPLATES)
    path, text = find_template(name)
    mesh = Mesh(dice.choice(_MESHES), ("node", "gpu")) if "mesh:" in text else None
    sums = "reduce" in name
    shape = tuple(dice.choice((1, 3, 4, 6)) for _ in range(2))
    return build_plan(
        text,
        world=mesh.world if mesh else dice.choice(_WORLDS),
        mesh=mesh,
        tensor=TensorSpec("k" if name == "kv_ring" else "c" if sums else "a", shape),
        dim=0,
        to_dim=1 if name.startswith("all_to_all") else None,
        split=1 if name.startswith("all_to_all") else dice.choice((1, 1, 2)),
        direction="push" if sums else dice.choice(("push", "pull")),
        path=path,
    )


def _plan(
    name: str,
    world: int,
    tensors: tuple[TensorSpec, ...],
    before: Sequence[Sequence[Chunk]],
    after: Sequence[Sequence[Chunk]],
    growth: _Growth,
) -> CommPlan:
    return CommPlan(name, world, tensors, tuple(map(tuple, before)), tuple(map(tuple, after)), growth.lists())


# Breaking


def break_plan(plan: CommPlan, dice: random.Random) -> tuple[str, CommPlan]:
    """One change to a plan, by name; every name, index and box in it still exists. A plan that nothing can be changed in
    comes back as it is, as ``nothing``."""
    ways = list(BREAKS)
    dice.shuffle(ways)
    for way in ways:
        broken = BREAKS[way](plan, dice)
        if broken is not None and broken != plan and _is_whole(broken):
            return way, replace(broken, spans=(), span=None)
    return "nothing", plan


def _is_whole(plan: CommPlan) -> bool:
    """Whether everything that a plan names exists, and groups keep to themselves."""
    try:
        check_structure(plan)
    except PlanError:
        return False
    return True


def _some_op(plan: CommPlan, dice: random.Random, wanted: Callable[[P2P], bool] = lambda op: True) -> OpId | None:
    found = [op_id for op_id, op in plan.items() if isinstance(op, P2P) and wanted(op)]
    return dice.choice(found) if found else None


def with_op(plan: CommPlan, at: OpId, **changes: object) -> CommPlan:
    """The plan with some fields of one operation changed."""
    rows = [list(row) for row in plan.ops]
    rows[at[0]][at[1]] = replace(rows[at[0]][at[1]], **changes)  # type: ignore[arg-type]
    return replace(plan, ops=tuple(map(tuple, rows)))


def also(plan: CommPlan, rank: int, op: P2P) -> CommPlan:
    """The plan with one more operation at the end of a rank's list."""
    return replace(plan, ops=tuple((*row, op) if r == rank else row for r, row in enumerate(plan.ops)))


def without_op(plan: CommPlan, at: OpId) -> CommPlan:
    """The plan without one operation: dependencies on it go, those behind it move up."""

    def kept(depends: tuple[OpId, ...]) -> tuple[OpId, ...]:
        return tuple((r, i - (r == at[0] and i > at[1])) for r, i in depends if (r, i) != at)

    rows = (
        tuple(replace(op, depends=kept(op.depends)) for index, op in enumerate(row) if (rank, index) != at)
        for rank, row in enumerate(plan.ops)
    )
    return replace(plan, ops=tuple(rows), spans=())


def _drop_dependency(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    at = _some_op(plan, dice, lambda op: bool(op.depends))
    if at is None:
        return None
    depends = list(plan.op(at).depends)
    depends.pop(dice.randrange(len(depends)))
    return with_op(plan, at, depends=tuple(depends))


def _retarget_dependency(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    at = _some_op(plan, dice, lambda op: bool(op.depends))
    other = _some_op(plan, dice)
    if at is None or other is None:
        return None
    depends = list(plan.op(at).depends)
    depends[dice.randrange(len(depends))] = other
    return with_op(plan, at, depends=tuple(dict.fromkeys(depends)))


def _add_dependency(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    at, other = _some_op(plan, dice), _some_op(plan, dice)
    if at is None or other is None:
        return None
    return with_op(plan, at, depends=tuple(dict.fromkeys((*plan.op(at).depends, other))))


def _close_cycle(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    """An operation waits for one that waits for it."""
    at = _some_op(plan, dice, lambda op: bool(op.depends))
    if at is None:
        return None
    first = dice.choice(plan.op(at).depends)
    return with_op(plan, first, depends=(*plan.op(first).depends, at))


def _shifted(chunk: Chunk, dim: int, by: int) -> Chunk:
    return Chunk(chunk.tensor, chunk.box.translate(tuple(by if d == dim else 0 for d in range(chunk.box.ndim))))


def _shift_box(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    at = _some_op(plan, dice, lambda op: not op.src.box.empty)
    if at is None:
        return None
    op = plan.op(at)
    dim, by = dice.randrange(op.src.box.ndim), dice.choice((-1, 1))
    moved = _shifted(op.src, dim, by), op.dst if op.dst.tensor != op.src.tensor else _shifted(op.dst, dim, by)
    for chunk in moved:
        if not all(
            0 <= lo and hi <= n
            for lo, hi, n in zip(chunk.box.lo, chunk.box.hi, plan.tensor(chunk.tensor).shape, strict=True)
        ):
            return None
    return with_op(plan, at, src=moved[0], dst=moved[1])


def _shrunk(chunk: Chunk, dim: int, first: bool) -> Chunk:
    lo, hi = chunk.box.lo[dim], chunk.box.hi[dim]
    return Chunk(chunk.tensor, chunk.box.with_interval(dim, lo + first, hi - (not first)))


def _shrink_box(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    at = _some_op(plan, dice, lambda op: not op.src.box.empty)
    if at is None:
        return None
    op = plan.op(at)
    dim, first = dice.randrange(op.src.box.ndim), dice.random() < 0.5
    return with_op(plan, at, src=_shrunk(op.src, dim, first), dst=_shrunk(op.dst, dim, first))


def _duplicate(plan: CommPlan, dice: random.Random, wanted: Callable[[P2P], bool] = lambda op: True) -> CommPlan | None:
    at = _some_op(plan, dice, wanted)
    if at is None:
        return None
    op = plan.op(at)
    assert isinstance(op, P2P)
    return also(plan, at[0], replace(op, channel=dice.choice((op.channel, dice.randrange(3)))))


def _duplicate_contribution(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    return _duplicate(plan, dice, lambda op: op.reduce is not None)


def _pass_on(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    """What an operation brings goes on, behind it, to a rank that may have it already."""
    at = _some_op(plan, dice, lambda op: op.reduce is None)
    if at is None or plan.world < 2:
        return None
    op = plan.op(at)
    assert isinstance(op, P2P)
    rank = dice.choice([r for r in range(plan.world) if r != op.dst_rank])
    more = P2P("push", op.dst_rank, rank, op.dst, op.dst, (at,), dice.randrange(3))
    return also(plan, more.owner, more)


def _drop_operation(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    at = _some_op(plan, dice)
    return None if at is None else without_op(plan, at)


def _swap_in_lane(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    """Two operations of a lane change places; what depends on them stays with them, or with their places."""
    at = _some_op(plan, dice)
    if at is None:
        return None
    rank = at[0]
    mates = [i for i, op in enumerate(plan.ops[rank]) if op.channel == plan.op(at).channel and i != at[1]]
    if not mates:
        return None
    other = (rank, dice.choice(mates))
    turned = {at: other, other: at} if dice.random() < 0.5 else {}
    rows = [[replace(op, depends=tuple(turned.get(d, d) for d in op.depends)) for op in row] for row in plan.ops]
    row = rows[rank]
    row[at[1]], row[other[1]] = row[other[1]], row[at[1]]
    return replace(plan, ops=tuple(map(tuple, rows)))


def _change_channel(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    at = _some_op(plan, dice)
    return None if at is None else with_op(plan, at, channel=dice.randrange(4))


def _wrong_rank(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    """A pull from, or a push to, another rank."""
    at = _some_op(plan, dice)
    if at is None:
        return None
    op = plan.op(at)
    assert isinstance(op, P2P)
    others = [r for r in range(plan.world) if r not in (op.src_rank, op.dst_rank)]
    if not others or op.direction == "local":
        return None
    return with_op(plan, at, **{"src_rank" if op.direction == "pull" else "dst_rank": dice.choice(others)})


def _grow_after(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    rank = dice.randrange(plan.world)
    spec = dice.choice(plan.tensors)
    left = uncovered([c.box for c in plan.after[rank] if c.tensor == spec.name], Box.whole(spec.shape))
    if not left:
        return None
    more = Chunk(spec.name, dice.choice(left))
    return replace(plan, after=tuple((*row, more) if r == rank else row for r, row in enumerate(plan.after)))


def _shrink_before(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    held = [(r, i) for r, row in enumerate(plan.before) for i, chunk in enumerate(row) if not chunk.box.empty]
    if not held:
        return None
    rank, number = dice.choice(held)
    row = list(plan.before[rank])
    if dice.random() < 0.5:
        row[number] = _shrunk(row[number], dice.randrange(row[number].box.ndim), dice.random() < 0.5)
    else:
        del row[number]
    return replace(plan, before=tuple(tuple(row) if r == rank else old for r, old in enumerate(plan.before)))


def _replace_sum(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    """What was added replaces."""
    at = _some_op(plan, dice, lambda op: op.reduce is not None)
    return None if at is None else with_op(plan, at, reduce=None)


def _add_move(plan: CommPlan, dice: random.Random) -> CommPlan | None:
    """What replaced is added."""
    reduced = {op.dst.tensor for _, op in plan.items() if op.reduce}
    at = _some_op(plan, dice, lambda op: op.reduce is None and op.dst.tensor in reduced)
    return None if at is None else with_op(plan, at, reduce=SUM)


BREAKS: dict[str, Callable[[CommPlan, random.Random], CommPlan | None]] = {
    "a dependency dropped": _drop_dependency,
    "a dependency on another operation": _retarget_dependency,
    "one more dependency": _add_dependency,
    "a cycle closed": _close_cycle,
    "a box shifted": _shift_box,
    "a box shrunk": _shrink_box,
    "an operation twice": _duplicate,
    "a contribution twice": _duplicate_contribution,
    "a chunk passed on": _pass_on,
    "an operation dropped": _drop_operation,
    "two operations of a lane swapped": _swap_in_lane,
    "another channel": _change_channel,
    "another rank": _wrong_rank,
    "more promised": _grow_after,
    "less held": _shrink_before,
    "a sum replaced": _replace_sum,
    "a move added": _add_move,
}
