"""Small random plans that are right, or broken, each from a seed: grown (`grown_plans`) or made of a shipped template. Channels,
directions, relays, empty pieces, dependencies beyond those needed and the order in lists are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.merge import merge_plans
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import CommPlan, TensorSpec

from .broken_plans import break_plan
from .grown_plans import any_shape, gathered_parts, grouped, moves, packed, sums

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
        return moves(dice, TensorSpec("a", any_shape(dice)), dice.choice(_WORLDS))
    if kind < 0.6:
        return sums(dice, TensorSpec("c", any_shape(dice)), dice.choice(_WORLDS))
    if kind < 0.7:
        world = dice.randint(2, 4)
        moved, added = TensorSpec("a", any_shape(dice)), TensorSpec("c", any_shape(dice))
        return merge_plans([moves(dice, moved, world), sums(dice, added, world)], name="moves_and_sums")
    if kind < 0.75:
        return packed(dice, dice.randint(1, 4))
    if kind < 0.79:
        return gathered_parts(dice, dice.randint(2, 4))
    if kind < 0.85:
        return grouped(dice)
    return _template(dice)


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
