"""Parts of an in-tile loop: against the brute-force oracle, and walked as a program walks them."""

from __future__ import annotations

from itertools import product

import pytest

from overlap.chunkplan.region import shard_interval
from overlap.errors import ScheduleError
from overlap.schedule.model import AxisTiles
from overlap.schedule.ranges import range_reads, schedule_range, schedule_ranges
from overlap.schedule.table import H_RUN_BASE, H_RUNS, R_AXIS, R_WAIT_BEGIN, R_WAIT_END, RUN_WORDS, to_words
from overlap.schedule.verify import verify_schedule

from .oracle import check
from .plans import both, gather, ring


@pytest.mark.parametrize("world", (1, 2, 3, 5))
def test_every_small_extent(world):
    for k, block, (make, split) in product((0, 1, 3, 48, 65), (4, 16, 256), ((gather, 1), (gather, 3), (ring, 1))):
        plan = make((3, k), 1, world, split=split)
        axis = AxisTiles("K", k, block)
        schedules = schedule_ranges(plan, {"a": 1}, axis)
        reads = range_reads(plan, {"a": 1}, "K")
        check(schedules, plan, reads, (axis,))
        verify_schedule(schedules, plan, reads, (axis,))
        assert schedules == tuple(schedule_range(plan, {"a": 1}, axis, rank) for rank in range(world))


def test_two_tensors_of_one_loop():
    plan = both(gather((3, 100), 1, 4), gather((100, 5), 0, 4, tensor="b"), channel=1)
    axis = AxisTiles("K", 100, 16)
    schedules = schedule_ranges(plan, {"a": 1, "b": 0}, axis)
    check(schedules, plan, range_reads(plan, {"a": 1, "b": 0}, "K"), (axis,))
    assert all(len(run.waits) == 2 for schedule in schedules for run in schedule.runs[1:])


def test_other_tensors_of_the_plan_are_not_waited_for():
    plan = both(gather((3, 100), 1, 4), gather((100, 5), 0, 4, tensor="b"), channel=1)
    for schedule in schedule_ranges(plan, {"a": 1}, AxisTiles("K", 100, 16)):
        waited = [wait.op for run in schedule.runs for wait in run.waits]
        assert {plan.op(op).dst.tensor for op in waited} == {"a"}
        assert len(schedule.slots) == 6  # flags of both, so that slots are those of the tiles' table


@pytest.mark.parametrize(("world", "k", "block"), [(1, 50, 16), (3, 130, 32), (4, 136, 32), (5, 3, 16), (2, 64, 16)])
def test_the_words_walked_as_a_program_does(world, k, block):
    """Every block once, own blocks first, and no block before the flags of all its elements' owners."""
    plan = gather((2, k), 1, world)
    for rank in range(world):
        schedule = schedule_range(plan, {"a": 1}, AxisTiles("K", k, block), rank)
        words = to_words(schedule, 64)
        owner_of_slot = {slot: plan.op(op).src_rank for op, slot in schedule.slots.items()}
        seen, order = {rank}, []
        for number in range(words[H_RUNS]):
            record = words[H_RUN_BASE] + number * RUN_WORDS
            begin, end = words[record + R_WAIT_BEGIN], words[record + R_WAIT_END]
            seen |= {owner_of_slot[words[i]] for i in range(begin, end, 2)}
            # Copies of one lane land in order, so a later flag stands for the earlier ones.
            furthest = max((owner - rank) % world for owner in seen)
            first, count = words[record + R_AXIS], words[record + R_AXIS + 1]
            for b in range(first, first + count):
                order.append(b)
                for element in range(b * block, min(k, (b + 1) * block)):
                    owner = next(r for r in range(world) if element in range(*shard_interval(k, world, r)))
                    assert (owner - rank) % world <= furthest, f"block {b} reads rank {owner}'s element {element}"
        assert sorted(order) == list(range(-(-k // block)))


def test_an_axis_of_another_extent_is_refused():
    with pytest.raises(ScheduleError, match="axis K has 64 elements, but dimension 1 of a has 65"):
        schedule_range(gather((2, 65), 1, 3), {"a": 1}, AxisTiles("K", 64, 16), 0)
