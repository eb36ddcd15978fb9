"""The schedule verifier refuses what it should, by name, and finds deadlocks of both loop orders."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.plan import P2P, Chunk, CommPlan
from overlap.chunkplan.region import Box
from overlap.errors import PlanError, ScheduleError, UnsupportedError
from overlap.schedule.model import AxisTiles, Counter, CountIn, RankSchedule, TensorWrite, Wait
from overlap.schedule.runs import schedule_all
from overlap.schedule.verify import flatten_safe, verify_schedule
from tests.support.sweep import examples

from .oracle import check, tiles_of
from .plans import (
    SUM,
    both,
    chunk_of,
    exchange,
    gather,
    gemm_axes,
    pieces,
    reads_a,
    reduce_scatter,
    reduced,
    ring,
    two_shot,
    windows_of,
    writes_c,
)

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
        (lambda s: with_run(s, 0, raises=(CountIn(0),)), "run 0 counts into counter 0, which does not exist"),
        (lambda s: replace(s, counters=(Counter(0, own_chunk(1), 4, ((1, 0),)),)), "1 counters for 0 chunks"),
        (lambda s: replace(s, slots={**s.slots, (0, 0): 3}), "rank 0 operation 0 has a flag slot"),
        (
            lambda s: replace(s, slots={op: n for op, n in s.slots.items() if n}),
            r"rank 1: rank . operation . \(pull .*\) lands here and has no flag slot",
        ),
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


@settings(max_examples=examples(150), deadline=None)
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


SCATTER = reduce_scatter((130, 64), 0, 4)
SCATTER_AXES = gemm_axes(130, 64, 32, 64)


def with_counter(schedule: RankSchedule, number: int, **changes) -> RankSchedule:
    counters = list(schedule.counters)
    counters[number] = replace(counters[number], **changes)
    return replace(schedule, counters=tuple(counters))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s: replace(s, counters=s.counters[:-1]), r"no counter says when c\[0:33, 0:64\] is whole"),
        (
            lambda s: replace(s, counters=s.counters[::-1]),
            r"counter 0 \(slot 2\) counts c\[0:33, .* should count c\[66:99",
        ),
        (lambda s: with_counter(s, 0, slot=1), r"counter 0 \(slot 1\)"),
        (lambda s: with_counter(s, 0, ops=((1, 0), (1, 1))), "for rank 1 operation 0, rank 1 operation 1, it should"),
        (lambda s: with_counter(s, 0, ops=()), "for nobody, it should count"),
        (lambda s: with_counter(s, 1, target=1), "counter 1 of .* waits for 1 tiles, 2 make parts of it"),
        (lambda s: with_counter(s, 1, target=3), "counter 1 of .* waits for 3 tiles"),
        (lambda s: with_run(s, 0, raises=()), r"run 0 counts its 1 tiles 0 times .* c\[66:99, 0:64\], which 1 of them"),
        (lambda s: with_run(s, 0, raises=(CountIn(0), CountIn(0))), "run 0 counts its 1 tiles 2 times"),
        (lambda s: with_run(s, 0, raises=(CountIn(0), CountIn(2))), r"1 times .* c\[0:33, 0:64\], which none of them"),
        (lambda s: with_run(s, 0, raises=(CountIn(0, 2),)), "run 0 counts a tile 2 times into counter 0"),
        (lambda s: with_run(s, 0, raises=(CountIn(-1),)), "counter -1, which does not exist"),
        (lambda s: replace(with_run(s, 0, counts=(2, 1)), runs=merged(s.runs)), "run 0 counts its 2 tiles"),
    ],
)
def test_a_broken_counter_is_refused(change, message):
    how = {"writes": writes_c()}
    schedules = list(schedule_all(SCATTER, (), SCATTER_AXES, **how))
    verify_schedule(schedules, SCATTER, (), SCATTER_AXES, **how)
    schedules[1] = change(schedules[1])
    with pytest.raises(ScheduleError, match=message):
        verify_schedule(schedules, SCATTER, (), SCATTER_AXES, **how)


def merged(runs):
    """The first two runs as one, which counts all its tiles into the chunks of both."""
    return (replace(runs[0], counts=(2, 1), raises=runs[1].raises), *runs[2:])


def test_schedules_of_consumers_are_refused_where_tiles_are_meant_to_produce():
    schedules = schedule_all(SCATTER, (), SCATTER_AXES)
    with pytest.raises(ScheduleError, match="no counter says when"):
        verify_schedule(schedules, SCATTER, (), SCATTER_AXES, writes=writes_c())
    with pytest.raises(ScheduleError, match="3 counters for 0 chunks"):
        verify_schedule(schedule_all(SCATTER, (), SCATTER_AXES, writes=writes_c()), SCATTER, (), SCATTER_AXES)


@pytest.mark.parametrize(
    "writes, axes, message, help",
    [
        ((TensorWrite("C", ("M", "N")),), SCATTER_AXES, "tiles write 'C', which plan", "there are: c"),
        ((TensorWrite("c", ("M",)),), SCATTER_AXES, "tiles write c as 1-dimensional", ""),
        ((TensorWrite("c", ("M", "NN")),), SCATTER_AXES, "'NN', which is no tile axis", "did you mean 'N'"),
        (writes_c(), gemm_axes(131, 64, 32, 64), "axis M has 131 elements, but dimension 0 of c has 130", "sizes"),
    ],
)
def test_writes_that_do_not_fit_are_refused(writes, axes, message, help):
    with pytest.raises(ScheduleError, match=message) as raised:
        schedule_all(SCATTER, (), axes, writes=writes)
    assert help in raised.value.help


def test_windows_and_axes_of_other_ranks_are_refused():
    plan = exchange((40, 6), 3)
    windows = windows_of(plan)
    axes = [gemm_axes(*own["c"].shape, 16, 2) for own in windows]
    how = {"writes": writes_c(), "windows": windows}
    schedules = schedule_all(plan, (), axes, **how)
    verify_schedule(schedules, plan, (), axes, **how)
    with pytest.raises(ScheduleError, match=r"rank 0 sends c\[0:14, 2:4\], and its tiles make c\[14:28, 0:6\]"):
        schedule_all(plan, (), axes[1:2] * 3, writes=writes_c(), windows=windows[1:2] * 3)
    with pytest.raises(ScheduleError, match="axis M has 14 elements, but dimension 0 of c has 12"):
        schedule_all(plan, (), axes[0], **how)
    with pytest.raises(ScheduleError, match="rank 2: .* on other axes"):
        verify_schedule([*schedules[:2], replace(schedules[2], axes=axes[0])], plan, (), axes, **how)
    with pytest.raises(ScheduleError, match="tile axes of 2 ranks for a world of 3"):
        schedule_all(plan, (), axes[:2], **how)
    with pytest.raises(ScheduleError, match="windows of 2 ranks for a world of 3"):
        schedule_all(plan, (), axes, writes=writes_c(), windows=windows[:2])
    far = [{"c": Box((0, 0), (41, 6))}] * 3
    with pytest.raises(ScheduleError, match=r"the window \[0:41, 0:6\] of c leaves its shape \[40, 6\]"):
        schedule_all(plan, (), gemm_axes(41, 6, 16, 2), writes=writes_c(), windows=far)


def test_a_pull_of_what_tiles_make_is_refused():
    chunk = chunk_of((8, 4), 0, 0, 4, "c")
    pull = P2P("pull", 0, 1, chunk, chunk)
    plan = reduced("pulled", 2, (8, 4), [(), (chunk,)], [[], [pull]])
    with pytest.raises(UnsupportedError, match="rank 1 operation 0 .* made by tiles") as raised:
        schedule_all(plan, (), gemm_axes(8, 4, 4, 4), writes=writes_c())
    assert "use push" in raised.value.help


def feedback(makes: int) -> tuple[CommPlan, tuple[AxisTiles, ...], dict]:
    """Two ranks: each sends its shard of a when it has sent rows of c, its own (``makes`` 0) or the other's (1)."""
    ops = []
    a, c = pieces((64, 4), 0, 2, 1), pieces((64, 16), 0, 2, 1, "c")
    for rank in range(2):
        made = c[(rank + makes) % 2][0]
        ops.append(
            [
                P2P("push", rank, 1 - rank, made, made, reduce=SUM),
                P2P("push", rank, 1 - rank, a[rank][0], a[rank][0], ((rank, 0),), channel=1),
            ]
        )
    gathered, scattered = gather((64, 4), 0, 2), reduced("c", 2, (64, 16), [()] * 2, [[], []])
    plan = replace(both(gathered, scattered), ops=tuple(map(tuple, ops)))
    return plan, gemm_axes(64, 16, 16, 16), {"writes": writes_c()}


