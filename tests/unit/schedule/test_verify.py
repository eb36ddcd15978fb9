"""The schedule verifier refuses what it should, by name, and finds deadlocks of both loop orders."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.errors import PlanError, ScheduleError
from overlap.schedule.model import AxisTiles, RankSchedule, Wait
from overlap.schedule.runs import schedule_all
from overlap.schedule.verify import verify_schedule

from .oracle import tiles_of
from .plans import gather, gemm_axes, reads_a, ring

PLAN = gather((136, 8), 0, 4)
AXES = gemm_axes(136, 100, 32, 64)
READS = reads_a()


def good() -> list[RankSchedule]:
    return list(schedule_all(PLAN, READS, AXES))


def with_run(schedule: RankSchedule, number: int, **changes) -> RankSchedule:
    runs = list(schedule.runs)
    runs[number] = replace(runs[number], **changes)
    return replace(schedule, runs=tuple(runs))


def moved(schedule: RankSchedule, order) -> RankSchedule:
    """The same runs in another order, with positions that fit."""
    runs, first = [], 0
    for i in order:
        runs.append(replace(schedule.runs[i], first=first))
        first += runs[-1].tiles
    return replace(schedule, runs=tuple(runs))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s: replace(s, rank=2), "rank 1: a schedule for rank 2"),
        (lambda s: replace(s, world=5), "of 5 on other axes"),
        (lambda s: replace(s, axes=gemm_axes(136, 100, 16, 64)), "rank 1: .* on other axes"),
        (lambda s: with_run(s, 1, first=3), "run 1 starts at position 3, the run before it ends at 2"),
        (lambda s: replace(s, runs=s.runs[:-1]), "rank 1 schedules 6 tiles of a grid of 10: tiles are missing"),
        (lambda s: moved(with_run(s, 2, origin=(3, 0)), (0, 1, 2)), "runs 1 and 2 both hold a tile"),
        (lambda s: with_run(s, 2, origin=(-1, 0)), "leaves the grid"),
        (lambda s: with_run(s, 2, counts=(2, 3)), "leaves the grid"),
        (lambda s: with_run(s, 2, counts=(2, 0)), "is empty"),
        (lambda s: with_run(s, 2, origin=(0,), counts=(2,)), "a box of 1 axes, the grid has 2"),
        (lambda s: with_run(s, 0, waits=()), r"rank 1 run 0 reads a\[68:102, 0:8\] without a wait"),
        (lambda s: with_run(s, 1, waits=s.runs[0].waits), r"run 1 reads a\[102:136, 0:8\] without a wait"),
        (lambda s: with_run(s, 0, waits=(Wait((0, 0), 0),)), "run 0 waits for rank 0 operation 0, which never raises"),
        (lambda s: with_run(s, 0, waits=(Wait((1, 0), 2),)), "at slot 2, whose flag is slot 0"),
        (lambda s: with_run(s, 0, waits=(Wait((1, 0), 0, 2),)), "waits for 2 raises"),
        (lambda s: with_run(s, 0, raises=(Wait((1, 9), 0),)), "raises a counter for rank 1 operation 9"),
        (lambda s: replace(s, slots={**s.slots, (0, 0): 3}), "rank 0 operation 0 has a flag slot"),
        (lambda s: replace(s, slots={op: n for op, n in s.slots.items() if n}), "lands without one"),
        (lambda s: replace(s, slots=dict.fromkeys(s.slots, 0)), "flag slots"),
        (lambda s: replace(s, order=((0, (0, 2, 1)),)), "in another order than plan gather"),
        (lambda s: replace(s, order=()), "in another order than plan gather"),
    ],
)
def test_a_broken_schedule_is_refused(change, message):
    schedules = good()
    verify_schedule(schedules, PLAN, READS, AXES)
    schedules[1] = change(schedules[1])
    with pytest.raises(ScheduleError, match=message):
        verify_schedule(schedules, PLAN, READS, AXES)


def test_a_flag_that_may_be_overtaken_is_not_implied():
    """Run 2 of rank 0 reads two chunks and waits for the later one: right in stream order only."""
    with pytest.raises(ScheduleError, match=r"rank 0 run 2 reads a\[34:68, 0:8\] without a wait"):
        verify_schedule(good(), PLAN, READS, AXES, ordered=False)
    verify_schedule(schedule_all(PLAN, READS, AXES, ordered=False), PLAN, READS, AXES, ordered=False)


def test_every_rank_is_there():
    with pytest.raises(ScheduleError, match="3 schedules for plan gather of world 4"):
        verify_schedule(good()[:3], PLAN, READS, AXES)


def test_a_plan_that_does_not_bring_what_tiles_read_is_refused():
    short = replace(PLAN, ops=(PLAN.ops[0][:2], *PLAN.ops[1:]))
    with pytest.raises(PlanError, match=r"never brings a\[102:136, 0:8\] to rank 0"):
        verify_schedule(good(), short, READS, AXES)


def listed(schedule: RankSchedule, change=list) -> RankSchedule:
    return replace(schedule, coordinates=tuple(change([tile for run in schedule.runs for tile in tiles_of(run)])))


def test_listed_coordinates():
    schedules = [listed(s, lambda tiles: [*reversed(tiles[:2]), *tiles[2:]]) for s in good()]
    verify_schedule(schedules, PLAN, READS, AXES)
    for change, message in (
        (lambda tiles: tiles[:-1], "9 tiles for a grid of 10"),
        (lambda tiles: [tiles[-1], *tiles[1:-1], tiles[0]], "run 0 lists tile .* outside its box"),
        (lambda tiles: [tiles[1], *tiles[1:]], "run 0 lists a tile twice"),
        (lambda tiles: [(2,), *tiles[1:]], "outside its box"),
    ):
        broken = [*schedules[:3], listed(good()[3], change)]
        with pytest.raises(ScheduleError, match=message):
            verify_schedule(broken, PLAN, READS, AXES)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_one_change_is_noticed(data):
    """Schedules of random rings: a run dropped, moved, or with a wait less is never accepted."""
    world = data.draw(st.integers(2, 5))
    m, block = data.draw(st.integers(1, 60)), data.draw(st.sampled_from((3, 8, 16)))
    plan, axes = ring((m, 3), 0, world, split=data.draw(st.integers(1, 2))), gemm_axes(m, 5, block, 8)
    schedules = list(schedule_all(plan, READS, axes))
    verify_schedule(schedules, plan, READS, axes)
    rank = data.draw(st.integers(0, world - 1))
    schedule = schedules[rank]
    number = data.draw(st.integers(0, len(schedule.runs) - 1))
    run = schedule.runs[number]
    changes = ["drop", "shift", "grow"] + (["unwait"] if run.waits else [])
    change = data.draw(st.sampled_from(changes))
    if change == "drop":
        schedules[rank] = moved(schedule, [i for i in range(len(schedule.runs)) if i != number])
    elif change == "shift":
        schedules[rank] = with_run(schedule, number, origin=(run.origin[0] + 1, run.origin[1]))
    elif change == "grow":
        schedules[rank] = with_run(schedule, number, counts=(run.counts[0] + 1, run.counts[1]))
    else:
        gone = data.draw(st.integers(0, len(run.waits) - 1))
        schedules[rank] = with_run(schedule, number, waits=run.waits[:gone] + run.waits[gone + 1 :])
    with pytest.raises(ScheduleError):
        verify_schedule(schedules, plan, READS, axes)


def exchange(held_by: int) -> tuple[list[RankSchedule], object, tuple[AxisTiles, ...]]:
    """Two ranks of a kernel that consumes and produces: the push of each is held back by its run ``held_by``."""
    plan, axes = gather((64, 4), 0, 2, direction="push"), gemm_axes(64, 16, 16, 16)
    schedules = [
        with_run(schedule, held_by, raises=(Wait((rank, 0), 0, schedule.runs[held_by].tiles),))
        for rank, schedule in enumerate(schedule_all(plan, READS, axes))
    ]
    assert [len(schedule.runs) for schedule in schedules] == [2, 2]
    return schedules, plan, axes


def test_a_deadlock_only_in_flattened_order():
    """Each rank's first run makes what the other's second run waits for. In source order that is fine; in a flattened
    loop the wait of the second run stands before the raise of the first, on both ranks."""
    schedules, plan, axes = exchange(held_by=0)
    verify_schedule(schedules, plan, READS, axes)
    with pytest.raises(ScheduleError, match="deadlock in the flattened order") as raised:
        verify_schedule(schedules, plan, READS, axes, flattened=True)
    story = raised.value.message
    assert "the wait of rank 0 run 1" in story and "the raise of rank 1 run 0" in story
    assert "rank 1 operation 0 (push a[32:64, 0:4] to rank 0)" in story
    assert "unflattened" in raised.value.help


def test_one_rank_without_a_second_run_breaks_the_flattened_cycle():
    schedules, plan, axes = exchange(held_by=0)
    schedules[1] = with_run(schedules[1], 0, raises=())
    verify_schedule(schedules, plan, READS, axes, flattened=True)


def test_a_deadlock_in_any_order():
    """Each rank's second run waits for what the other's second run makes."""
    schedules, plan, axes = exchange(held_by=1)
    for flattened in (False, True):
        with pytest.raises(ScheduleError, match="deadlock in .*wait of rank 1 run 1 comes after rank 0 operation 0"):
            verify_schedule(schedules, plan, READS, axes, flattened=flattened)


def test_a_rank_that_waits_for_its_own_later_run_is_a_deadlock():
    """Rank 0's run 0 waits for what comes back only behind its own run 1."""
    plan, axes = gather((64, 4), 0, 2), gemm_axes(64, 16, 16, 16)
    schedules = list(schedule_all(plan, READS, axes))
    backwards = moved(schedules[0], (1, 0))
    verify_schedule([backwards, schedules[1]], plan, READS, axes)
    backwards = with_run(backwards, 1, raises=(Wait((0, 0), 0),))
    chain = "rank 0 run 0 comes after rank 0 operation 0 .* comes after the raise of rank 0 run 1"
    with pytest.raises(ScheduleError, match=chain):
        verify_schedule([backwards, schedules[1]], plan, READS, axes)
