"""Sums that are made while kernels run: the order of the plan, the steps, all interleavings, and that no step can go."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import P2P, CommPlan, TensorSpec
from overlap.chunkplan.split import split_plan
from overlap.errors import ScheduleError
from overlap.schedule.early import can_be_early, early_sums, in_rounds, kept_chunks, rounds_of
from overlap.schedule.events import SUM_DRAW, simulate
from overlap.schedule.machine import load_machine
from overlap.schedule.model import AxisTiles, TensorWrite
from overlap.schedule.runs import schedule_all
from overlap.schedule.steps import (
    Branch,
    Copy,
    Credit,
    Entry,
    Fork,
    Gather,
    Hold,
    Join,
    Kernel,
    Raise,
    Sum,
    Whole,
    launch_steps,
)
from overlap.schedule.verify import verify_schedule
from overlap.schedule.verify_steps import verify_steps
from overlap.schedule.work import work_of_schedules, work_per_chunk

from .plans import SUM, chunk_of, exchange, one_shot, pieces, reduce_scatter, reduced, ring_scatter, two_shot
from .protocol_model import outcome, outcomes

C = ("c",)


def a_lane_a_peer(plan: CommPlan) -> CommPlan:
    """The same with a channel for every rank that is sent to, and others for sums."""
    ops = (tuple(replace(op, channel=op.dst_rank + (0 if op.reduce else plan.world)) for op in own) for own in plan.ops)
    return replace(plan, ops=tuple(ops))


def plans() -> dict[str, CommPlan]:
    found = {}
    for world in (2, 3, 4):
        several = {
            "scatter": reduce_scatter((3 * world, 1), 0, world, split=3),
            "ragged scatter": reduce_scatter((2 * world + 1, 1), 0, world, split=2),
            "scatter, two lanes": reduce_scatter((2 * world, 1), 0, world, split=2, channels=2),
            "two shot": two_shot((2 * world, 1), 0, world, split=2),
            "two shot, empty chunks": split_plan(two_shot((world + 1, 1), 0, world), 3),
            "two shot, a lane a peer": a_lane_a_peer(two_shot((2 * world, 1), 0, world, split=2)),
            "exchange": exchange((2 * world, world), world, split=2),
        }
        found |= {f"{name}, world {world}": in_rounds(plan, C) for name, plan in several.items()}
    return found


PLANS = plans()
named = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())


def all_steps(plan: CommPlan, **how) -> list[tuple]:
    return [launch_steps(plan, rank, produced=C, early=True, **how) for rank in range(plan.world)]


def late_steps(plan: CommPlan) -> list[tuple]:
    return [launch_steps(plan, rank, produced=C) for rank in range(plan.world)]


def test_parts_of_all_ranks_before_the_next_part_of_any():
    plan = in_rounds(two_shot((12, 1), 0, 3, split=2), C)
    rounds = rounds_of(plan)
    assert [(op.dst_rank, rounds[0, i]) for i, op in enumerate(plan.ops[0])] == [(1, 0), (2, 0), (1, 1), (2, 1)] * 2
    assert plan.ops[0][4].depends == ((1, 1), (2, 0)) and plan.op((1, 1)).dst == plan.ops[0][4].src
    assert in_rounds(plan, C) is plan


def test_rounds_go_across_lanes():
    plan = in_rounds(a_lane_a_peer(two_shot((12, 1), 0, 3, split=2)), C)
    assert [op.dst_rank for op in plan.ops[0]] == [1, 2] * 4 and can_be_early(plan, C)


def test_a_plan_that_relies_on_the_order_of_its_channel_stays_as_it_is():
    """The second hop of a ring goes where the first went, and what comes by between them is added."""
    plan = ring_scatter((6, 1), 0, 3)
    assert in_rounds(plan, C) is plan and not can_be_early(plan, C)
    assert launch_steps(plan, 0, produced=C, early=False) == launch_steps(plan, 0, produced=C)


def test_an_order_that_decides_what_is_added_stays_as_it_is():
    """Rank 1 sends row 1 on behind row 2, and so behind what rank 0 sends it of row 1: by rounds that came later."""
    rows = [row[0] for row in pieces((3, 1), 0, 3, 1, "c")]
    sent = [(0, 1, rows[0], ()), (0, 1, rows[1], ()), (0, 2, rows[2], ())], [(1, 2, rows[1], ((0, 2),))], []
    ops = [[P2P("push", a, b, row, row, needs, reduce=SUM) for a, b, row, needs in some] for some in sent]
    plan = reduced("relies", 3, (3, 1), [(row,) for row in rows], ops, "c")
    assert [rounds_of(plan)[0, i] for i in range(3)] == [0, 1, 0]
    assert in_rounds(plan, C) is plan
    free = replace(plan, ops=(plan.ops[0], (replace(plan.ops[1][0], depends=((0, 1),)),), ()))
    assert [op.dst_rank for op in in_rounds(free, C).ops[0]] == [1, 2, 1]


@pytest.mark.parametrize(
    "plan",
    [reduce_scatter((4, 1), 0, 1, split=2), reduce_scatter((4, 1), 0, 2), one_shot((4, 1), 2)],
    ids=["one rank", "one chunk", "one shot"],
)
def test_where_there_is_one_chunk_sums_follow_the_kernel(plan):
    assert not can_be_early(plan, C)
    assert all_steps(plan) == [launch_steps(plan, rank, produced=C) for rank in range(plan.world)]


def test_two_shot():
    plan = in_rounds(two_shot((8, 1), 0, 2, split=2), C)
    first, last = (chunk_of((8, 1), 0, lo, lo + 2, "c") for lo in (0, 2))
    steps = launch_steps(plan, 0, produced=C, early=True)
    assert [s for s in steps if not isinstance(s, Sum)] == [
        Entry(True, False, True),
        Fork(0),
        Fork(1),
        Fork(2),
        Kernel(),
        Hold(0, (0, 0)),
        Copy(0, (0, 0)),
        Raise(0, (0, 0)),
        Whole(2, first),
        Gather(2, ((1, 0),)),
        Branch(1, 2),
        Copy(1, (0, 2)),
        Raise(1, (0, 2)),
        Hold(0, (0, 1)),
        Copy(0, (0, 1)),
        Raise(0, (0, 1)),
        Join(2),
        Fork(1),
        Copy(1, (0, 3)),
        Raise(1, (0, 3)),
        Credit(1, None),
        Join(0),
        Join(1),
    ]
    sums = [(s.lane, [p.chunk for p in s.pieces]) for s in steps if isinstance(s, Sum)]
    theirs = [chunk_of((8, 1), 0, lo, lo + 2, "c") for lo in (4, 6)]
    assert sums == [(2, [first]), (None, [last]), (None, theirs)]
    assert kept_chunks(plan, 0, C) == ((first, 0),)


@named
def test_steps_are_verified(plan):
    """Also where hosts wait for every kernel."""
    assert can_be_early(plan, C)
    verify_steps(all_steps(plan), plan, C, blocking=True)


@named
def test_the_same_is_added_in_the_same_order_as_behind_the_kernel(plan):
    for rank in range(plan.world):
        early, late = (
            {p for s in launch_steps(plan, rank, produced=C, early=how) if isinstance(s, Sum) for p in s.pieces}
            for how in (True, False)
        )
        assert early == late


@named
def test_no_interleaving_goes_wrong_and_everything_is_added_once(plan):
    steps = all_steps(plan)
    for seed in range(4):
        early: list = []
        late: list = []
        assert outcome(plan, steps, seed, produced=C, results=early) == "ok"
        outcome(plan, [launch_steps(plan, r, produced=C) for r in range(plan.world)], seed, produced=C, results=late)
        assert early == late


@named
def test_no_step_can_be_left_out(plan):
    steps = all_steps(plan)
    for rank in range(plan.world):
        for i in range(len(steps[rank])):
            broken = list(steps)
            broken[rank] = steps[rank][:i] + steps[rank][i + 1 :]
            with pytest.raises(ScheduleError):
                verify_steps(broken, plan, C)


SMALL = {
    "scatter": in_rounds(reduce_scatter((4, 1), 0, 2, split=2), C),
    "two shot": in_rounds(two_shot((4, 1), 0, 2, split=2), C),
}


def without(kind, steps, **fields):
    return tuple(s for s in steps if not (isinstance(s, kind) and all(getattr(s, k) == v for k, v in fields.items())))


def ahead(steps):
    """The lane of the sums is joined behind the sums of the main stream."""
    joins = [s for s in steps if isinstance(s, Join)]
    last = max(i for i, s in enumerate(steps) if isinstance(s, Sum))
    return (*without(Join, steps[: last + 1]), *joins, *without(Join, steps[last + 1 :]))


BREAKS = {
    "the own part is not waited for": (lambda s: without(Whole, s), {"stale"}),
    "what lands is not waited for": (lambda s: without(Gather, s), {"stale"}),
    "counters are not reset": (lambda s: tuple(map(_not_reset, s)), {"stale"}),
    "sums that leave without their sum": (lambda s: without(Branch, s), {"stale"}),
    "no hold": (lambda s: without(Hold, s), {"stale"}),
}


def _not_reset(step):
    return dataclasses.replace(step, counters=False) if isinstance(step, Entry) else step


@pytest.mark.parametrize("plan", SMALL.values(), ids=SMALL.keys())
def test_every_interleaving_of_2_ranks_is_right(plan):
    assert outcomes(plan, all_steps(plan), produced=C, launches=2) == {"ok"}


@pytest.mark.parametrize("case", BREAKS.values(), ids=BREAKS.keys())
def test_what_is_dropped_goes_wrong_in_some_interleaving(case):
    change, expected = case
    plan = SMALL["two shot"]
    steps = [change(own) for own in all_steps(plan)]
    found = {outcome(plan, steps, seed, produced=C) for seed in range(200)}
    assert found >= expected
    with pytest.raises(ScheduleError):
        verify_steps(steps, plan, C)


def test_sums_of_the_main_stream_do_not_stand_beside_those_of_the_lane():
    """They fill the device and wait."""
    plan = SMALL["two shot"]
    with pytest.raises(ScheduleError, match="beside those of lane 2"):
        verify_steps([ahead(own) for own in all_steps(plan)], plan, C)


@pytest.mark.parametrize("rows", [64, 53, 7])
@pytest.mark.parametrize("world", [2, 3])
def test_tiles_of_a_round_stand_together_own_ones_last(world, rows):
    plan = in_rounds(two_shot((rows, 8), 0, world, split=3), C)
    axes, writes = (AxisTiles("M", rows, 4), AxisTiles("N", 8, 8)), (TensorWrite("c", ("M", "N")),)
    schedules = schedule_all(plan, (), axes, writes=writes, early=True)
    verify_schedule(schedules, plan, (), axes, writes=writes, early=True)
    with pytest.raises(ScheduleError):
        verify_schedule(schedules, plan, (), axes, writes=writes)
    rounds = rounds_of(plan)
    for rank, schedule in enumerate(schedules):
        own = dict(kept_chunks(plan, rank, C))
        assert {counter.chunk for counter in schedule.counters if not counter.ops} == set(own)
        assert len(own) == len(early_sums(plan, rank, C))
        by_slot = {c.slot: (own[c.chunk], 1) if not c.ops else (rounds[c.ops[0]], 0) for c in schedule.counters}
        firsts = [min(by_slot[raised.slot] for raised in run.raises) for run in schedule.runs if run.raises]
        assert firsts == sorted(firsts)
        assert not any(run.raises for run in schedule.runs[len(firsts) :])


MACHINE = replace(load_machine("h100-nvlink"), kernel=0.0, entry=0.0, flag=0.0, contention=0.0, memory=1e12)


@pytest.mark.parametrize("plan", [two_shot, reduce_scatter])
def test_the_model_adds_up_early_what_is_kept_by_a_run(plan):
    """Of two parts the first is added up while tiles run, at the rate of the free units; the last at that of all."""
    whole = in_rounds(plan((1 << 13, 1 << 10), 0, 2, split=2), C)
    units = MACHINE.units
    works = work_per_chunk(whole, 40 * units, 1e-5, produced=C, free=4)
    assert [run.keeps for run in works[0].runs if not run.feeds][0] == (kept_chunks(whole, 0, C)[0][0],)
    timeline = simulate(whole, MACHINE, works)
    tiles = max(event.end for event in timeline.events if event.kind == "tile-run")
    first, last, *placed = (e for e in timeline.events if e.kind == "sum" and e.rank == 0)
    assert first.start < 0.6 * tiles and last.start >= tiles
    size = whole.ops[0][0].dst.box.size * 2
    assert last.seconds == pytest.approx(3 * size / 1e12)
    assert first.seconds == pytest.approx(3 * size / 1e12 / (SUM_DRAW * 4 / (units + 4)))
    # What two shots bring is copied to the result behind the sums, as it comes: the last part behind its flag.
    assert len(placed) == (plan is two_shot)
    for copied in placed:
        landed = [event.end for event in timeline.events if event.kind == "flag" and event.rank != 0]
        assert copied.end == pytest.approx(max(landed) + 2 * size / 1e12) and copied.start >= last.end
    late = simulate(whole, MACHINE, work_per_chunk(whole, 40 * units, 1e-5, produced=C))
    assert timeline.total < late.total
    schedules = schedule_all(
        whole, (), (AxisTiles("M", 1 << 13, 128),), writes=(TensorWrite("c", ("M", None)),), early=True
    )
    kept = [chunk for work in work_of_schedules(whole, schedules, 1e-5, 4) for run in work.runs for chunk in run.keeps]
    assert {kept_chunks(whole, rank, C)[0][0] for rank in range(2)} <= set(kept)


@pytest.mark.parametrize("split", [2, 4, (3, 1), ((1,), (1, 1), (2, 1, 1))], ids=str)
@pytest.mark.parametrize("name", ["reduce_scatter_1d", "all_reduce_two_shot", "all_reduce_one_shot", "all_to_all_1d"])
def test_templates(name, split):
    """In any world, where parts are empty too; not where an operation waits for parts that are made later."""
    path, text = find_template(name)
    for world in (2, 3, 5):
        for rows in (6 * world + 1, 2 * world, 3):
            to = 1 if name == "all_to_all_1d" else None
            shape = TensorSpec("c", (rows, 2 * world))
            plan = build_plan(
                text, world=world, tensor=shape, dim=0, to_dim=to, split=split, direction="push", path=path
            )
            plan = in_rounds(plan, C)
            early = can_be_early(plan, C)
            # Of few rows a part has all, and the sums of two shots may wait for parts that are cut otherwise.
            assert early or rows <= 2 * world or name == "all_reduce_two_shot" and isinstance(split, tuple)
            verify_steps(all_steps(plan) if early else late_steps(plan), plan, C, blocking=True)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_what_a_rank_keeps_of_an_exchange_is_put_in_its_place_while_the_last_copies_come(world, early):
    """In the launch that waits for them, ahead of what they bring."""
    plan = in_rounds(exchange((2 * world, world), world, split=2), C)
    for rank in range(world):
        steps = launch_steps(plan, rank, produced=C, early=early)
        sums = [step for step in steps if isinstance(step, Sum) and step.lane is None]
        assert len(sums) == 1
        own = [all(op is None for op in piece.summands) for piece in sums[0].pieces]
        assert own == sorted(own, reverse=True) and any(own) and not all(own)
        in_place = launch_steps(plan, rank, produced=C, early=early, in_place=True)
        (kernel,) = (step for step in in_place if isinstance(step, Kernel))
        left = tuple(replace(step, pieces=sums[0].pieces[sum(own) :]) if step == sums[0] else step for step in steps)
        assert kernel.placed == sums[0].pieces[: sum(own)]
        assert in_place == tuple(kernel if isinstance(step, Kernel) else step for step in left)
    verify_steps([launch_steps(plan, r, produced=C, early=early, in_place=True) for r in range(world)], plan, C)
