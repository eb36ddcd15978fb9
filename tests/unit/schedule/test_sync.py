"""Flag slots, and which flags another implies."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from overlap.chunkplan.order import happens_before
from overlap.schedule.runs import schedule_rank
from overlap.schedule.sync import assign_slots, channel_order, fewest_flags

from .oracle import past
from .plans import both, gather, gemm_axes, reads_a, reads_b, ring


@pytest.mark.parametrize("direction", ["pull", "push"])
def test_every_landing_operation_has_a_slot_of_its_own(direction):
    for world, split in product(range(1, 6), (1, 3)):
        plan = gather((2, 2), 0, world, split=split, direction=direction)
        for rank in range(world):
            slots = assign_slots(plan, rank)
            assert sorted(slots.values()) == list(range((world - 1) * split))
            assert all(plan.op(op).dst_rank == rank for op in slots)
            assert slots == assign_slots(plan, rank) and list(slots) == sorted(slots)


@pytest.mark.parametrize("direction", ["pull", "push"])
@pytest.mark.parametrize("make", [gather, ring])
def test_fewest_flags_are_those_that_nothing_comes_after(make, direction):
    """Against a search for what happens before, over sets of three landing operations."""
    plan = make((9, 2), 0, 4, split=2, direction=direction, channels=2)
    before, order = past(plan), happens_before(plan)
    for ops in combinations(plan.arriving(1), 3):
        assert fewest_flags(ops, order) == tuple(op for op in ops if not any(op in before[other] for other in ops))
        assert fewest_flags(ops, None) == ops


def waits(plan, reads, axes, rank, **how):
    return [[wait.op for wait in run.waits] for run in schedule_rank(plan, reads, axes, rank, **how).runs]


def test_a_flag_in_the_same_lane_stands_for_those_before_it():
    """One tile row reads all three chunks of a pull: the last flag is enough where flags are raised in order."""
    plan, axes = gather((4, 2), 0, 4), gemm_axes(4, 4, 64, 64)
    assert waits(plan, reads_a(), axes, 0) == [[(0, 2)]]
    assert waits(plan, reads_a(), axes, 0, ordered=False) == [[(0, 0), (0, 1), (0, 2)]]


def test_flags_of_several_lanes_or_pushers_do_not_stand_for_each_other():
    axes = gemm_axes(4, 4, 64, 64)
    assert waits(gather((4, 2), 0, 4, direction="push"), reads_a(), axes, 0) == [[(1, 0), (2, 1), (3, 2)]]
    assert waits(gather((4, 2), 0, 2, split=2, channels=2), reads_a(), axes, 0) == [[(0, 0), (0, 1)]]


def test_a_flag_implies_what_it_depends_on_across_ranks():
    """Ring by push, rank 0's neighbour sends it three chunks in one lane, each behind its own arrival."""
    assert waits(ring((4, 2), 0, 4, direction="push"), reads_a(), gemm_axes(4, 4, 64, 64), 0) == [[(3, 2)]]


def test_two_tensors_in_two_channels_need_a_flag_each():
    plan = both(gather((4, 2), 0, 2), gather((2, 4), 1, 2, tensor="b"), channel=1)
    assert waits(plan, reads_a() + reads_b(), gemm_axes(4, 4, 64, 64), 0) == [[(0, 0), (0, 1)]]


def test_channel_order_is_the_plans():
    plan = gather((30, 2), 0, 3, split=3, channels=2)
    assert channel_order(plan, 1) == ((0, (0, 2, 3, 5)), (1, (1, 4)))
