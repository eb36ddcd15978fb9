"""The shipped templates that reduce nothing, over worlds 1 to 8, any size, split and direction: verified and run."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.order import happens_before
from overlap.chunkplan.plan import P2P, CommPlan, TensorSpec
from overlap.chunkplan.region import Box, shard_interval
from overlap.chunkplan.verify import verify_plan
from tests.support.sweep import every, examples

from .oracle import execute, judge

NAMES = ("all_gather_1d", "all_gather_1d_pull", "all_gather_1d_push", "all_gather_ring")


def make(name: str, world: int, shape=(40, 3), dim=0, split=1, direction="pull") -> CommPlan:
    path, text = find_template(name)
    tensor = TensorSpec("a", tuple(shape))
    return build_plan(text, world=world, tensor=tensor, dim=dim, split=split, direction=direction, path=path)


def shard(shape, dim: int, world: int, rank: int) -> Box:
    return Box.whole(shape).with_interval(dim, *shard_interval(shape[dim], world, rank))


def arrivals(plan: CommPlan, rank: int) -> list[tuple[int, Box]]:
    return [(plan.op(op).src_rank, plan.op(op).dst.box) for op in plan.arriving(rank)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_every_size_world_and_split_verifies(name, direction):
    cases = product(range(1, 9), range(1, 5), (0, 1, 2, 3, 5, 8, 17, 31, 40))
    for world, split, extent in every(5, cases, start=NAMES.index(name)):
        plan = make(name, world, (extent,), 0, split, direction)
        verify_plan(plan)
        assert sum(map(len, plan.ops)) == world * (world - 1) * split


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 8),
    st.sampled_from(["pull", "push"]),
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
    st.integers(1, 4),
    st.data(),
)
def test_any_dimension_of_any_shape(name, world, direction, shape, split, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    plan = make(name, world, shape, dim, split, direction)
    verify_plan(plan)
    assert load_plan(dump_plan(plan)) == plan
    truth = {"a": np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)}
    execute(plan, truth, seed=data.draw(st.integers(0, 2**32)))
    for rank in range(world):
        assert [chunk.box for chunk in plan.before[rank]] == [shard(shape, dim, world, rank)]
        assert [chunk.box for chunk in plan.after[rank]] == [Box.whole(shape)]
        cut = [box for peer in range(world) if peer != rank for box in shard(shape, dim, world, peer).split(dim, split)]
        assert sorted(b.lo + b.hi for _, b in arrivals(plan, rank)) == sorted(b.lo + b.hi for b in cut)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_the_element_oracle_agrees(name, direction):
    for world, extent, split in product((1, 2, 3, 4), (0, 3, 8), (1, 3)):
        assert judge(make(name, world, (2, extent), 1, split, direction)) is None


@pytest.mark.parametrize("world", range(1, 9))
def test_pull_is_rotated(world):
    for name in ("all_gather_1d", "all_gather_1d_pull"):
        plan = make(name, world, (40, 3))
        for rank, ops in enumerate(plan.ops):
            assert [op.src_rank for op in ops] == [(rank + step) % world for step in range(1, world)]
            assert {op.direction for op in ops} <= {"pull"} and {op.dst_rank for op in ops} <= {rank}


@pytest.mark.parametrize("world", range(1, 9))
def test_push_is_rotated_for_receivers(world):
    """In step s rank r sends to r-s, so no two ranks send to one at a time and arrivals rotate."""
    for name, direction in (("all_gather_1d", "push"), ("all_gather_1d_push", "pull")):
        plan = make(name, world, (40, 3), direction=direction)
        for rank, ops in enumerate(plan.ops):
            assert [op.dst_rank for op in ops] == [(rank - step) % world for step in range(1, world)]
            assert {op.direction for op in ops} <= {"push"} and {op.src_rank for op in ops} <= {rank}
        for step in range(world - 1):
            assert sorted(ops[step].dst_rank for ops in plan.ops) == list(range(world))
        for rank in range(world):
            order = sorted(plan.arriving(rank), key=lambda op: op[1])
            assert [owner for owner, _ in order] == [(rank + step) % world for step in range(1, world)]


def test_pinned_templates_keep_their_direction():
    for name, wanted in (("all_gather_1d_pull", "pull"), ("all_gather_1d_push", "push")):
        for direction in ("pull", "push"):
            assert {op.direction for _, op in make(name, 4, direction=direction).items()} == {wanted}


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("split", [1, 3])
def test_ring_forwards_to_its_neighbour_what_has_arrived(direction, split):
    world = 5
    plan = make("all_gather_ring", world, (40, 3), split=split, direction=direction)
    order = happens_before(plan)
    for op_id, op in plan.items():
        assert isinstance(op, P2P) and op.direction == direction
        assert op.dst_rank == (op.src_rank - 1) % world
        own = shard((40, 3), 0, world, op.src_rank)
        if own.contains(op.src.box):
            assert op.depends == ()
        else:
            (dep,) = op.depends
            brought = plan.op(dep)
            assert (brought.dst_rank, brought.dst) == (op.src_rank, op.src)
            assert order.before(dep, op_id) and not order.before(op_id, dep)


def test_one_rank_moves_nothing():
    for name in NAMES:
        plan = make(name, 1, (5, 2), split=4)
        assert plan.ops == ((),) and plan.before == plan.after
        verify_plan(plan)


def test_three_rows_on_four_ranks_keep_the_empty_shard():
    """M = 3 over 4: rank 3 owns nothing, its chunk is empty and still has its operation."""
    plan = make("all_gather_1d", 4, (3, 8))
    empty = [op for _, op in plan.items() if op.dst.box.empty]
    assert [op.src_rank for op in empty] == [3, 3, 3]
    verify_plan(plan)


# All-to-all


def exchange(world: int, shape, dim: int, to_dim: int, split: int = 1, direction: str = "push") -> CommPlan:
    path, text = find_template("all_to_all_1d")
    tensor = TensorSpec("a", tuple(shape))
    return build_plan(
        text, world=world, tensor=tensor, dim=dim, to_dim=to_dim, split=split, direction=direction, path=path
    )


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(1, 6),
    st.sampled_from(["pull", "push"]),
    st.lists(st.integers(0, 9), min_size=2, max_size=3),
    st.integers(1, 3),
    st.data(),
)
def test_an_exchange_of_any_two_dimensions(world, direction, shape, split, data):
    dim, to_dim = data.draw(st.permutations(range(len(shape))))[:2]
    plan = exchange(world, shape, dim, to_dim, split, direction)
    verify_plan(plan)
    assert load_plan(dump_plan(plan)) == plan
    execute(plan, {"a": np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)}, seed=data.draw(st.integers(0, 2**32)))
    for rank in range(world):
        assert [chunk.box for chunk in plan.before[rank]] == [shard(shape, dim, world, rank)]
        assert [chunk.box for chunk in plan.after[rank]] == [shard(shape, to_dim, world, rank)]
        moved = [box.size for _, box in arrivals(plan, rank)]
        own = shard(shape, dim, world, rank).intersect(shard(shape, to_dim, world, rank))
        assert sum(moved) == shard(shape, to_dim, world, rank).size - own.size


def test_an_exchange_back_is_the_plan_of_the_other_direction():
    there, back = exchange(3, (7, 5), 0, 1), exchange(3, (7, 5), 1, 0)
    assert (there.before, there.after) == (back.after, back.before)


def test_every_step_of_an_exchange_is_a_permutation():
    world = 5
    plan = exchange(world, (20, 10), 0, 1)
    for step in range(world - 1):
        assert sorted(ops[step].dst_rank for ops in plan.ops) == list(range(world))