def test_a_deadlock_only_in_flattened_order():
    """Each rank's first run makes what the other's second run waits for. In source order that is fine; in a flattened
    loop the wait of the second run stands before the raise of the first, on both ranks."""
    plan, axes, how = feedback(makes=0)
    schedules = schedule_all(plan, READS, axes, **how)
    check(schedules, plan, READS, axes, **how)
    verify_schedule(schedules, plan, READS, axes, **how)
    assert not flatten_safe(schedules, plan, **how)
    with pytest.raises(ScheduleError, match="deadlock in the flattened order") as raised:
        verify_schedule(schedules, plan, READS, axes, flattened=True, **how)
    story = raised.value.message
    assert "the wait of rank 0 run 1" in story and "the raise of rank 1 run 0" in story
    assert "rank 1 operation 1 (push a[32:64, 0:4] to rank 0)" in story
    assert "unflattened" in raised.value.help


def test_one_rank_that_waits_for_nobody_breaks_the_flattened_cycle():
    plan, axes, how = feedback(makes=0)
    freed = replace(plan.ops[1][1], depends=())
    plan = replace(plan, ops=(plan.ops[0], (plan.ops[1][0], freed)))
    schedules = schedule_all(plan, READS, axes, **how)
    verify_schedule(schedules, plan, READS, axes, flattened=True, **how)
    assert flatten_safe(schedules, plan, **how)


