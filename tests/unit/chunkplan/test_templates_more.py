"""Every shipped template on worlds and meshes with even, uneven and empty pieces: verified, and carried out with data.

The data is compared with the collective in numpy. Sums are carried out over numbers of different size a rank, so that
one part too many or too few is a wrong number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.library import find_template, list_mixed, list_templates
from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import Chunk, CommPlan, TensorSpec
from overlap.chunkplan.promise import verify_kind
from overlap.chunkplan.region import Box, shard_interval
from overlap.chunkplan.verify import verify_contributions, verify_plan
from overlap.errors import PlanError

from .oracle import collective, execute

GATHERS = (
    "all_gather_1d",
    "all_gather_1d_pull",
    "all_gather_1d_push",
    "all_gather_2d",
    "all_gather_double_ring",
    "all_gather_ring",
    "all_gather_ring_both_ways",
    "broadcast",
)
KINDS = {
    "gather": GATHERS,
    "reduce_scatter": ("reduce_scatter_1d", "reduce_scatter_2d", "reduce_scatter_ring"),
    "all_reduce": ("all_reduce_2d", "all_reduce_one_shot", "all_reduce_ring", "all_reduce_two_shot"),
    "all_to_all": ("all_to_all_1d", "all_to_all_1d_push", "all_to_all_2d"),
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names} | {"halo": None}
MESHES = [(1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (1, 5)]
SHAPES = {"even": (16, 48), "uneven": (11, 5), "empty": (1, 3), "nothing": (0, 4)}


def make(name: str, mesh: tuple[int, ...], shape: tuple[int, ...], dim=0, split=1, direction=None) -> CommPlan:
    path, text = find_template(name)
    kind = KIND_OF[name]
    produced = kind in ("reduce_scatter", "all_reduce")
    return build_plan(
        text,
        world=prod(mesh),
        tensor=TensorSpec("a", shape),
        dim=dim,
        to_dim=1 - dim if kind == "all_to_all" else None,
        split=split,
        direction=direction or ("push" if produced else "pull"),
        mesh=Mesh(mesh),
        path=path,
    )


def links_used(plan: CommPlan) -> Counter[tuple[int, int]]:
    """Elements that go from one rank to another."""
    sent: Counter[tuple[int, int]] = Counter()
    for _, op in plan.items():
        sent[op.src_rank, op.dst_rank] += op.src.box.size
    return sent


def test_these_are_the_templates():
    assert list_templates() == tuple(sorted((*KIND_OF, "all_to_all_v", "kv_ring")))


@pytest.mark.parametrize("pieces", SHAPES)
@pytest.mark.parametrize("name", KIND_OF)
def test_verified_and_equal_to_the_collective(name, pieces):
    kind = KIND_OF[name]
    for number, mesh in enumerate(MESHES):
        dim, split = number % 2, 1 + number % 3
        plan = make(name, mesh, SHAPES[pieces], dim, split)
        verify_plan(plan)
        if kind is not None:
            verify_kind(plan, "a", kind, dim=dim, to_dim=1 - dim)
        if kind == "all_reduce":
            verify_contributions(plan, "a")
        collective(plan, kind, seed=number)
        if number % 4 == 0:
            assert load_plan(dump_plan(plan)) == plan


@pytest.mark.parametrize("name", KIND_OF)
def test_either_side_may_carry_it_out(name):
    plans = [make(name, (2, 3), (7, 9), direction=direction) for direction in ("pull", "push")]
    for plan in plans:
        verify_plan(plan)
        collective(plan, KIND_OF[name], seed=1)
    assert links_used(plans[0]) == links_used(plans[1])


# What goes over which link, where every piece has n elements


N = 6


def far(plan: CommPlan, per_node: int) -> dict[int, int]:
    """Pieces of N elements that every node sends to others, in all."""
    sent: Counter[int] = Counter()
    for (a, b), size in links_used(plan).items():
        if a // per_node != b // per_node:
            sent[a // per_node] += size
    return {node: size // N for node, size in sent.items()}


@pytest.mark.parametrize(("nodes", "size"), [(2, 2), (2, 4), (3, 2)])
def test_between_nodes_goes_as_little_as_can(nodes, size):
    """A gathered shard crosses into each other node once; a sum leaves once for each node; an exchange has no choice."""
    world, others = nodes * size, nodes - 1
    for name, wanted in (
        ("all_gather_2d", size * others),
        ("reduce_scatter_2d", size * others),
        ("all_reduce_2d", 2 * size * others),
        ("all_gather_double_ring", size * others),
    ):
        plan = make(name, (nodes, size), (world, N))
        assert far(plan, size) == dict.fromkeys(range(nodes), wanted), name
    exchange = make("all_to_all_2d", (nodes, size), (world, world * N))
    assert far(exchange, size) == dict.fromkeys(range(nodes), size * size * others)
    direct = make("all_to_all_1d", (nodes, size), (world, world * N))
    assert far(direct, size) == far(exchange, size)


def partners(plan: CommPlan, rank: int) -> set[int]:
    return {b for a, b in links_used(plan) if a == rank}


def test_rings_speak_to_neighbours_only():
    for name in ("all_gather_ring_both_ways", "reduce_scatter_ring", "all_reduce_ring"):
        plan = make(name, (1, 6), (12, 2))
        for rank in range(6):
            wanted = {(rank + 1) % 6, (rank - 1) % 6} if "both" in name else {(rank + 1) % 6}
            assert partners(plan, rank) == wanted
    double = make("all_gather_double_ring", (3, 4), (12, 2))
    mesh = Mesh((3, 4))
    for rank in range(12):
        node, gpu = mesh.coordinates(rank)
        wanted = {mesh.global_rank(((node - 1) % 3, gpu)), mesh.global_rank((node, (gpu - 1) % 4))}
        assert partners(double, rank) == wanted
    exchange = make("all_to_all_2d", (3, 4), (12, 24))
    for rank in range(12):
        assert len(partners(exchange, rank)) == (3 - 1) + (4 - 1)


def test_a_ring_carries_what_the_closed_form_says():
    world = 5
    for name, rounds in (("reduce_scatter_ring", 1), ("all_reduce_ring", 2)):
        sent = links_used(make(name, (1, world), (world, N)))
        assert set(sent.values()) == {rounds * (world - 1) * N}
    both = links_used(make("all_gather_ring_both_ways", (1, world), (world, N)))
    assert set(both.values()) == {(world - 1) // 2 * N}


def depth(plan: CommPlan) -> int:
    """Operations one behind the other, channels and dependencies counted."""
    longest: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], tuple[int, int]] = {}
    ids = [op_id for op_id, _ in plan.items()]
    before: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for op_id, op in plan.items():
        lane = (op_id[0], op.channel)
        before[op_id] = [*op.depends, *([last[lane]] if lane in last else [])]
        last[lane] = op_id
    while len(longest) < len(ids):
        for op_id in ids:
            if op_id not in longest and all(b in longest for b in before[op_id]):
                longest[op_id] = 1 + max((longest[b] for b in before[op_id]), default=0)
    return max(longest.values(), default=0)


def test_levels_are_pipelined():
    """Of 4 nodes of 3, the crossing takes 3 steps and the rounds inside 4 x 2: the first is hidden behind the second."""
    assert depth(make("all_gather_2d", (4, 3), (24, 2))) == 4 * 2
    assert depth(make("all_gather_double_ring", (4, 3), (24, 2))) == 4 * 2
    assert depth(make("reduce_scatter_2d", (4, 3), (24, 2))) == 4 * 2


def test_a_split_makes_the_broadcast_a_pipeline():
    for world, split in ((4, 1), (4, 5), (7, 3)):
        assert depth(make("broadcast", (1, world), (30,), split=split)) == world - 2 + split


@pytest.mark.parametrize(("world", "extent"), [(4, 12), (4, 10), (4, 3), (5, 6), (3, 0), (1, 7)])
def test_a_halo_is_one_element_on_either_side(world, extent):
    plan = make("halo", (1, world), (extent, 2))
    for rank in range(world):
        lo, hi = shard_interval(extent, world, rank)
        held = [chunk for chunk in plan.after[rank] if not chunk.box.empty]
        wanted = Chunk("a", Box((max(lo - 1, 0), 0), (min(hi + 1, extent), 2)))
        assert held[1:] == ([wanted] if lo < hi else [])
        assert sum(op.dst.box.size for op in plan.ops[rank]) == (wanted.box.size - 2 * (hi - lo) if lo < hi else 0)


def test_every_reduction_is_one_sum():
    for name in (*KINDS["reduce_scatter"], *KINDS["all_reduce"]):
        assert reduced_tensors(make(name, (2, 2), (8, 2))) == {"a"}


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("shape", [(2, 12, 3), (2, 7, 3), (2, 2, 3), (2, 0, 3)])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_keys_and_values_go_round_together(world, shape, direction):
    path, text = find_template("kv_ring")
    tensor = TensorSpec("v", shape)
    plan = build_plan(text, world=world, tensor=tensor, dim=1, split=2, direction=direction, path=path)
    assert plan.tensors == (TensorSpec("k", shape), tensor)
    verify_plan(plan)
    keys = np.arange(1.0, 1.0 + prod(shape)).reshape(shape)
    execute(plan, {"k": keys, "v": -keys}, seed=world)
    for rank in range(world):
        arriving = [plan.op(op) for op in plan.arriving(rank)]
        assert {op.src_rank for op in arriving} <= {(rank - 1) % world}
        for name in ("k", "v"):
            owners = [op.dst.box.lo[1] for op in arriving if op.dst.tensor == name and not op.dst.box.empty]
            wanted = [
                cut.lo[1]
                for step in range(1, world)
                for cut in Box.whole(shape)
                .with_interval(1, *shard_interval(shape[1], world, (rank - step) % world))
                .split(1, 2)
                if not cut.empty
            ]
            assert owners == wanted


def test_a_tensor_of_the_given_sizes_needs_a_given_tensor():
    with pytest.raises(PlanError, match="the sizes of `k` are open") as caught:
        load_plan("plan: p\nworld: 2\ntensors: {k: tensor}\nbefore: k.whole\nafter: k.whole\n")
    assert caught.value.where is not None and caught.value.where.line == 3
    with pytest.raises(PlanError, match="has no tensor `a`"):
        build_plan(find_template("kv_ring")[1], world=2, tensor=TensorSpec("a", (4,)), dim=0)


@pytest.mark.parametrize("name", list_mixed())
def test_mixed_templates_are_those_they_are_named_after_by_several_backends(name):
    plain = name.removeprefix("mixed/")
    for world, rows in ((1, 4), (2, 5), (3, 7), (5, 3), (4, 0)):
        plans = []
        for each in (name, plain):
            path, text = find_template(each)
            tensor = TensorSpec("a", (rows, 2))
            plan = build_plan(text, world=world, tensor=tensor, dim=0, split="1:2", direction="push", path=path)
            verify_plan(plan)
            plans.append([[replace(op, backend=None, channel=0) for op in ops] for ops in plan.ops])
        assert plans[0] == plans[1]
        path, text = find_template(name)
        found = build_plan(text, world=world, tensor=TensorSpec("a", (rows, 2)), dim=0, path=path)
        named = {op.backend for ops in found.ops for op in ops}
        assert named == ({None, "ldst_inline"} if world > 2 else {None} if world == 2 else set())
    with pytest.raises(PlanError, match="unknown plan") as caught:
        find_template(name + "s")
    assert name in caught.value.help
