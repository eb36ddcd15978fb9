"""Sums that are stored where they go by the launch that makes them: which, their steps, every order of two ranks."""

from __future__ import annotations

import dataclasses

import pytest

from overlap.chunkplan.plan import CommPlan
from overlap.errors import ScheduleError
from overlap.schedule.early import in_rounds
from overlap.schedule.step import Branch, Copy, Credit, Entry, Fork, Gather, Hold, Join, Kernel, Raise, Sum, Whole
from overlap.schedule.steps import launch_steps
from overlap.schedule.stored_sums import stored_sums
from overlap.schedule.verify_steps import verify_steps

from .plans import both, chunk_of, gather, one_shot, reduce_scatter, ring_scatter, two_shot
from .protocol_model import outcome, outcomes

C = ("c",)


def plans() -> dict[str, CommPlan]:
    found = {}
    for world in (1, 2, 3, 4):
        several = {
            "two shot": two_shot((5, 1), 0, world),
            "one lane": two_shot((4, 1), 0, world, channels=1),
            "split": two_shot((2 * world, 1), 0, world, split=2),
            "many parts": two_shot((4 * world + 1, 1), 0, world, split=4),
            "some ranks own nothing": two_shot((2, 1), 0, world, split=2),
            "some own fewer parts": two_shot((5, 1), 0, world, split=3),
            "ring": ring_scatter((4, 1), 0, world),
            "gather and two shot": both(gather((4, 2), 0, world), two_shot((4, 1), 0, world), channel=1),
        }
        found |= {f"{name}, world {world}": plan for name, plan in several.items()}
    return found


PLANS = plans()
named = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())


def all_steps(plan: CommPlan, *, early: bool = False, **how) -> list[tuple]:
    stored = stored_sums(plan, C)
    return [launch_steps(plan, rank, produced=C, early=early, sums_store=stored, **how) for rank in range(plan.world)]


def test_which_sums_are_stored():
    """All that are sent and wait for no more than they add; no partials, no empty ones."""
    plan = two_shot((6, 1), 0, 3)
    assert stored_sums(plan, C) == {op_id for op_id, op in plan.items() if op.reduce is None}
    assert not stored_sums(reduce_scatter((6, 1), 0, 3), C) and not stored_sums(one_shot((6, 1), 3), C)
    waits = dataclasses.replace(plan.ops[0][2], depends=(*plan.ops[0][2].depends, (1, 3)))
    more = dataclasses.replace(plan, ops=((*plan.ops[0][:2], waits, plan.ops[0][3]), *plan.ops[1:]))
    assert stored_sums(plan, C) - stored_sums(more, C) == {(0, 2)}
    assert {op[0] for op in stored_sums(two_shot((2, 1), 0, 3), C)} == {0, 1}


def test_two_shot():
    plan = two_shot((6, 2), 0, 3)
    steps = all_steps(plan)[1]
    assert [step for step in steps if not isinstance(step, Sum | Hold)] == [
        Entry(True, False, True),
        Fork(0),
        Kernel(),
        Copy(0, (1, 0)),
        Raise(0, (1, 0)),
        Copy(0, (1, 1)),
        Raise(0, (1, 1)),
        Credit(2, None),
        Credit(0, None),
        Join(0),
    ]
    assert [step.stores for step in steps if isinstance(step, Sum)] == [((1, 2), (1, 3)), ()]


def test_beside_the_kernel_no_lane_follows_the_sum():
    plan = in_rounds(two_shot((8, 1), 0, 2, split=2), C)
    steps = all_steps(plan, early=True)[0]
    assert [(step.lane, step.stores) for step in steps if isinstance(step, Sum)] == [
        (2, ((0, 2),)), (3, ()), (None, ((0, 3),)), (None, ()),
    ]  # fmt: skip
    assert not any(isinstance(step, Branch) for step in steps) and Fork(1) not in steps


