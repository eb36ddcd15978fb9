"""Counts to try a plan with whose sizes are known at a call only.

The verifier proves concrete plans, so a plan for any counts is proven for those it was built with and for no others.
`trials_of` chooses some that find mistakes: none at all, full capacity in all the ways in which one index is singled out,
and random ones with many zeros.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from .bind import bound_to
from .counts import CountArray
from .countskey import shape_text, shape_to_try
from .mesh import Mesh
from .plan import TensorSpec
from .reader import read_template


@dataclass(frozen=True)
class Room:
    """Counts that a plan takes: their shape, what each is at most, and what all are together (None: any number)."""

    name: str
    shape: tuple[int, ...]
    each: int | None
    total: int | None

    def __str__(self) -> str:
        limits = [f"each {self.each} at most"] if self.each is not None else []
        limits += [f"{self.total} at most in all"] if self.total is not None else []
        return f"{self.name}[{', '.join(map(str, self.shape))}], {', '.join(limits)}"


@dataclass(frozen=True)
class Trial:
    """Counts under a name that says what is special about them."""

    name: str
    counts: dict[str, CountArray]

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{name}={array}" for name, array in self.counts.items())


def rooms_of(
    source: str,
    *,
    world: int,
    tensor: TensorSpec,
    dim: int,
    to_dim: int | None = None,
    mesh: Mesh | None = None,
    path: str = "plan.yaml",
) -> tuple[Room, ...]:
    """What counts the plan in ``source`` takes; nothing where it has none. Arguments as in `build_plan`.

    Raises:
        PlanError: the plan cannot be applied, binds a size to a name, or states no limit, so that nothing says how many
            there may be.
    """
    template = read_template(source, path)
    zeros = {decl.name: shape_to_try(template, decl, world, mesh) for decl in template.counts}
    counts = {name: CountArray(shape, (0,) * prod(shape)) for name, shape in zeros.items()}
    bound = bound_to(template, world=world, tensor=tensor, dim=dim, to_dim=to_dim, mesh=mesh, counts=counts)
    env = {**bound.symbols, "split": 1}
    found = []
    for decl in template.counts:
        each = None if decl.each is None else decl.each(env)
        total = None if decl.total is None else decl.total(env)
        if each is None and total is None:
            raise template.document.error(
                decl.node,
                f"nothing says how large the counts `{decl.name}` may be, so which ones should be tried?",
                help=f"state it, as in `{decl.name}: {{by: {shape_text(decl, {})}, total: extent}}`, or give counts",
            )
        for what, limit in ((decl.each, each), (decl.total, total)):
            if what is not None and limit is not None and limit < 0:
                raise what.error(f"counts of {limit} at most", "a count is 0 or more")
        found.append(Room(decl.name, zeros[decl.name], each, total))
    return tuple(found)


def trials_of(rooms: Sequence[Room], *, random_ones: int = 20, seed: int = 0) -> list[Trial]:
    """Counts within the given limits, all different: none, full capacity in several ways, and ``random_ones`` random ones."""
    if not rooms:
        return []
    dice = random.Random(seed)
    found: dict[tuple[CountArray, ...], Trial] = {}

    def add(name: str, arrays: Sequence[CountArray]) -> None:
        found.setdefault(tuple(arrays), Trial(name, {r.name: a for r, a in zip(rooms, arrays, strict=True)}))

    add("nothing at all", [CountArray(room.shape, (0,) * prod(room.shape)) for room in rooms])
    ways = [dict(_full(room)) for room in rooms]
    for name in {name: None for way in ways for name in way}:
        add(name, [way.get(name, way["everywhere"]) for way in ways])
    for number in range(random_ones):
        add(f"random counts {number}", [_random(room, dice) for room in rooms])
    return list(found.values())


def _full(room: Room) -> Iterator[tuple[str, CountArray]]:
    """Full capacity: spread evenly, and with one index at its first or last value, one of several at a time or all."""
    yield "everywhere", _spread(room, [1] * prod(room.shape))
    places = list(CountArray(room.shape, (0,) * prod(room.shape)).places())
    for number, size in enumerate(room.shape):
        for value in {0, size - 1} - {-1}:
            yield f"only where index {number} is {value}", _spread(room, [int(at[number] == value) for at in places])
    for first in {0, 1}:
        wanted = tuple((size - 1) * ((number + first) % 2) for number, size in enumerate(room.shape))
        yield f"only at {list(wanted)}", _spread(room, [int(at == wanted) for at in places])
    yield "only where all indices are equal", _spread(room, [int(len(set(at)) == 1) for at in places])


def _random(room: Room, dice: random.Random) -> CountArray:
    density = dice.choice((0.2, 0.5, 1.0))
    weights = [dice.randrange(1, 100) if dice.random() < density else 0 for _ in range(prod(room.shape))]
    return _spread(room, weights, dice.choice((30, 90, 100)))


def _spread(room: Room, weights: Sequence[int], percent: int = 100) -> CountArray:
    """Counts in proportion to ``weights`` that fill ``percent`` of the room; no remainder is lost where there is place for it."""
    each = room.each if room.each is not None else room.total or 0
    most = each * sum(weight > 0 for weight in weights)
    left = (most if room.total is None else min(room.total, most)) * percent // 100
    total = sum(weights)
    values = [min(each, left * weight // total) if total else 0 for weight in weights]
    left -= sum(values)
    for place, weight in enumerate(weights):
        more = min(left, each - values[place]) if weight else 0
        values[place] += more
        left -= more
    return CountArray(room.shape, tuple(values))
