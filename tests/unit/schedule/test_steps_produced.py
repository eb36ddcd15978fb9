"""Launch steps of kernels that produce: what they are, that no interleaving goes wrong, and that no step can go."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from overlap.chunkplan.plan import P2P, Chunk, CommPlan, TensorSpec
from overlap.chunkplan.region import Box
from overlap.errors import PlanError, ScheduleError, UnsupportedError
from overlap.schedule.pieces import Piece
from overlap.schedule.steps import Await, Copy, Credit, Entry, Fork, Hold, Join, Kernel, Raise, Sum, launch_steps
from overlap.schedule.verify_steps import verify_steps

from .plans import (
    SUM,
    both,
    chunk_of,
    exchange,
    gather,
    one_shot,
    pieces,
    reduce_scatter,
    reduced,
    ring_scatter,
    two_shot,
    whole_of,
)
from .protocol_model import outcome, outcomes


def merged(plan: CommPlan, direction: str = "pull") -> CommPlan:
    """The same with a gather of another tensor into the kernel, in one launch."""
    return both(gather((4, 2), 0, plan.world, direction=direction), plan, channel=1)


def plans() -> dict[str, CommPlan]:
    found = {}
    for world in (1, 2, 3, 4):
        several = {
            "scatter": reduce_scatter((5, 1), 0, world),
            "scatter, two lanes": reduce_scatter((6, 1), 0, world, split=2, channels=2),
            "columns": reduce_scatter((2, 3), 1, world),
            "one shot": one_shot((3, 1), world),
            "two shot": two_shot((5, 1), 0, world),
            "two shot, one lane": two_shot((4, 1), 0, world, channels=1),
            "two shot, split": two_shot((6, 1), 0, world, split=2, channels=3),
            "ring": ring_scatter((4, 1), 0, world),
            "ring, two lanes": ring_scatter((4, 1), 0, world, channels=2),
            "exchange": exchange((4, 3), world),
            "gather and scatter": merged(reduce_scatter((4, 1), 0, world)),
            "push and two shot": merged(two_shot((4, 1), 0, world), "push"),
        }
        found |= {f"{name}, world {world}": plan for name, plan in several.items()}
    return found


PLANS = plans()
named = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())


def all_steps(plan: CommPlan, **how) -> list[tuple]:
    return [launch_steps(plan, rank, produced=("c",), **how) for rank in range(plan.world)]


def rows(lo, hi, columns=2):
    return chunk_of((6, columns), 0, lo, hi, "c")


def test_reduce_scatter():
    piece = Piece(rows(2, 4), ((0, 0), None, (2, 1)), out=True)
    assert launch_steps(reduce_scatter((6, 2), 0, 3), 1, produced=("c",)) == (
        Entry(wait_done=True, ready=False, counters=True),
        Fork(0),
        Kernel(),
        Hold(0, (1, 0)),
        Copy(0, (1, 0)),
        Raise(0, (1, 0)),
        Hold(0, (1, 1)),
        Copy(0, (1, 1)),
        Raise(0, (1, 1)),
        Sum("c", (piece,)),
        Credit(2, None),
        Credit(0, None),
        Join(0),
    )


def test_one_hold_for_copies_of_one_chunk():
    steps = launch_steps(one_shot((6, 2), 3), 1, produced=("c",))
    assert [step for step in steps if isinstance(step, Hold)] == [Hold(0, (1, 0))]
    assert steps[-4].pieces == (Piece(whole_of((6, 2)), ((0, 0), None, (2, 1)), out=True),)


def test_two_shot():
    own = Piece(rows(2, 4), ((0, 0), None, (2, 1)), keep=True, out=True, ops=((1, 2), (1, 3)))
    rest = (Piece(rows(0, 2), ((0, 2),), out=True), Piece(rows(4, 6), ((2, 3),), out=True))
    assert launch_steps(two_shot((6, 2), 0, 3), 1, produced=("c",)) == (
        Entry(True, False, True),
        Fork(0),
        Kernel(),
        Hold(0, (1, 0)),
        Copy(0, (1, 0)),
        Raise(0, (1, 0)),
        Hold(0, (1, 1)),
        Copy(0, (1, 1)),
        Raise(0, (1, 1)),
        Sum("c", (own,)),
        Fork(1),
        Copy(1, (1, 2)),
        Raise(1, (1, 2)),
        Copy(1, (1, 3)),
        Raise(1, (1, 3)),
        Sum("c", rest),
        Credit(2, None),
        Credit(0, None),
        Join(0),
        Join(1),
    )


def test_a_lane_that_sends_partials_and_then_sums_is_forked_again():
    steps = launch_steps(two_shot((6, 2), 0, 3, channels=1), 1, produced=("c",))
    assert [type(step) for step in steps if isinstance(step, Fork | Kernel | Sum | Join)] == [
        Fork, Kernel, Sum, Fork, Sum, Join,
    ]  # fmt: skip


def test_an_empty_sum_is_not_made_and_what_it_would_have_waited_for_is_awaited():
    """Rank 2 of 3 owns nothing of 2 rows: what it sends on is empty, and still comes behind what it depends on."""
    plan = two_shot((2, 2), 0, 3)
    steps = launch_steps(plan, 2, produced=("c",))
    assert [len(step.pieces) for step in steps if isinstance(step, Sum)] == [2]
    assert [step.op for step in steps if isinstance(step, Await)] == list(plan.ops[2][2].depends)
    verify_steps(all_steps(plan), plan, ("c",))


def test_what_feeds_the_kernel_goes_before_it():
    steps = launch_steps(merged(reduce_scatter((6, 2), 0, 2)), 1, produced=("c",))
    assert steps == (
        Entry(True, True, True),
        Fork(0),
        Fork(1),
        Copy(0, (1, 0)),
        Raise(0, (1, 0)),
        Kernel(),
        Hold(1, (1, 1)),
        Copy(1, (1, 1)),
        Raise(1, (1, 1)),
        Sum("c", (Piece(rows(3, 6), ((0, 1), None), out=True),)),
        Join(0),
        Credit(0, None),
        Join(1),
    )
    first = launch_steps(merged(reduce_scatter((6, 2), 0, 2)), 1, produced=("c",), kernel_first=True)
    assert first[:4] == (Entry(True, True, True), Fork(0), Fork(1), Kernel()) and sorted(first, key=str) == sorted(
        steps, key=str
    )


def test_world_1_sums_what_it_has():
    steps = launch_steps(reduce_scatter((6, 2), 0, 1), 0, produced=("c",))
    assert steps == (Entry(False, False), Kernel(), Sum("c", (Piece(rows(0, 6), (None,), out=True),)))


def test_what_stays_is_in_no_sum_where_tiles_store_it_in_the_result():
    kept, came = (Piece(chunk, who, out=True) for chunk, who in ((rows(0, 6), (None,)), (rows(0, 3), ((1, 0),))))
    alone = launch_steps(reduce_scatter((6, 2), 0, 1), 0, produced=("c",), in_place=True)
    assert alone == (Entry(False, False), Kernel(placed=(kept,)))
    plan = exchange((6, 2), 2)
    kept, came = (
        Piece(Chunk("c", Box((lo, 0), (lo + 3, 1))), who, out=True) for lo, who in ((0, (None,)), (3, ((1, 0),)))
    )
    usual, steps = (launch_steps(plan, 0, produced=("c",), in_place=how) for how in (False, True))
    assert Sum("c", (kept, came)) in usual and usual == tuple(
        Kernel() if isinstance(step, Kernel) else Sum("c", (kept, came)) if isinstance(step, Sum) else step
        for step in steps
    )
    assert Kernel(placed=(kept,)) in steps and Sum("c", (came,)) in steps
    # What somebody adds to, and what a rank sends as well, goes by the partial.
    for other in (one_shot((6, 2), 2), two_shot((6, 2), 0, 2), reduce_scatter((6, 2), 0, 2), sent_and_kept()):
        assert all_steps(other, in_place=True) == all_steps(other)


def sent_and_kept() -> CommPlan:
    """Rank 0 ends with what it makes, and so does rank 1."""
    chunk = whole_of((4, 2))
    sent = P2P("push", 0, 1, chunk, chunk)
    return CommPlan("both", 2, (TensorSpec("c", (4, 2)),), ((chunk,), ()), ((chunk,), (chunk,)), ((sent,), ()))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda kernel, kept: replace(kernel, placed=()), "no sum adds up"),
        (lambda kernel, kept: replace(kernel, placed=(kept, kept)), "tiles store .* or twice"),
        (lambda kernel, kept: replace(kernel, placed=(replace(kept, summands=((1, 0),)),)), "more than what they make"),
        (lambda kernel, kept: replace(kernel, placed=(kept, Piece(rows(3, 6), (None,), out=True))), "more than what"),
    ],
    ids=["nothing", "twice", "of another", "what it does not end with"],
)
def test_a_wrong_place_is_refused(change, message):
    plan = exchange((6, 2), 2)
    steps = all_steps(plan, in_place=True)
    broken = tuple(change(step, *step.placed) if isinstance(step, Kernel) else step for step in steps[0])
    with pytest.raises(ScheduleError, match=message):
        verify_steps([broken, steps[1]], plan, ("c",))
    both_ways = [s if not isinstance(s, Sum) else replace(s, pieces=(*steps[0][2].placed, *s.pieces)) for s in steps[0]]
    with pytest.raises(ScheduleError, match="twice"):
        verify_steps([both_ways, steps[1]], plan, ("c",))


def test_what_is_sent_is_not_stored_in_the_result_alone():
    plan = sent_and_kept()
    steps = all_steps(plan)
    kept = Piece(whole_of((4, 2)), (None,), out=True)
    broken = [replace(s, placed=(kept,)) if isinstance(s, Kernel) else s for s in without(Sum, steps[0])]
    with pytest.raises(ScheduleError, match="in the result, and an operation sends it"):
        verify_steps([broken, steps[1]], plan, ("c",))


def test_a_rank_that_ends_with_nothing_sums_nothing():
    assert not any(isinstance(s, Sum) for s in launch_steps(reduce_scatter((2, 2), 0, 3), 2, produced=("c",)))
    empty = launch_steps(reduce_scatter((0, 2), 0, 3), 1, produced=("c",))
    assert [type(step) for step in empty] == [Entry, Fork, Kernel, Hold, Copy, Raise, Copy, Raise, Credit, Credit, Join]


@named
def test_steps_are_verified(plan):
    """Also where hosts wait for every kernel: nobody waits for what is enqueued behind what waits for it."""
    verify_steps(all_steps(plan), plan, ("c",), blocking=True)
    verify_steps(all_steps(plan, kernel_first=True), plan, ("c",))
    verify_steps(all_steps(plan, in_place=True), plan, ("c",), blocking=True)


@named
def test_no_interleaving_goes_wrong_and_everything_is_added_once(plan):
    for how in ({}, {"kernel_first": True}, {"in_place": True}):
        steps = all_steps(plan, **how)
        for seed in range(4):
            results: list = []
            assert outcome(plan, steps, seed, produced=("c",), results=results) == "ok"
            for rank, found in enumerate(results):
                wanted = {
                    ("c", element): (3, tuple(range(plan.world)))
                    for chunk in plan.after[rank]
                    if chunk.tensor == "c"
                    for element in points(chunk)
                }
                if "exchange" in plan.name:
                    wanted = {key: (3, (maker(plan, key[1]),)) for key in wanted}
                assert {key: (n, tuple(sorted(ranks))) for key, (n, ranks) in found.items()} == wanted


def points(chunk):
    return [(i, j) for i in range(chunk.box.lo[0], chunk.box.hi[0]) for j in range(chunk.box.lo[1], chunk.box.hi[1])]


def maker(plan, element):
    return next(rank for rank, (chunk,) in enumerate(plan.before) if element in points(chunk))


@named
def test_no_step_can_be_left_out(plan):
    steps = all_steps(plan)
    for rank in range(plan.world):
        for i, step in enumerate(steps[rank]):
            broken = list(steps)
            broken[rank] = steps[rank][:i] + steps[rank][i + 1 :]
            with pytest.raises(ScheduleError):
                verify_steps(broken, plan, ("c",))
            if isinstance(step, Sum):
                for gone in range(len(step.pieces)):
                    less = dataclasses.replace(step, pieces=step.pieces[:gone] + step.pieces[gone + 1 :])
                    broken[rank] = (*steps[rank][:i], less, *steps[rank][i + 1 :])
                    with pytest.raises(ScheduleError):
                        verify_steps(broken, plan, ("c",))


EXHAUSTIVE = {
    "scatter": reduce_scatter((4, 1), 0, 2),
    "one shot": one_shot((2, 1), 2),
    "two shot": two_shot((2, 1), 0, 2),
    "two shot, one lane": two_shot((2, 1), 0, 2, channels=1),
    "exchange": exchange((2, 4), 2),
    "gather and scatter": both(gather((2, 1), 0, 2), reduce_scatter((2, 1), 0, 2), channel=1),
}


@pytest.mark.parametrize("plan", EXHAUSTIVE.values(), ids=EXHAUSTIVE.keys())
def test_every_interleaving_of_2_ranks_and_3_launches_is_right(plan):
    assert outcomes(plan, all_steps(plan), produced=("c",)) == {"ok"}


def without(kind, steps, **fields):
    return tuple(s for s in steps if not (isinstance(s, kind) and all(getattr(s, k) == v for k, v in fields.items())))


def entry(steps, **changes):
    return tuple(dataclasses.replace(s, **changes) if isinstance(s, Entry) else s for s in steps)


def moved(steps, kind, to):
    """Steps of a kind put ahead of the first step of another kind."""
    rest = [step for step in steps if not isinstance(step, kind)]
    at = next(i for i, step in enumerate(rest) if isinstance(step, to))
    return (*rest[:at], *(step for step in steps if isinstance(step, kind)), *rest[at:])


def raised_before_its_copy(steps):
    steps = list(steps)
    for i, step in enumerate(steps):
        if isinstance(step, Raise):
            steps[i - 1], steps[i] = steps[i], steps[i - 1]
    return tuple(steps)


def credit_ahead_of_the_last_sum(steps):
    last = max(i for i, step in enumerate(steps) if isinstance(step, Sum))
    credits = [step for step in steps if isinstance(step, Credit)]
    return (*steps[:last], *credits, *without(Credit, steps[last:]))


def credits_ahead_of_every_join(steps):
    return (*without(Join, steps), *(step for step in steps if isinstance(step, Join)))


SCATTER, TWO_SHOT = EXHAUSTIVE["scatter"], EXHAUSTIVE["two shot"]
BREAKS = {
    "no hold": (SCATTER, lambda s: without(Hold, s), {"stale"}),
    "no raise": (SCATTER, lambda s: without(Raise, s), {"stuck"}),
    "raise ahead of its copy": (SCATTER, raised_before_its_copy, {"stale"}),
    "no wait for done": (SCATTER, lambda s: entry(s, wait_done=False), {"stale"}),
    "no credit": (SCATTER, lambda s: without(Credit, s), {"stuck"}),
    "credit ahead of the sum": (SCATTER, credit_ahead_of_the_last_sum, {"stale"}),
    "counters not reset": (SCATTER, lambda s: entry(s, counters=False), {"stale"}),
    "no fork": (SCATTER, lambda s: without(Fork, s), {"stale"}),
    "sums ahead of the kernels": (SCATTER, lambda s: moved(s, Sum, Kernel), {"stuck"}),
    "one sum ahead of its kernel": (SCATTER, lambda s: moved(s, Sum, Kernel), {"stale"}, (1,)),
    "sum on without a fork behind it": (
        TWO_SHOT,
        lambda s: (s[0], Fork(1), *without(Fork, s[1:], lane=1)),
        {"stale"},
    ),
    "one shot, credit ahead of the sum": (EXHAUSTIVE["one shot"], credit_ahead_of_the_last_sum, {"stale"}),
    "two shot, counters not reset": (TWO_SHOT, lambda s: entry(s, counters=False), {"stale"}),
    "two shot, no hold": (TWO_SHOT, lambda s: without(Hold, s), {"stale"}),
}


@pytest.mark.parametrize("case", BREAKS.values(), ids=BREAKS.keys())
def test_what_is_dropped_goes_wrong_in_some_interleaving(case):
    plan, change, expected, *ranks = case
    changed = ranks[0] if ranks else range(plan.world)
    steps = [change(own) if rank in changed else own for rank, own in enumerate(all_steps(plan))]
    assert outcomes(plan, steps, produced=("c",), until=expected) >= expected
    with pytest.raises(ScheduleError):
        verify_steps(steps, plan, ("c",))


@pytest.mark.parametrize(
    "plan, change, message",
    [
        (SCATTER, lambda s: without(Hold, s), "lane 0 copies rank 1 operation 0 without being held"),
        (SCATTER, lambda s: moved(s, Hold, Kernel), "is held for rank 1 operation 0 ahead of the kernel"),
        (SCATTER, lambda s: (*s[:3], Hold(0, (0, 0)), *s[3:]), "held for rank 0 operation 0, which sends nothing"),
        (SCATTER, lambda s: entry(s, counters=False), "the entry does not reset counters, and tiles of the rank make"),
        (SCATTER, lambda s: moved(s, Sum, Kernel), "a sum of c ahead of the kernel"),
        (SCATTER, lambda s: (*s, *(x for x in s if isinstance(x, Sum))), r"adds up c\[2:4, 0:1\] twice"),
        (SCATTER, lambda s: (*without(Sum, s), s[-3]), "the credit to rank 0 does not follow the kernel and the sums"),
        (SCATTER, lambda s: without(Sum, s), r"no sum adds up c\[2:4, 0:1\]"),
        (SCATTER, lambda s: sums(s, summands=((0, 0),)), "otherwise than the plan says"),
        (SCATTER, lambda s: sums(s, summands=(None, (0, 0))), "otherwise than the plan says"),
        (SCATTER, lambda s: sums(s, accumulate="fp16"), "otherwise than the plan says"),
        (SCATTER, credit_ahead_of_the_last_sum, "does not follow the last copy|the kernel and the sums"),
        (
            EXHAUSTIVE["gather and scatter"],
            credits_ahead_of_every_join,
            "the credit to rank 0 does not follow the last copy",
        ),
        (
            TWO_SHOT,
            lambda s: (s[0], Fork(1), Await(1, (0, 0), 1), *without(Fork, s[1:], lane=1)),
            "without a fork behind the sum of c",
        ),
        (TWO_SHOT, lambda s: (s[0], Fork(0), *s[1:]), "lane 0 is forked twice"),
        (TWO_SHOT, lambda s: (*s, Fork(1)), "lane 1 is forked twice, or behind its join"),
    ],
)
def test_steps_out_of_place_are_refused(plan, change, message):
    steps = all_steps(plan)
    steps[1] = change(steps[1])
    with pytest.raises(ScheduleError, match=message):
        verify_steps(steps, plan, ("c",))


def sums(steps, **changes):
    return tuple(
        dataclasses.replace(s, pieces=tuple(dataclasses.replace(p, **changes) for p in s.pieces))
        if isinstance(s, Sum)
        else s
        for s in steps
    )


def test_a_sum_enqueued_ahead_of_what_others_wait_for_is_a_deadlock_where_hosts_wait():
    """Each rank sums before it enqueues its own push: fine on streams, for ever where the host waits for the sum."""
    plan = reduce_scatter((4, 1), 0, 2)
    steps = []
    for own in all_steps(plan):
        copies = [step for step in own if isinstance(step, Hold | Copy | Raise)]
        rest = [step for step in own if step not in copies]
        at = next(i for i, step in enumerate(rest) if isinstance(step, Sum)) + 1
        steps.append((*rest[:at], *copies, *rest[at:]))
    verify_steps(steps, plan, ("c",))
    with pytest.raises(ScheduleError, match="where hosts wait for kernels: .*Sum.* waits for .*Raise"):
        verify_steps(steps, plan, ("c",), blocking=True)


def test_stages_put_what_sums_wait_for_ahead_of_them():
    """Rank 0 lists a push that others wait for behind one that sends a sum: it is enqueued ahead all the same."""
    plan = two_shot((4, 1), 0, 2, channels=2)
    late = []
    for rank, own in enumerate(plan.ops):
        late.append((dataclasses.replace(own[1], depends=((1 - rank, 1),)), own[0]))
    plan = dataclasses.replace(plan, ops=tuple(late))
    steps = all_steps(plan)
    assert [step.op for step in steps[0] if isinstance(step, Copy)] == [(0, 1), (0, 0)]
    verify_steps(steps, plan, ("c",), blocking=True)
    assert outcomes(plan, steps, produced=("c",)) == {"ok"}


def test_a_partial_that_leaves_behind_a_sum_in_a_lane_of_its_own():
    """Rank 0 sends its partial of the other half again, in channel 2, when it has sent a sum in channel 1."""
    plan = two_shot((4, 1), 0, 2)
    again = dataclasses.replace(plan.ops[0][0], depends=((0, 1),), channel=2, reduce=None)
    plan = dataclasses.replace(plan, ops=((*plan.ops[0], again), plan.ops[1]))
    steps = all_steps(plan)
    assert [step for step in steps[0] if getattr(step, "lane", None) == 2] == [
        Fork(2), Await(2, (0, 1), 1), Hold(2, (0, 2)), Copy(2, (0, 2)), Raise(2, (0, 2)), Join(2),
    ]  # fmt: skip
    verify_steps(steps, plan, ("c",), blocking=True)
    assert outcomes(plan, steps, produced=("c",)) == {"ok"}


A, B = (rank[0] for rank in pieces((4, 2), 0, 2, 1))
C, D = (rank[0] for rank in pieces((4, 2), 0, 2, 1, "c"))


@pytest.mark.parametrize(
    "ops, error, message, help",
    [
        ([P2P("pull", 1, 0, C, C)], UnsupportedError, "made by tiles", "use push"),
        ([P2P("push", 0, 1, A, A, reduce=SUM)], UnsupportedError, r"cannot reduce \(sum\)", "that the kernel writes"),
        ([P2P("push", 0, 1, A, A), P2P("push", 0, 1, D, D)], UnsupportedError, "one of the two feeds", "channels"),
        (
            [P2P("push", 0, 1, D, D), P2P("push", 0, 1, A, A, ((0, 0),), channel=1)],
            UnsupportedError,
            "feeds the kernel and depends on rank 0 operation 0 .*, which the kernel feeds",
            "two plans",
        ),
        ([P2P("push", 1, 0, D, D)], PlanError, "in the list of rank 0, not of rank 1", "push in that of its source"),
    ],
)
def test_what_one_launch_cannot_do_is_refused_on_every_rank(ops, error, message, help):
    plan = both(gather((4, 2), 0, 2), reduced("c", 2, (4, 2), [()] * 2, [[], []]))
    plan = dataclasses.replace(plan, ops=(tuple(ops), ()))
    for rank in range(2):
        with pytest.raises(error, match=message) as raised:
            launch_steps(plan, rank, produced=("c",))
        assert help in raised.value.help


def test_a_part_of_a_sum_leaves_while_the_next_is_added():
    """The sums that are sent on stand one by one, each with the fork that lets its copies start."""
    steps = launch_steps(two_shot((12, 1), 0, 3, split=2), 0, produced=["c"])
    behind = steps[next(i for i, s in enumerate(steps) if isinstance(s, Kernel)) :]
    order = [type(s).__name__ for s in behind if isinstance(s, Sum | Fork) or isinstance(s, Copy) and s.lane == 1]
    assert order[:6] == ["Sum", "Fork", "Copy", "Sum", "Fork", "Copy"] and order[-1] == "Sum"
