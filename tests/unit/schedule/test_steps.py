"""Launch steps: what they are for each kind of plan, that they are right, and that no step can be left out."""

from __future__ import annotations

import dataclasses

import pytest

from overlap.chunkplan.plan import P2P, Collective, CommPlan
from overlap.errors import PlanError, ScheduleError, UnsupportedError
from overlap.schedule.givens import ahead_of_staging, needs_no_stage, sent_as_given
from overlap.schedule.steps import Await, Copy, Credit, Entry, Fork, Join, Kernel, Raise, Stage, launch_steps
from overlap.schedule.verify_steps import verify_steps

from .plans import finish, gather, pieces, ring
from .protocol_model import outcome


def mixed(world: int = 3) -> CommPlan:
    """Pushes, pulls and a relay in one plan: 0 pushes to 1, 2 pulls that from 1; 1 and 2 exchange; 0 pulls from 1."""
    parts = pieces((6, 2), 0, world, 1)
    a, b, c = (rank[0] for rank in parts)
    ops = [
        [P2P("push", 0, 1, a, a), P2P("pull", 1, 0, b, b, channel=1), P2P("pull", 1, 0, c, c, ((2, 1),), channel=1)],
        [P2P("pull", 2, 1, c, c, ((2, 0),))],
        [P2P("pull", 1, 2, b, b), P2P("push", 2, 1, c, c), P2P("pull", 1, 2, a, a, ((0, 0),), channel=1)],
    ]
    # Rank 2 brings c to rank 1 once, by its push.
    ops[1] = []
    return finish("mixed", world, (6, 2), parts, ops)


def plans() -> list[CommPlan]:
    found = []
    for world in (1, 2, 3, 4):
        for direction in ("pull", "push"):
            for split, channels in ((1, 1), (2, 1), (3, 2)):
                for make in (gather, ring):
                    plan = make((7, 2), 0, world, split=split, direction=direction, channels=channels)
                    found.append(dataclasses.replace(plan, name=f"{plan.name}-{direction}-{world}-{split}-{channels}"))
    return [*found, mixed()]


PLANS = {plan.name: plan for plan in plans()}
named = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())


def all_steps(plan: CommPlan, **how) -> list[tuple]:
    return [launch_steps(plan, rank, **how) for rank in range(plan.world)]


def given_steps(plan: CommPlan, **how) -> list[tuple]:
    """Steps with all that may be copied out of the callers' tensors copied so."""
    return [launch_steps(plan, rank, given=sent_as_given(plan, rank), **how) for rank in range(plan.world)]


def test_pull():
    plan = gather((6, 2), 0, 3)
    assert launch_steps(plan, 1) == (
        Entry(wait_done=True, ready=True),
        Fork(0),
        Copy(0, (1, 0)),
        Raise(0, (1, 0)),
        Copy(0, (1, 1)),
        Raise(0, (1, 1)),
        Kernel(),
        Credit(2, 0),
        Credit(0, 0),
        Join(0),
    )


def test_push():
    plan = gather((6, 2), 0, 3, direction="push")
    assert launch_steps(plan, 1) == (
        Entry(wait_done=True, ready=False),
        Fork(0),
        Copy(0, (1, 0)),
        Raise(0, (1, 0)),
        Copy(0, (1, 1)),
        Raise(0, (1, 1)),
        Kernel(),
        Join(0),
        Credit(2, None),
        Credit(0, None),
    )


def test_push_out_of_the_callers_tensor():
    plan = gather((6, 2), 0, 3, direction="push")
    assert given_steps(plan)[1] == (
        Entry(wait_done=True, ready=False),
        Fork(0),
        Copy(0, (1, 0), given=True),
        Raise(0, (1, 0)),
        Copy(0, (1, 1), given=True),
        Raise(0, (1, 1)),
        Stage(),
        Kernel(),
        Join(0),
        Credit(2, None),
        Credit(0, None),
    )


def in_place_steps(plan: CommPlan) -> list[tuple]:
    """As `given_steps`, of kernels that read what ranks hold in the caller's tensor, too."""
    return given_steps(plan, in_place=True)


