"""Imports by `path=`: collectives along mesh axes, left to a library or made for links, against the rule of redistribute."""

from __future__ import annotations

import random

import numpy as np
import pytest

from overlap.chunkplan.build import load_plan
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.importers.axis_steps import axis_steps
from overlap.chunkplan.importers.placement import parse_placement
from overlap.chunkplan.links import Link, full_mesh, ring, two_level
from overlap.chunkplan.mesh import parse_mesh
from overlap.chunkplan.order import happens_before
from overlap.chunkplan.plan import Collective, CommPlan
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError
from overlap.schedule.cost import volumes

from . import test_loop_ir as loops
from .test_partition_ir import CASES, check, lowered
from .values import local_part, parts_in

BARE = Link("bare", 0.0, 1e9, True)


def carry_out(plan: CommPlan, start: np.ndarray) -> list[np.ndarray]:
    """What each rank ends with, its collectives carried out in numpy once all of their ranks have come to them."""
    spec = plan.tensors[0]
    memory = [np.full(spec.shape, np.nan) for _ in range(plan.world)]

    def at(chunk) -> tuple[slice, ...]:
        return tuple(map(slice, chunk.box.lo, chunk.box.hi))

    for rank, chunks in enumerate(plan.before):
        for chunk in chunks:
            memory[rank][at(chunk)] = start.reshape(plan.world, *spec.shape)[rank][at(chunk)]
    for group in calls(plan):
        ops = [plan.op(op_id) for op_id in group]
        given = [memory[rank][at(op.src)].copy() for (rank, _), op in zip(group, ops, strict=True)]
        whole = np.full(spec.shape, np.nan)
        for op, part in zip(ops, given, strict=True):
            if op.reduce is not None:
                part = sum(given)
            whole[at(op.src)] = part
        for (rank, _), op in zip(group, ops, strict=True):
            memory[rank][at(op.dst)] = whole[at(op.dst)]
    return [memory[rank][at(chunks[0])] for rank, chunks in enumerate(plan.after)]


def calls(plan: CommPlan) -> list[list[tuple[int, int]]]:
    """The entries of each collective call, in an order that the plan allows."""
    found: dict[tuple, list[tuple[int, int]]] = {}
    times: dict[tuple[int, tuple[int, ...]], int] = {}
    for op_id in happens_before(plan).order:
        op = plan.op(op_id)
        key = (op_id[0], op.ranks)
        times[key] = times.get(key, 0) + 1
        found.setdefault((op.ranks, times[key]), []).append(op_id)
    return list(found.values())


@pytest.mark.parametrize(("mesh", "pair"), CASES)
def test_a_pair_of_placements_by_collectives(mesh, pair):
    """The numbers of redistribute, and no more moved than by the best known collectives."""
    sizes = parse_mesh(mesh).sizes
    world = int(np.prod(sizes))
    before, after = (tuple(map(parse_placement, text.split())) for text in pair)
    for number, (shape, direction) in enumerate([((7, 5), "pull"), ((2, 9), "push")]):
        tables = (full_mesh(world), full_mesh(world, BARE))
        plan = lowered(mesh, shape, *pair, direction=direction, path="synth", links=tables[number])
        check(plan, mesh, shape, *pair, seed=number)
        library = lowered(mesh, shape, *pair, path="direct")
        verify_plan(library)
        assert load_plan(dump_plan(library)) == library
        assert all(isinstance(op, Collective) for _, op in library.items())
        start = parts_in(sizes, shape, pair[0].split(), number)
        for at, got in zip(np.ndindex(*sizes), carry_out(library, start), strict=True):
            np.testing.assert_array_equal(got, local_part(sizes, start, *map(str.split, pair), at)[0])
    steps = axis_steps((12, 12), parse_mesh(mesh), before, after)
    assert [step.kind for step in steps if step.kind] == [
        call_kind for call_kind in kinds(lowered(mesh, (12, 12), *pair, path="direct"))
    ]


def kinds(plan: CommPlan) -> list[str]:
    return [op.kind for op in plan.ops[0] if isinstance(op, Collective)]


@pytest.mark.parametrize("seed", range(20))
def test_any_placements_by_collectives(seed):
    dice = random.Random(seed)
    mesh = "x".join(str(dice.choice((1, 2, 2, 3))) for _ in range(dice.choice((1, 2, 2, 3))))
    shape = tuple(dice.choice((0, 1, 2, 5, 6, 7)) for _ in range(dice.choice((1, 2, 3))))
    cuts = [f"S({dim})" for dim in range(len(shape))]
    before = [dice.choice([*cuts, "R", "P", "P"]) for _ in mesh.split("x")]
    after = [dice.choice([*cuts, "R", *(["P"] if old == "P" else [])]) for old in before]
    world = parse_mesh(mesh).world
    plan = lowered(
        mesh,
        shape,
        " ".join(before),
        " ".join(after),
        direction=dice.choice(("pull", "push")),
        split=dice.choice((1, 2)),
        path="synth",
        links=dice.choice((full_mesh(world), full_mesh(world, BARE))),
    )
    check(plan, mesh, shape, " ".join(before), " ".join(after))