def test_a_deadlock_in_any_order():
    """Each rank's rows of the other wait for what the other's rows of this rank make."""
    plan, axes, how = feedback(makes=1)
    schedules = schedule_all(plan, READS, axes, **how)
    assert not flatten_safe(schedules, plan, **how)
    for flattened in (False, True):
        with pytest.raises(ScheduleError, match="deadlock in .*wait of rank 1 run 0 comes after rank 0 operation 1"):
            verify_schedule(schedules, plan, READS, axes, flattened=flattened, **how)


def test_a_rank_that_waits_for_its_own_later_run_is_a_deadlock():
    """Rank 0's run 0 waits for what rank 1 sends only when it has seen what rank 0's run 1 makes."""
    plan, axes, how = feedback(makes=0)
    behind = replace(plan.ops[1][1], depends=((0, 0),))
    plan = replace(plan, ops=(plan.ops[0], (plan.ops[1][0], behind)))
    schedules = list(schedule_all(plan, READS, axes, **how))
    verify_schedule(schedules, plan, READS, axes, **how)
    schedules[0] = moved(schedules[0], (1, 0))
    chain = "rank 0 run 0 comes after rank 1 operation 1 .* comes after the raise of rank 0 run 1"
    with pytest.raises(ScheduleError, match=chain):
        verify_schedule(schedules, plan, READS, axes, **how)


def test_what_sends_a_sum_stands_behind_the_whole_kernel():
    """Each rank sends a when it has sent a sum. The parts of that are there early, but sums are made when the kernel
    ends, and the kernel waits for a."""
    axes, how = gemm_axes(64, 16, 16, 16), {"writes": writes_c()}
    halves = [part[0] for part in pieces((64, 16), 0, 2, 1, "c")]
    swap = dict(zip(halves, reversed(halves), strict=True))
    reduce = two_shot((64, 16), 0, 2)
    turned = [tuple(replace(op, src=swap[op.src], dst=swap[op.dst]) for op in own) for own in reduce.ops]
    plan = both(replace(reduce, ops=tuple(turned)), gather((64, 4), 0, 2, direction="push"), channel=2)
    schedules = schedule_all(plan, READS, axes, **how)
    check(schedules, plan, READS, axes, **how)
    verify_schedule(schedules, plan, READS, axes, flattened=True, **how)
    for sends, fine in ((0, True), (1, False)):
        ops = [(*own[:2], replace(own[2], depends=((rank, sends),))) for rank, own in enumerate(plan.ops)]
        waiting = replace(plan, ops=tuple(ops))
        schedules = schedule_all(waiting, READS, axes, **how)
        if fine:
            verify_schedule(schedules, waiting, READS, axes, **how)
            continue
        with pytest.raises(ScheduleError, match="operation 1 .* comes after the raise of rank . run 1"):
            verify_schedule(schedules, waiting, READS, axes, **how)


def own_chunk(rank: int) -> Chunk:
    return PLAN.before[rank][0]