def test_read_where_the_caller_has_it():
    plan = gather((6, 2), 0, 3, direction="push")
    staged = given_steps(plan)[1]
    assert in_place_steps(plan)[1] == tuple(
        Kernel(given=tuple(plan.before[1])) if isinstance(step, Kernel) else step for step in staged if step != Stage()
    )
    assert launch_steps(gather((6, 2), 0, 1), 0, in_place=True) == (
        Entry(wait_done=False, ready=False),
        Kernel(given=tuple(gather((6, 2), 0, 1).before[0])),
    )
    nothing = gather((1, 2), 0, 2, direction="push")
    assert launch_steps(nothing, 1, in_place=True) == launch_steps(nothing, 1), "it holds nothing"


def test_what_somebody_reads_staged_is_not_left_unstaged():
    """Peers that pull; a part that is not given; one that is, on a lane that waits for the staging of another."""
    pushed, parts = gather((6, 2), 0, 3, direction="push"), gather((8, 2), 0, 2, split=2, direction="push")
    assert needs_no_stage(pushed, 1, (0, 1), sent_as_given(pushed, 1))
    pulled = gather((6, 2), 0, 3)
    for plan, rank, given in ((pulled, 1, ()), (pushed, 1, {(1, 0)}), (parts, 0, {(0, 1)})):
        assert not needs_no_stage(plan, rank, range(len(plan.ops[rank])), given)
        with pytest.raises(ScheduleError, match="reads what it holds staged"):
            launch_steps(plan, rank, given=given, in_place=True)


def test_of_a_ring_the_first_hop_is_the_callers():
    steps = given_steps(ring((8, 2), 0, 4, direction="push"))[1]
    assert [step.given for step in steps if isinstance(step, Copy)] == [True, False, False]
    assert steps.index(Stage()) == steps.index(Kernel()) - 1


def test_lanes_that_read_what_is_staged_are_forked_behind_it():
    """Of two parts one is not given: its lane, and only that, waits."""
    plan = gather((8, 2), 0, 2, split=2, direction="push", channels=2)
    steps = launch_steps(plan, 0, given={(0, 1)})
    assert steps == (
        Entry(True, False),
        Fork(1),
        Copy(1, (0, 1), given=True),
        Raise(1, (0, 1)),
        Stage(),
        Fork(0),
        Copy(0, (0, 0)),
        Raise(0, (0, 0)),
        Kernel(),
        Join(0),
        Join(1),
        Credit(1, None),
    )
    verify_steps([steps, launch_steps(plan, 1)], plan)
    one_lane = gather((8, 2), 0, 2, split=2, direction="push")
    assert launch_steps(one_lane, 0, given={(0, 1)}) == launch_steps(one_lane, 0), "its lane has the other part as well"


def test_a_lane_that_waits_for_others_is_not_put_ahead_of_them():
    """A host that waits for kernels would wait for a lane that it has not come to."""
    parts = pieces((8, 2), 0, 2, 2)
    (a, b), c = parts[0], parts[1]
    ops = [
        [P2P("push", 0, 1, a, a), P2P("push", 0, 1, b, b, ((0, 0),), channel=1)],
        [P2P("push", 1, 0, chunk, chunk) for chunk in c],
    ]
    plan = finish("behind", 2, (8, 2), parts, ops)
    both, other = frozenset({(0, 0), (0, 1)}), frozenset({(0, 1)})
    assert ahead_of_staging(plan, 0, (0, 1), both) == {0, 1}
    assert ahead_of_staging(plan, 0, (0, 1), other) == frozenset()
    for given in (both, other):
        verify_steps([launch_steps(plan, 0, given=given), launch_steps(plan, 1)], plan, blocking=True)


def test_what_may_be_copied_out_of_the_callers_tensor():
    plan = gather((3, 2), 0, 2, direction="push")
    assert [sent_as_given(plan, rank) for rank in range(2)] == [{(0, 0)}, {(1, 0)}]
    assert not sent_as_given(gather((1, 2), 0, 2, direction="push"), 1), "nothing is sent"
    assert not sent_as_given(plan, 0, produced=["a"])
    assert not any(sent_as_given(mixed(), rank) for rank in range(3)), "with pulls peers wait until all is staged"
    assert sent_as_given(ring((8, 2), 0, 4, direction="push"), 1) == {(1, 0)}
    back = [P2P("push", 1, 0, A, A, ((0, 0),))]
    returned = finish("returned", 2, (4, 2), [[A], [B]], [[P2P("push", 0, 1, A, A)], back])
    assert not sent_as_given(returned, 0), "what lands there may replace it"