@pytest.mark.parametrize(
    ("mesh", "pair", "wanted"),
    [
        ("4", ("S(0)", "R"), ["all_gather"]),
        ("4", ("P", "R"), ["all_reduce"]),
        ("4", ("P", "S(1)"), ["reduce_scatter"]),
        ("4", ("S(0)", "S(1)"), ["all_to_all"]),
        ("4", ("R", "S(0)"), []),
        ("2x4", ("S(0) P", "R R"), ["all_reduce", "all_gather"]),
        ("2x4", ("P P", "S(0) S(0)"), ["reduce_scatter", "reduce_scatter"]),
        ("2x4", ("S(0) S(0)", "R R"), ["all_gather", "all_gather"]),
        # Axis 0 is cut inside axis 1: that one is opened first, and cut again for nothing.
        ("2x2", ("S(0) S(0)", "R S(0)"), ["all_gather", "all_gather"]),
    ],
)
def test_the_collectives_that_they_are(mesh, pair, wanted):
    plan = lowered(mesh, (16, 16), *pair, path="direct")
    assert kinds(plan) == wanted
    if mesh == "4":
        # By a library, made for links, or piece by piece: as many bytes.
        made = lowered(mesh, (16, 16), *pair, path="synth", links=full_mesh(4, BARE))
        bytes_by = [volumes(p).total for p in (plan, made, lowered(mesh, (16, 16), *pair))]
        assert len(set(bytes_by)) == 1


def test_links_of_the_group_alone():
    """What moves inside a node goes over its links, by way of its own ranks where two of them are not joined."""
    table = two_level(2, 4)
    plan = lowered("2x4", (16, 4), "R S(0)", "R R", path="synth", links=table)
    assert {(op.src_rank // 4, op.dst_rank // 4) for _, op in plan.items()} == {(0, 0), (1, 1)}
    gap = table.without(0, 3).without(4, 7)
    plan = lowered("2x4", (16, 4), "R S(0)", "R R", path="synth", links=gap)
    check(plan, "2x4", (16, 4), "R S(0)", "R R")
    assert not {(0, 3), (3, 0), (4, 7), (7, 4)} & {(op.src_rank, op.dst_rank) for _, op in plan.items()}
    with pytest.raises(PlanError, match="no links lead from rank 4 to rank 0"):
        lowered("2x4", (16, 4), "S(0) R", "R R", path="synth", links=ring(8))
    with pytest.raises(PlanError, match="nothing to make a plan for"):
        lowered("4", (16, 4), "S(0)", "R", path="synth")
    with pytest.raises(PlanError, match="unknown path `library`"):
        lowered("4", (16, 4), "S(0)", "R", path="library")
    with pytest.raises(PlanError, match="mesh 4 with links of a world of 3"):
        lowered("4", (16, 4), "S(0)", "R", path="synth", links=full_mesh(3))
    check(lowered("2x2", (), "P R", "R R", path="template"), "2x2", (), "P R", "R R")
    assert kinds(lowered("2x2", (), "P R", "R R", path="direct")) == ["all_reduce"]
    with pytest.raises(PlanError, match="has no dimension 0"):
        lowered("2x2", (), "P R", "R R", path="synth", links=full_mesh(4, BARE))


NESTS = {
    "context parallel": loops.attention("4", {"I": 4, "J": 4}, "I", "J").parallelize("I", 0).shard("kv", "I"),
    "ulysses": loops.heads().parallelize("H", 0).shard("q", "H", dim=0).shard("o", "H", dim=0),
    "reduced write": loops.tensor_parallel((10, 3, 5)),
    "sharded reduced write": loops.tensor_parallel((10, 3, 5)).shard("c", "K", dim=0),
    "ring attention": loops.attention("4", {"I": 4, "J": 4}, "I", "J").parallelize("I", 0).shift("J", "I"),
}


@pytest.mark.parametrize("name", NESTS)
def test_loop_nests_by_collectives(name):
    """What a nest gathers, exchanges or sums up is a collective; what a shifted loop passes on stays a ring."""
    nest = NESTS[name]
    made = loops.check(nest, path="synth", links=full_mesh(4, BARE))
    library = loops.lower_loop_ir(nest, path="direct")
    verify_plan(library)
    by_library = {op.kind for _, op in library.items() if isinstance(op, Collective)}
    assert (
        by_library
        == {
            "context parallel": {"all_gather"},
            "ulysses": {"all_to_all"},
            "reduced write": {"all_reduce"},
            "sharded reduced write": {"reduce_scatter"},
            "ring attention": set(),
        }[name]
    )
    if name == "ring attention":
        assert made == library == loops.lower_loop_ir(nest)
    assert volumes(made).total == volumes(loops.lower_loop_ir(nest)).total
