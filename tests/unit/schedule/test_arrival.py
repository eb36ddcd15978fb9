"""Order of arrival and the event model."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.plan import P2P, Collective
from overlap.errors import PlanError
from overlap.schedule.arrival import arrival_order
from overlap.schedule.cost import CostModel, finish_times

from .oracle import arrivals
from .plans import chunk_of, finish, gather, pieces, ring


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_gather_arrives_in_rotated_order(world, direction):
    """Rank r gets r+1, r+2, ...; parts of a shard in their order."""
    plan = gather((world * 4, 2), 0, world, split=2, direction=direction)
    for rank in range(world):
        got = [(plan.op(op).src_rank, plan.op(op).src.box.lo[0]) for op in arrival_order(plan, rank)]
        sources = [(rank + step) % world for step in range(1, world)]
        assert got == [(src, src * 4 + 2 * part) for src in sources for part in (0, 1)]


@pytest.mark.parametrize("world", range(2, 9))
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_ring_arrives_from_the_neighbour_nearest_origin_first(world, direction):
    plan = ring((world, 2), 0, world, direction=direction)
    for rank in range(world):
        origins = [plan.op(op).src.box.lo[0] for op in arrival_order(plan, rank)]
        assert origins == [(rank - step) % world for step in range(1, world)]
        assert {plan.op(op).src_rank for op in arrival_order(plan, rank)} == {(rank - 1) % world}


def test_ties_follow_the_rotated_source():
    """All of rank 2's chunks end at tick 1: from 3, then 0, then 1."""
    parts = pieces((4, 2), 0, 4, 1)
    ops = [[P2P("push", src, 2, parts[src][0], parts[src][0])] if src != 2 else [] for src in range(4)]
    plan = finish("at once", 4, (4, 2), parts, ops)
    assert arrival_order(plan, 2) == ((3, 0), (0, 0), (1, 0))


def test_a_collective_comes_in_the_order_of_its_channel():
    parts = pieces((4, 2), 0, 2, 1)
    whole = chunk_of((4, 2), 0, 0, 4)
    ops = [[Collective("all_gather", (0, 1), parts[rank][0], whole)] for rank in (0, 1)]
    ops[1].insert(0, P2P("pull", 0, 1, parts[0][0], parts[0][0]))
    plan = finish("library", 2, (4, 2), parts, ops)
    # Rank 1 comes to the collective behind its pull, and rank 0 has to wait for it.
    assert finish_times(plan) == {(1, 0): 1, (0, 0): 2, (1, 1): 2}
    assert arrival_order(plan, 0) == ((0, 0),) and arrival_order(plan, 1) == ((1, 0), (1, 1))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from(("pull", "push")), st.integers(1, 3), st.booleans())
def test_finish_times_are_ticks(world, split, direction, channels, around):
    """With unit costs the event model agrees with a clock that ticks."""
    plan = (ring if around else gather)((11, 2), 0, world, split=split, direction=direction, channels=channels)
    assert finish_times(plan) == arrivals(plan)


def test_costs_are_latency_and_bytes():
    plan = gather((7, 10), 0, 2)
    cost = CostModel(latency=3.0, bandwidth=4.0, itemsize=2)
    assert finish_times(plan, cost) == {(0, 0): 3 + 3 * 10 * 2 / 4, (1, 0): 3 + 4 * 10 * 2 / 4}


def test_costs_change_the_order_of_arrival():
    """Two channels: the large chunk of the nearer rank arrives later than the small one of the farther."""
    parts = [[chunk_of((12, 2), 0, 0, 1)], [chunk_of((12, 2), 0, 1, 11)], [chunk_of((12, 2), 0, 11, 12)]]
    ops = [[P2P("pull", src, 0, parts[src][0], parts[src][0], channel=src) for src in (1, 2)], [], []]
    plan = finish("uneven", 3, (12, 2), parts, ops)
    assert arrival_order(plan, 0) == ((0, 0), (0, 1))
    assert arrival_order(plan, 0, CostModel(latency=0.0, bandwidth=1.0)) == ((0, 1), (0, 0))


def test_a_cyclic_plan_is_refused():
    plan = ring((6, 2), 0, 3)
    back = dataclasses.replace(plan.ops[0][0], depends=((1, 1),))
    plan = dataclasses.replace(plan, ops=((back, plan.ops[0][1]), *plan.ops[1:]))
    with pytest.raises(PlanError, match="never finishes"):
        arrival_order(plan, 1)