def test_kernel_first():
    steps = launch_steps(gather((6, 2), 0, 3), 1, kernel_first=True)
    assert steps[:3] == (Entry(True, True), Fork(0), Kernel())


@pytest.mark.parametrize("direction, at", [("pull", 0), ("push", 1)])
def test_ring_awaits_the_hop_before_where_it_landed(direction, at):
    """Rank 1's second hop forwards what landed at rank 0 (it pulls from there) or at itself (it pushes on)."""
    steps = launch_steps(ring((8, 2), 0, 4, direction=direction), 1)
    assert [step for step in steps if isinstance(step, Await)] == [Await(0, (0, 0), at), Await(0, (0, 1), at)]


def test_a_dependency_on_the_same_lane_needs_no_await_and_another_lane_does():
    """What was pulled in channel 0 is forwarded in channels 0 and 1."""
    parts = pieces((6, 2), 0, 3, 1)
    chunk = parts[1][0]
    ops = [
        [P2P("pull", 1, 0, chunk, chunk), P2P("push", 0, 2, chunk, chunk, ((0, 0),), channel=0)],
        [],
        [],
    ]
    plan = finish("forward", 3, (6, 2), parts, ops)
    assert not any(isinstance(step, Await) for step in launch_steps(plan, 0))
    ops[0][1] = dataclasses.replace(ops[0][1], channel=1)
    plan = finish("forward", 3, (6, 2), parts, ops)
    assert [s for s in launch_steps(plan, 0) if isinstance(s, Await)] == [Await(1, (0, 0), 0)]


def test_one_await_for_what_several_copies_of_a_lane_depend_on():
    parts = pieces((6, 2), 0, 3, 1)
    chunk = parts[1][0]
    ops = [
        [P2P("push", 0, 2, chunk, chunk, ((1, 0),)), P2P("push", 0, 2, chunk, chunk, ((1, 0),))],
        [P2P("push", 1, 0, chunk, chunk)],
        [],
    ]
    plan = finish("twice", 3, (6, 2), parts, ops)
    assert [type(s) for s in launch_steps(plan, 0)].count(Await) == 1


def test_world_1_only_stages():
    assert launch_steps(gather((6, 2), 0, 1), 0) == (Entry(wait_done=False, ready=False), Kernel())


def test_a_rank_without_operations_still_gives_credits():
    """Rank 1 of `mixed` only receives: its peers must hear when its kernel has read."""
    assert launch_steps(mixed(), 1) == (Entry(True, True), Kernel(), Credit(2, None), Credit(0, None))


def test_several_lanes_give_credits_behind_all_joins():
    steps = launch_steps(gather((8, 2), 0, 2, split=2, channels=2), 0)
    assert steps[-3:] == (Join(0), Join(1), Credit(1, None))


@named
def test_steps_are_verified(plan):
    verify_steps(all_steps(plan), plan)
    verify_steps(all_steps(plan, kernel_first=True), plan)
    verify_steps(given_steps(plan), plan, blocking=True)
    verify_steps(given_steps(plan, kernel_first=True), plan)


@named
def test_no_interleaving_reads_stale_data(plan):
    ways = [all_steps(plan), all_steps(plan, kernel_first=True)]
    pushed = all(needs_no_stage(plan, r, range(len(plan.ops[r])), sent_as_given(plan, r)) for r in range(plan.world))
    ways += [given_steps(plan)] if any(sent_as_given(plan, r) for r in range(plan.world)) else []
    for steps in [*ways, *([in_place_steps(plan)] if pushed else ())]:
        for idle in ((), (0,), (plan.world - 1, 1), range(plan.world)):
            for seed in range(3):
                assert outcome(plan, steps, seed, idle=idle) == "ok"


@named
def test_no_step_can_be_left_out(plan):
    """Each step of each rank, left out alone, is refused (a lane without steps of its own is never forked)."""
    for steps in (all_steps(plan), given_steps(plan)):
        for rank in range(plan.world):
            for i in range(len(steps[rank])):
                broken = list(steps)
                broken[rank] = steps[rank][:i] + steps[rank][i + 1 :]
                with pytest.raises(ScheduleError):
                    verify_steps(broken, plan)


def without(kind, steps, **fields):
    return tuple(s for s in steps if not (isinstance(s, kind) and all(getattr(s, k) == v for k, v in fields.items())))


