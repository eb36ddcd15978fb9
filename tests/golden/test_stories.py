"""Counterexamples as people read them: one story a kind, with rank, operation, chunk, the two that collide, and the line.

Accept changes with ``make golden``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from overlap.chunkplan.build import load_plan
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError, ScheduleError
from overlap.runtime.transfer.memory import transfer_resources
from overlap.schedule.model import AxisTiles, TensorRead, TensorWrite
from overlap.schedule.resources import Limits, verify_resources
from overlap.schedule.runs import schedule_all
from overlap.schedule.steps import Await, launch_steps
from overlap.schedule.verify import verify_schedule
from overlap.schedule.verify_steps import verify_steps

MOVED = """\
plan: p
world: 3
tensors: {a: [6, 2]}
"""
SUMMED = """\
plan: p
world: 3
tensors: {c: [6, 2]}
before: whole
after: {chunk: whole, when: rank == 0}
"""

PLANS = {
    "cycle": MOVED
    + """\
before: shard(rank)
after: whole
ops:
  - {label: next, pull: shard((rank + 1) % world), from: (rank + 1) % world, depends: {on: next, rank: (rank + 1) % world}}
  - {pull: shard((rank + 2) % world), from: (rank + 2) % world}
""",
    "read_too_early": MOVED
    + """\
before: {chunk: whole, when: rank == 0}
after: whole
ranks:
  1: {ops: [{pull: whole, from: 0}]}
  2: {ops: [{pull: whole, from: 1}]}
""",
    "read_in_the_wrong_order": MOVED
    + """\
before: {chunk: whole, when: rank == 0}
after: whole
ranks:
  1: {ops: [{pull: whole, from: 0, depends: [[2, 0]]}]}
  2: {ops: [{pull: whole, from: 1}]}
""",
    "read_and_never_brought": MOVED
    + """\
before: {chunk: whole, when: rank == 0}
after: whole
ranks:
  2: {ops: [{pull: whole, from: 1}]}
""",
    "written_twice": MOVED
    + """\
before: {chunk: whole, when: rank < 2}
after: whole
ranks:
  2:
    ops:
      - {pull: "a[0:4, 0:2]", from: 0}
      - {pull: "a[2:6, 0:2]", from: 1, channel: 1}
""",
    "owned_and_overwritten": MOVED
    + """\
before: {chunk: whole, when: rank < 2}
after: whole
ranks:
  2:
    ops:
      - {pull: whole, from: 0}
      - {push: "a[5:6, 0:2]", to: 1}
""",
    "read_while_overwritten": MOVED
    + """\
before: {chunk: whole, when: rank == 0}
after: whole
ranks:
  1:
    ops:
      - {pull: whole, from: 0}
      - {pull: "a[2:3, 0:2]", from: 0}
  2: {ops: [{pull: whole, from: 1, depends: [[1, 0]]}]}
""",
    "never_arrives": MOVED
    + """\
before: shard(rank)
after: whole
ops:
  - {pull: shard((rank + 1) % world), from: (rank + 1) % world}
""",
    "part_missing": SUMMED
    + """\
ranks:
  1: {ops: [{push: whole, to: 0, reduce: sum}]}
""",
    "part_too_late": SUMMED
    + """\
ranks:
  1: {ops: [{push: whole, to: 0, reduce: sum}]}
  2: {ops: [{push: whole, to: 1, reduce: sum}]}
""",
    "sum_replaced": SUMMED
    + """\
ranks:
  1: {ops: [{push: whole, to: 0, reduce: sum}]}
  2: {ops: [{push: whole, to: 0, depends: [[1, 0]]}]}
""",
    "part_counted_twice": SUMMED
    + """\
ranks:
  1: {ops: [{push: whole, to: 0, reduce: sum, depends: [[2, 0]]}]}
  2: {ops: [{push: whole, to: 1, reduce: sum}, {push: "c[1:2, 0:2]", to: 0, reduce: sum}]}
""",
    "sum_comes_back": SUMMED
    + """\
ranks:
  0: {ops: [{push: whole, to: 1, reduce: sum}]}
  1: {ops: [{push: whole, to: 0, reduce: sum, depends: [[0, 0], [2, 0]]}]}
  2: {ops: [{push: whole, to: 1, reduce: sum}]}
