"""Ways to break a plan: one change each, after which every name, index and box in it still exists."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from overlap.chunkplan.plan import P2P, Chunk, CommPlan, OpId
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box, uncovered
from overlap.chunkplan.structure import check_structure
from overlap.errors import PlanError

from .changed_plans import also, with_op, without_op


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
    return None if at is None else with_op(plan, at, reduce=Reduction("sum"))


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