def test_what_others_store_is_put_in_its_place_in_the_meantime():
    """Of 4 rounds the first three on a lane that the main stream joins behind its last sum, each when it has come."""
    plan = in_rounds(two_shot((16, 1), 0, 2, split=4), C)
    steps = all_steps(plan, early=True)[0]
    sums = [step for step in steps if isinstance(step, Sum)]
    mine, theirs = (
        [chunk_of((16, 1), 0, lo, lo + 2, "c") for lo in (0, 2, 4, 6)],
        [(8 + lo, 10 + lo) for lo in (0, 2, 4, 6)],
    )
    placed = [chunk_of((16, 1), 0, *rows, "c") for rows in theirs]
    assert [(step.lane, [piece.chunk for piece in step.pieces]) for step in sums] == [
        (2, mine[:1]),
        (3, placed[:1]),
        (2, mine[1:2]),
        (3, placed[1:2]),
        (2, mine[2:3]),
        (3, placed[2:3]),
        (None, mine[3:]),
        (None, placed[3:]),
    ]
    assert steps.index(Join(2)) < steps.index(sums[-2]) < steps.index(Join(3)) < steps.index(sums[-1])
    assert [step.ops for step in steps if isinstance(step, Gather) and step.lane == 3] == [
        ((1, 4),),
        ((1, 5),),
        ((1, 6),),
    ]
    late = [step for step in steps if step != Join(3)]
    with pytest.raises(ScheduleError, match="credit to rank 1 does not follow the last copy|never joined"):
        verify_steps([(*late, Join(3)), all_steps(plan, early=True)[1]], plan, C)


@named
def test_no_interleaving_goes_wrong_and_results_are_those_of_copies(plan):
    for how in ({}, {"early": True}, {"kernel_first": True}):
        made = in_rounds(plan, C) if how.get("early") else plan
        steps = all_steps(made, **how)
        verify_steps(steps, made, C, blocking="kernel_first" not in how)
        early = {"early": True} if how.get("early") else {}
        copied: list = []
        usual = [launch_steps(made, rank, produced=C, **early) for rank in range(plan.world)]
        assert outcome(made, usual, 0, produced=C, results=copied) == "ok"
        for seed in range(3):
            results: list = []
            assert outcome(made, steps, seed, produced=C, results=results) == "ok"
            assert results == copied


EXHAUSTIVE = {
    "two shot": (two_shot((2, 1), 0, 2), False),
    "two shot, one lane": (two_shot((2, 1), 0, 2, channels=1), False),
    "beside the kernel": (in_rounds(two_shot((4, 1), 0, 2, split=2), C), True),
}


@pytest.mark.parametrize("plan, early", EXHAUSTIVE.values(), ids=EXHAUSTIVE.keys())
def test_every_interleaving_of_2_ranks_is_right(plan, early):
    launches = 2 if early else 3
    assert outcomes(plan, all_steps(plan, early=early), produced=C, launches=launches) == {"ok"}


def changed(steps, **changes):
    return tuple(
        dataclasses.replace(step, **changes) if isinstance(step, Sum) and step.stores else step for step in steps
    )


def without(steps, kind):
    return tuple(step for step in steps if not isinstance(step, kind))


def ahead_of_the_kernel(steps):
    stored = [step for step in steps if isinstance(step, Sum) and step.stores]
    rest = [step for step in steps if step not in stored]
    at = next(i for i, step in enumerate(rest) if isinstance(step, Kernel))
    return (*rest[:at], *stored, *rest[at:])


@pytest.mark.parametrize(
    "change, found, message",
    [
        (lambda s: changed(s, stores=()), "stuck", "rank 0 operation 1 is never copied|operation 1 .* is never copied"),
        (lambda s: without(s, Raise), "stuck", "never raised"),
        (lambda s: without(s, Hold), "stale", "without being held"),
        (lambda s: without(s, Credit), "stuck", "credits to ranks"),
        (ahead_of_the_kernel, "stuck", "ahead of the kernel"),
    ],
)
def test_what_is_dropped_goes_wrong_in_some_interleaving(change, found, message):
    plan, _ = EXHAUSTIVE["two shot"]
    steps = [change(own) for own in all_steps(plan)]
    assert found in outcomes(plan, steps, produced=C, until=(found,))
    with pytest.raises(ScheduleError, match=message):
        verify_steps(steps, plan, C)


def test_a_sum_beside_the_kernel_that_waits_for_too_little_is_stale():
    plan, _ = EXHAUSTIVE["beside the kernel"]
    steps = [without(own, Whole) for own in all_steps(plan, early=True)]
    assert outcomes(plan, steps, produced=C, launches=2, until=("stale",)) >= {"stale"}


@pytest.mark.parametrize(
    "stores, message",
    [
        (((0, 1), (0, 1)), "stored twice"),
        (((1, 1),), "not its own"),
        (((0, 0),), "sends another|stored twice"),
    ],
)
def test_stores_that_the_plan_does_not_have_are_refused(stores, message):
    plan, _ = EXHAUSTIVE["two shot"]
    steps = all_steps(plan)
    steps[0] = changed(steps[0], stores=stores)
    with pytest.raises(ScheduleError, match=message):
        verify_steps(steps, plan, C)
