"""Collisions of a plan that this executor keeps apart, and the simulator reports all the same: the smallest plan of each."""

from __future__ import annotations

import pytest

from overlap.chunkplan.build import load_plan
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError
from overlap.sim import check_plan

MOVED = "plan: p\nworld: {world}\ntensors: {{a: [4]}}\n"
SUMMED = "plan: p\nworld: {world}\ntensors: {{c: [4]}}\nbefore: whole\n"

OWNED = (
    MOVED.format(world=2)
    + """
before: whole
after: whole
ranks:
  0: {ops: [{push: whole, to: 1}]}
"""
)
ADDED_AND_REPLACED = (
    SUMMED.format(world=3)
    + """
after: {chunk: whole, when: rank == 2}
ranks:
  0: {ops: [{push: whole, to: 1, reduce: sum, depends: DEPENDS}, {push: whole, to: 2, reduce: sum, channel: 1}]}
  1: {ops: [{push: whole, to: 2, reduce: sum, channel: 1}]}
  2: {ops: [{push: whole, to: 1, depends: [[0, 1], [1, 0]]}]}
"""
)
SENT_ON_AND_REPLACED = (
    SUMMED.format(world=3)
    + """
after: whole
ranks:
  0: {ops: [{push: whole, to: 1, depends: [[1, 0]]}]}
  1: {ops: [{push: whole, to: 0, depends: [[1, 1], [2, 0]]}, {pull: whole, from: 0, reduce: sum, channel: 1},
            {push: whole, to: 2, depends: [[1, 1], [2, 0]], channel: 2}]}
  2: {ops: [{push: whole, to: 1, reduce: sum}]}
"""
)


def refusal(text: str) -> str:
    with pytest.raises(PlanError) as caught:
        verify_plan(load_plan(text))
    return caught.value.message


def fault(text: str) -> str:
    report = check_plan(load_plan(text), verified=False)
    assert not report.ok
    return report.faults[0].error.message


def test_what_a_rank_owns_is_read_by_its_own_work():
    assert "rank 0 operation 0 (push a[0:4] to rank 1) overwrites a[0:4], which rank 1 owns" in refusal(OWNED)
    said = fault(OWNED)
    assert "rank 0 lane 0 (operation 0: push a[0:4] to rank 1) writes a[0] to [3] of rank 1 (4 elements)" in said
    assert "while nothing orders it behind: rank 1's own work reads it" in said


def test_what_is_added_beside_what_replaces():
    """What is added lies in a slot, and what replaces in the rank's own place; a plan says one follows the other."""
    text = ADDED_AND_REPLACED.replace("DEPENDS", "[]")
    assert "c[0:4] on rank 1 is written twice, by rank 0 operation 0" in refusal(text)
    assert "race" in fault(text) and "of rank 1" in fault(text)
    ordered = load_plan(ADDED_AND_REPLACED.replace("DEPENDS", "[[2, 0]]"))
    verify_plan(ordered)
    assert check_plan(ordered).ok


def test_a_sum_that_is_sent_twice_while_it_is_replaced():
    """The sum is kept in memory of its own, which what comes back does not touch."""
    said = refusal(SENT_ON_AND_REPLACED)
    assert "rank 1 operation 2 (push c[0:4] to rank 2) reads c[0:4] on rank 1 while rank 0 operation 0" in said
    found = fault(SENT_ON_AND_REPLACED)
    assert "operation 0: push c[0:4] to rank 1" in found and "operation 2: push c[0:4] to rank 2" in found
    ordered = load_plan(SENT_ON_AND_REPLACED.replace("depends: [[1, 0]]", "depends: [[1, 0], [1, 2]]"))
    verify_plan(ordered)
    assert check_plan(ordered).ok


def test_a_sum_of_parts_that_lie_in_another_tensor():
    text = """
plan: p
world: 2
tensors: {c: [4], part: [4]}
ranks:
  0: {before: [c.whole], after: [c.whole]}
  1: {before: BEFORE, after: [], ops: [{push: part.whole, to: 0, into: c.whole, reduce: sum}]}
"""
    right = load_plan(text.replace("BEFORE", "[part.whole]"))
    verify_plan(right)
    assert check_plan(right).ok
    wrong = text.replace("BEFORE", "[part.whole, c.whole]")
    assert "rank 0 ends with c[0:4] without the part of rank 1" in refusal(wrong)
    assert "mismatch" in fault(wrong)


def test_sums_that_nobody_sees_may_count_twice():
    text = (
        SUMMED.format(world=2)
        + """
after: AFTER
ranks:
  0: {ops: [{push: whole, to: 1, reduce: sum}, {push: whole, to: 1, reduce: sum}]}
"""
    )
    unseen = load_plan(text.replace("AFTER", "[]"))
    verify_plan(unseen)
    assert check_plan(unseen).ok
    seen = text.replace("AFTER", "{chunk: whole, when: rank == 1}")
    assert "rank 0 is counted twice in c[0:4] on rank 1" in refusal(seen)
    assert "mismatch" in fault(seen)