def no_ready(steps):
    return tuple(dataclasses.replace(s, ready=False) if isinstance(s, Entry) else s for s in steps)


def no_wait_done(steps):
    return tuple(dataclasses.replace(s, wait_done=False) if isinstance(s, Entry) else s for s in steps)


BREAKS = {
    "pull without ready": (gather((6, 2), 0, 3), no_ready, {"stale"}),
    "pull without waiting for done": (gather((6, 2), 0, 3), no_wait_done, {"stale"}),
    "pull without join": (gather((6, 2), 0, 3), lambda s: without(Join, s), {"stale"}),
    "pull without a copy": (gather((6, 2), 0, 3), lambda s: without(Copy, s, op=(1, 0)), {"stale"}),
    "pull without a raise": (gather((6, 2), 0, 3), lambda s: without(Raise, s, op=(1, 0)), {"stuck"}),
    "pull without a credit": (gather((6, 2), 0, 3), lambda s: without(Credit, s, peer=2), {"stuck"}),
    "pull without fork": (gather((6, 2), 0, 3), lambda s: without(Fork, s), {"stale"}),
    "push without waiting for done": (gather((6, 2), 0, 3, direction="push"), no_wait_done, {"stale"}),
    "push without join": (gather((6, 2), 0, 3, direction="push"), lambda s: without(Join, s), {"stale"}, (1,)),
    "push with credits before the kernel": (
        gather((6, 2), 0, 3, direction="push"),
        lambda s: (*without(Kernel, s), Kernel()),
        {"stale"},
    ),
    "push with credits on the lane": (
        gather((6, 2), 0, 3, direction="push"),
        lambda s: (*without(Credit, s)[:-1], *(dataclasses.replace(c, lane=0) for c in s[-2:]), Join(0)),
        {"stale"},
    ),
    "ring pull without await": (ring((6, 2), 0, 3), lambda s: without(Await, s), {"stale"}),
    "ring push without await": (ring((6, 2), 0, 3, direction="push"), lambda s: without(Await, s), {"stale"}),
    "mixed without ready": (mixed(), no_ready, {"stale"}),
    "mixed without join": (mixed(), lambda s: without(Join, s), {"stale"}, (0, 1, 2)),
    "mixed without await": (mixed(), lambda s: without(Await, s), {"stale"}),
    "two lanes, credits behind the first join": (
        gather((8, 2), 0, 2, split=2, channels=2),
        lambda s: (*without(Credit, without(Join, s)), Join(0), *(c for c in s if isinstance(c, Credit)), Join(1)),
        {"stale"},
        (0,),
    ),
}


@pytest.mark.parametrize("case", BREAKS.values(), ids=BREAKS.keys())
def test_the_model_and_the_verifier_see_what_breaks(case):
    """The model shows that the verifier refuses for a reason: some interleaving goes wrong."""
    plan, broken, expected, *idle = case
    steps = [broken(own) for own in all_steps(plan)]
    seen = {outcome(plan, steps, seed, idle=idle[0] if idle else ()) for seed in range(150)}
    assert expected <= seen
    with pytest.raises(ScheduleError):
        verify_steps(steps, plan)


PUSHED = gather((6, 2), 0, 3, direction="push")


def behind(kind, steps, other):
    """The step of a kind moved right behind that of another."""
    left = without(kind, steps)
    at = next(i for i, step in enumerate(left) if isinstance(step, other)) + 1
    return (*left[:at], *(step for step in steps if isinstance(step, kind)), *left[at:])


GIVEN_BREAKS = {
    "no join: the caller's next data": (lambda s: without(Join, s), "never joined", (0, 1, 2)),
    "staged copies beside the staging": (
        lambda s: tuple(dataclasses.replace(x, given=False) if isinstance(x, Copy) and x.op[1] else x for x in s),
        "beside the staging",
    ),
    "staged behind the kernel": (lambda s: behind(Stage, s, Kernel), "ahead of the kernel"),
    "nobody waits for credits": (no_wait_done, "done credits"),
    "forked ahead of the entry": (lambda s: (s[1], s[0], *s[2:]), "one entry"),
}