""",
    "added_and_replaced": SUMMED
    + """\
ranks:
  1: {ops: [{push: whole, to: 0, reduce: sum}]}
  2: {ops: [{push: whole, to: 0}]}
""",
    "collective_without_a_rank": MOVED
    + """\
before: shard(rank)
after: whole
ranks:
  0: {ops: [{collective: all_gather, chunk: shard(rank), into: whole, ranks: [0, 1, 2]}]}
  1: {ops: [{collective: all_gather, chunk: shard(rank), into: whole, ranks: [0, 1, 2]}]}
""",
}


class Text(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def golden(snapshot):
    return snapshot.use_extension(Text)


@pytest.mark.parametrize("kind", PLANS)
def test_story(kind, golden):
    plan = load_plan(PLANS[kind], path="plan.yaml")
    with pytest.raises(PlanError) as caught:
        verify_plan(plan)
    assert f"{PLANS[kind]}\n{caught.value.render()}\n" == golden
    with pytest.raises(PlanError) as elsewhere:
        verify_plan(replace(plan, spans=(), span=None))
    # Plans made in Python have no lines to point at; the rest of the story is the same.
    assert elsewhere.value.where is None and elsewhere.value.message == caught.value.message
    assert "line" not in elsewhere.value.help


RELAY = """\
plan: relay
world: 3
tensors: {a: [6, 2]}
before: {chunk: whole, when: rank == 0}
after: whole
ops:
  - when: rank < world - 1
    label: hop
    push: whole
    to: rank + 1
    depends: [{on: hop, rank: rank - 1, when: rank > 0}]
"""
FEEDBACK = """\
plan: feedback
world: 2
tensors: {a: [8, 2], c: [8, 2]}
before: [a.shard(rank), c.whole]
after: a.whole
ops:
  - {label: sum, push: c.shard(rank), to: 1 - rank, reduce: sum}
  - {push: a.shard(rank), to: 1 - rank, depends: [{on: sum, rank: rank}], channel: 1}
"""
AXES = (AxisTiles("M", 8, 2), AxisTiles("N", 2, 2))
READS = (TensorRead("a", ("M", None), (False, False)),)


def a_tile_without_a_wait():
    plan = load_plan(RELAY, path="plan.yaml")
    axes = (AxisTiles("M", 6, 2), AxisTiles("N", 2, 2))
    schedules = list(schedule_all(plan, READS, axes))
    schedules[2] = replace(schedules[2], runs=tuple(replace(run, waits=()) for run in schedules[2].runs))
    verify_schedule(schedules, plan, READS, axes)


def a_circle_of_tiles():
    plan = load_plan(FEEDBACK, path="plan.yaml")
    writes = (TensorWrite("c", ("M", "N")),)
    schedules = schedule_all(plan, READS, AXES, writes=writes)
    verify_schedule(schedules, plan, READS, AXES, writes=writes)
    verify_schedule(schedules, plan, READS, AXES, writes=writes, flattened=True)


def a_copy_that_does_not_wait():
    plan = load_plan(RELAY, path="plan.yaml")
    steps = [launch_steps(plan, rank) for rank in range(3)]
    steps[1] = tuple(step for step in steps[1] if not isinstance(step, Await))
    verify_steps(steps, plan)


def too_little_memory():
    plan = load_plan(RELAY, path="plan.yaml")
    verify_resources(transfer_resources(plan, {"a": 4}), plan, Limits(memory=256))


def too_few_units():
    plan = load_plan(RELAY, path="plan.yaml")
    found = transfer_resources(plan, {"a": 4})
    found[1] = replace(found[1], waits={0: (0, 0)})
    verify_resources(found, plan, Limits(units=0))


LATER = {
    "a_tile_without_a_wait": (RELAY, a_tile_without_a_wait),
    "a_circle_of_tiles": (FEEDBACK, a_circle_of_tiles),
    "a_copy_that_does_not_wait": (RELAY, a_copy_that_does_not_wait),
    "too_little_memory": (RELAY, too_little_memory),
    "too_few_units": (RELAY, too_few_units),
}


@pytest.mark.parametrize("kind", LATER)
def test_story_behind_the_plan(kind, golden):
    text, run = LATER[kind]
    with pytest.raises(ScheduleError) as caught:
        run()
    assert f"{text}\n{caught.value.render()}\n" == golden
