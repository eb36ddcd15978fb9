"""What transfers take of every rank, against what they make when they run, and refusals where there is less."""

from __future__ import annotations

import subprocess
import sys

import pytest

from overlap.chunkplan.build import build_plan, load_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.errors import ScheduleError
from overlap.runtime.memory.layout import ALIGNMENT
from overlap.runtime.transfer.memory import transfer_resources
from overlap.schedule.resources import Limits, verify_resources


def make(name: str, world: int, shape=(8, 2), direction: str = "push", **more) -> CommPlan:
    path, text = find_template(name)
    tensor = TensorSpec("x", shape)
    return build_plan(text, world=world, tensor=tensor, dim=0, path=path, direction=direction, **more)


def bytes_of(plan: CommPlan, size: int = 4) -> list[int]:
    return [sum(found.memory.values()) for found in transfer_resources(plan, {s.name: size for s in plan.tensors})]


def up(elements: int) -> int:
    """Where the next region begins."""
    return -(-elements // ALIGNMENT) * ALIGNMENT


def test_a_gather_takes_the_whole_tensor_in_one_place():
    # What arrives is a box beside the own shard; each lies where the alignment allows.
    plan = make("all_gather_1d", 2, (512, 1))
    assert bytes_of(plan) == [4 * 512] * 2
    assert bytes_of(plan, 2) == [2 * 512] * 2


def test_what_is_added_takes_a_slot_an_operation():
    plan = make("all_reduce_one_shot", 3, (10, 1))
    assert bytes_of(plan) == [4 * (2 * up(10) + 10)] * 3


def test_sums_that_are_pulled_are_counted_as_they_are_pushed():
    pulled, pushed = (make("all_reduce_two_shot", 3, (9, 1), direction) for direction in ("pull", "push"))
    assert bytes_of(pulled) == bytes_of(pushed)
    assert [found.flags for found in transfer_resources(pulled, {"x": 4})] == [4, 4, 4]


def test_relays_take_memory_of_ranks_that_keep_nothing():
    plan = load_plan(
        """
plan: relay
world: 3
tensors: {x: [300]}
before: {chunk: whole, when: rank == 0}
after: {chunk: whole, when: rank == 2}
ranks:
  1: {ops: [{pull: whole, from: 0, label: first}]}
  2: {ops: [{pull: whole, from: 1, depends: {on: first, rank: 1}}]}
"""
    )
    found = transfer_resources(plan, {"x": 8})
    assert [sum(one.memory.values()) for one in found] == [2400] * 3
    assert [one.flags for one in found] == [0, 1, 1]
    assert dict(found[2].waits) == {}  # joined before results are taken
    with pytest.raises(ScheduleError, match=r"rank 0 takes 2,7\d\d bytes of symmetric memory \(x 2,400, state"):
        verify_resources(found, plan, Limits(memory=2500))


def test_it_needs_no_torch():
    """So that `overlap check` can say it where only the compiler is installed."""
    code = "import sys; import overlap.runtime.transfer.memory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