@pytest.mark.parametrize("case", GIVEN_BREAKS.values(), ids=GIVEN_BREAKS.keys())
def test_what_breaks_copies_out_of_the_callers_tensor(case):
    broken, message, *idle = case
    steps = [broken(own) for own in given_steps(PUSHED)]
    assert "stale" in {outcome(PUSHED, steps, seed, idle=idle[0] if idle else ()) for seed in range(150)}
    with pytest.raises(ScheduleError, match=message):
        verify_steps(steps, PUSHED)


IN_PLACE_BREAKS = {
    "no join: the caller's next data": (lambda s: without(Join, s), "never joined", (0, 1, 2)),
    "a kernel that reads what is not staged": (
        lambda s: tuple(Kernel() if isinstance(x, Kernel) else x for x in s),
        "need one, ahead of",
    ),
    "a copy of what is not staged": (
        lambda s: tuple(dataclasses.replace(x, given=False) if isinstance(x, Copy) and x.op[1] else x for x in s),
        "reads what is not staged",
    ),
    "nobody waits for credits": (no_wait_done, "done credits"),
}


@pytest.mark.parametrize("case", IN_PLACE_BREAKS.values(), ids=IN_PLACE_BREAKS.keys())
def test_what_breaks_reads_of_the_callers_tensor(case):
    broken, message, *idle = case
    steps = [broken(own) for own in in_place_steps(PUSHED)]
    assert "stale" in {outcome(PUSHED, steps, seed, idle=idle[0] if idle else ()) for seed in range(150)}
    with pytest.raises(ScheduleError, match=message):
        verify_steps(steps, PUSHED)


def test_a_kernel_reads_all_or_nothing_of_what_is_held_where_the_caller_has_it():
    """Beside a stage, or of another's chunk."""
    other = tuple(PUSHED.before[2])
    for change in (
        lambda own: (*own[:-4], Stage(), *own[-4:]),
        lambda own: tuple(Kernel(given=other) if isinstance(step, Kernel) else step for step in own),
    ):
        steps = in_place_steps(PUSHED)
        steps[1] = change(steps[1])
        with pytest.raises(ScheduleError, match="all of it, and no stage"):
            verify_steps(steps, PUSHED)


def test_a_copy_out_of_the_callers_tensor_of_what_it_does_not_hold_is_refused():
    plan = ring((8, 2), 0, 4, direction="push")
    steps = given_steps(plan)
    steps[1] = tuple(dataclasses.replace(s, given=True) if isinstance(s, Copy) else s for s in steps[1])
    with pytest.raises(ScheduleError, match="does not hold what it sends"):
        verify_steps(steps, plan)


def swapped(steps, a, b):
    steps = list(steps)
    i, j = steps.index(a), steps.index(b)
    steps[i], steps[j] = steps[j], steps[i]
    return tuple(steps)


@pytest.mark.parametrize(
    "plan, change, message",
    [
        (gather((6, 2), 0, 3), lambda s: (*s[:2], *s[4:6], *s[2:4], *s[6:]), "behind rank 1 operation 1"),
        (gather((6, 2), 0, 3), lambda s: swapped(s, Copy(0, (1, 0)), Raise(0, (1, 0))), "without its copy before it"),
        (gather((6, 2), 0, 3), lambda s: swapped(s, Copy(0, (1, 0)), Fork(0)), "before its fork"),
        (gather((6, 2), 0, 3), lambda s: swapped(s, Copy(0, (1, 0)), Join(0)), "lane 0 behind its join"),
        (gather((6, 2), 0, 3), lambda s: swapped(s, Fork(0), Entry(True, True)), "begins with its one entry"),
        (gather((6, 2), 0, 3), lambda s: (*s, Kernel()), "2 kernels"),
        (gather((6, 2), 0, 3), lambda s: (*s, Credit(0, None)), r"credits to ranks \[0, 0, 2\]"),
        (gather((6, 2), 0, 3), lambda s: (*s, Credit(1, None)), r"credits to ranks \[0, 1, 2\]"),
        (gather((6, 2), 0, 3), lambda s: (*s[:-1], Copy(0, (0, 0)), s[-1]), "which rank 0 copies once"),
        (gather((6, 2), 0, 3), lambda s: (*s[:-1], Raise(0, (1, 0)), s[-1]), "or twice"),
        (gather((6, 2), 0, 3), lambda s: (*s[:-1], Await(0, (1, 7), 1), s[-1]), "does not have"),
        (gather((6, 2), 0, 3), lambda s: (*s, Fork(0)), "forked twice"),
        (gather((6, 2), 0, 3), lambda s: (*s, Join(0)), "joined without a fork, or twice"),
        (ring((6, 2), 0, 3), lambda s: swapped(s, Await(0, (0, 0), 0), Copy(0, (1, 1))), "without awaiting"),
        (
            ring((6, 2), 0, 3),
            lambda s: tuple(dataclasses.replace(x, rank=2) if isinstance(x, Await) else x for x in s),
            r"awaits rank 0 operation 0 \(pull .*\) at rank 2",
        ),
    ],
)
def test_steps_out_of_place_are_refused(plan, change, message):
    steps = all_steps(plan)
    steps[1] = change(steps[1])
    with pytest.raises(ScheduleError, match=message):
        verify_steps(steps, plan)


