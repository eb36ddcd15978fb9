"""What launches take on a rank, counted by hand, and refusals where there is less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.errors import ScheduleError
from overlap.schedule.resources import Limits, Resources, launch_resources, verify_resources
from overlap.schedule.steps import Join, launch_steps

from .plans import gather, reduce_scatter, ring, two_shot


def taken(plan: CommPlan, memory=None, produced=()) -> list[Resources]:
    memory = memory if memory is not None else [{}] * plan.world
    return [
        launch_resources(plan, rank, launch_steps(plan, rank, produced=produced), memory[rank], produced)
        for rank in range(plan.world)
    ]


def refusal(plan: CommPlan, found: list[Resources], **limits) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        verify_resources(found, plan, Limits(**limits))
    return caught.value


def test_a_gather_takes_a_flag_a_chunk_and_a_credit_a_peer():
    plan = gather((10, 4), 0, 3, split=2, channels=2)
    for found in taken(plan):
        assert (found.flags, found.counters, found.credits, found.lanes, found.waits) == (4, 0, 2, (0, 1), {})
    alone = taken(gather((10, 4), 0, 1))[0]
    assert (alone.flags, alone.credits, alone.lanes, alone.total) == (0, 0, (), alone.state)


def test_a_relay_waits_beside_the_kernel():
    found = taken(ring((12, 4), 0, 4, channels=2))
    # Step 2 and 3 run in the one lane that `ring` gives each part, and await what came before.
    assert [list(one.waits) for one in found] == [[0]] * 4
    assert found[1].waits[0] == (0, 0)


def test_a_sum_that_is_sent_on_needs_no_wait_kernel():
    """The lane is forked behind the sum, which polls."""
    found = taken(two_shot((12, 4), 0, 3), produced=("c",))
    assert [one.waits for one in found] == [{}] * 3
    assert [one.counters for one in found] == [2] * 3
    assert [one.flags for one in found] == [4] * 3


def test_a_lane_that_is_joined_ahead_of_what_spins_does_not_wait_beside_it():
    plan = ring((12, 4), 0, 4)
    steps = list(launch_steps(plan, 1))
    join = next(step for step in steps if isinstance(step, Join))
    steps.remove(join)
    kernel = next(i for i, step in enumerate(steps) if type(step).__name__ == "Kernel")
    assert launch_resources(plan, 1, [*steps[:kernel], join, *steps[kernel:]], {}).waits == {}
    assert launch_resources(plan, 1, [*steps, join], {}).waits == {0: (0, 0)}


def test_it_reads_well():
    plan = gather((10, 4), 0, 3)
    assert str(taken(plan, [{"a": 4096}] * 3)[2]) == (
        "rank 2: 4,480 bytes (a 4,096, state 384), 2 flags, 2 credits, 1 lane"
    )
    assert "1 counter," in str(taken(reduce_scatter((4, 4), 0, 2), produced=("c",))[0])
    assert str(taken(ring((12, 4), 0, 4))[0]).endswith("1 lane, 1 wait kernel at a time")


def test_memory_that_there_is_not():
    path, text = find_template("all_gather_1d")
    plan = build_plan(text, world=2, tensor=TensorSpec("a", (8, 2)), dim=0, path=path)
    found = taken(plan, [{"a": 100}, {"a": 5000}])
    verify_resources(found, plan, Limits(memory=found[1].total))
    error = refusal(plan, found, memory=found[1].total - 1)
    assert "plan all_gather_1d: rank 1 takes 5,288 bytes of symmetric memory (a 5,000, state 288)" in error.message
    assert "may take 5,287" in error.message and error.where is not None and "raise the limit" in error.help


def test_more_flags_than_words_have_numbers():
    plan = gather((10, 4), 0, 3)
    found = [replace(one, flags=2**29) for one in taken(plan)]
    assert "536,870,912 operations land on rank 0" in refusal(plan, found).message


def test_more_lanes_than_there_are():
    plan = gather((12, 4), 0, 2, split=3, channels=3)
    found = taken(plan)
    verify_resources(found, plan, Limits(lanes=3))
    error = refusal(plan, found, lanes=2)
    assert "rank 0 runs 3 lanes at a time and has 2: none is left for channel 2, where rank 0 operation 2 (pull" in (
        error.message
    )


def test_more_wait_kernels_than_fit():
    plan = ring((12, 4), 0, 3, split=2, channels=2)
    found = taken(plan)
    verify_resources(found, plan, Limits(units=2))
    error = refusal(plan, found, units=1)
    assert "rank 0 has 2 wait kernels beside a kernel that spins, and room for 1: none is left for lane 1" in (
        error.message
    )
    assert "waits for rank 2 operation 1 (pull" in error.message