def test_copies_enqueued_behind_the_kernel_that_waits_for_them_are_a_deadlock():
    """Forked behind the kernel, a lane waits for a kernel that waits for the lane."""
    plan = gather((6, 2), 0, 2)
    steps = [(s[0], Kernel(), *(x for x in s[1:] if not isinstance(x, Kernel))) for s in map(tuple, all_steps(plan))]
    with pytest.raises(ScheduleError, match="deadlock among launch steps: .*Kernel.* waits for .*Raise"):
        verify_steps(steps, plan)
    assert outcome(plan, steps, 0) == "stuck"


def test_a_lane_joined_before_the_lane_it_awaits_is_forked_is_a_deadlock():
    parts = pieces((6, 2), 0, 3, 1)
    b, c = parts[1][0], parts[2][0]
    ops = [[P2P("pull", 1, 0, b, b, ((0, 1),)), P2P("pull", 2, 0, c, c, channel=1)], [], []]
    plan = finish("crossed", 3, (6, 2), parts, ops)
    verify_steps(all_steps(plan), plan)
    steps = all_steps(plan)
    lanes = [[step for step in steps[0] if getattr(step, "lane", None) == lane] for lane in (0, 1)]
    rest = [step for step in steps[0] if not any(step in lane for lane in lanes)]
    steps[0] = (rest[0], *lanes[0], *lanes[1], *rest[1:])
    with pytest.raises(ScheduleError, match=r"deadlock among launch steps: .*\(Fork\) waits for .*\(Join\)"):
        verify_steps(steps, plan)
    assert outcome(plan, steps, 0) == "stuck"


def test_awaits_in_a_circle_are_a_deadlock_with_its_chain():
    parts = pieces((4, 2), 0, 2, 1)
    a, b = parts[0][0], parts[1][0]
    ops = [[P2P("push", 0, 1, a, a, ((1, 0),))], [P2P("push", 1, 0, b, b, ((0, 0),))]]
    plan = finish("circle", 2, (4, 2), parts, ops)
    chain = "Await of rank 1 operation 0.* waits for .*Await of rank 0 operation 0"
    with pytest.raises(ScheduleError, match=chain):
        verify_steps(all_steps(plan), plan)


def test_the_number_of_ranks_must_fit():
    plan = gather((6, 2), 0, 3)
    with pytest.raises(ScheduleError, match="2 ranks .* world 3"):
        verify_steps(all_steps(plan)[:2], plan)


A, B = (rank[0] for rank in pieces((4, 2), 0, 2, 1))


@pytest.mark.parametrize(
    "op, error, message",
    [
        (Collective("all_gather", (0, 1), A, A), UnsupportedError, "rank 1 operation 0 .* collective"),
        (P2P("push", 1, 0, B, B, reduce="sum"), UnsupportedError, r"cannot reduce \(sum\)"),
        (P2P("local", 1, 1, B, B), UnsupportedError, "copy inside a rank"),
        (P2P("pull", 1, 1, B, B), UnsupportedError, "copy inside a rank"),
        (P2P("pull", 1, 0, B, B), PlanError, "in the list of rank 1, not of rank 0"),
        (P2P("push", 0, 1, A, A), PlanError, "in the list of rank 1, not of rank 0"),
    ],
)
def test_what_a_copy_engine_cannot_do_is_refused_on_every_rank(op, error, message):
    """Also on the rank that does not carry the operation out: ranks must not differ."""
    plan = finish("odd", 2, (4, 2), [[A], [B]], [[], [op]])
    for rank in range(2):
        with pytest.raises(error, match=message):
            launch_steps(plan, rank)
