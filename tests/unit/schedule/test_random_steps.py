"""Launch steps of random plans: those of every plan that is right pass their verifier, and no step of them may go."""

from __future__ import annotations

import random

import pytest

from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.plan import CommPlan
from overlap.chunkplan.split import split_plan
from overlap.chunkplan.verify import verify_plan
from overlap.errors import PlanError, ScheduleError, UnsupportedError
from overlap.schedule.early import can_be_early, in_rounds
from overlap.schedule.givens import needs_no_stage, sent_as_given
from overlap.schedule.pieces import Piece, Values
from overlap.schedule.steps import Kernel, Step, Sum, launch_steps
from overlap.schedule.transfer import transfer_steps
from overlap.schedule.turned import pulled_sums, push_instead
from overlap.schedule.verify_steps import verify_steps
from overlap.schedule.verify_transfer import verify_transfer
from tests.support.random_plans import Case, cases

Steps = list[tuple[Step, ...]]


def sound(count: int, first: int = 0) -> list[Case]:
    """Plans that the plan verifier accepts, some of them broken harmlessly."""
    found = []
    for made in cases(count, first):
        try:
            verify_plan(made.plan)
        except PlanError:
            continue
        found.append(made)
    return found


def without_a_step(steps: Steps, dice: random.Random) -> tuple[Steps, Step]:
    rank = dice.choice([rank for rank, own in enumerate(steps) if own])
    at = dice.randrange(len(steps[rank]))
    own = steps[rank]
    return [*steps[:rank], (*own[:at], *own[at + 1 :]), *steps[rank + 1 :]], own[at]


@pytest.mark.parametrize("blocking", [False, True])
def test_transfers(blocking):
    dice = random.Random(7)
    for made in sound(150, first=1000 * blocking):
        plan = push_instead(made.plan, pulled_sums(made.plan, Values(made.plan)))
        verify_plan(plan)
        steps: Steps = [transfer_steps(plan, rank) for rank in range(plan.world)]
        verify_transfer(steps, plan, blocking=blocking)
        fewer, gone = without_a_step(steps, dice)
        with pytest.raises(ScheduleError):
            verify_transfer(fewer, plan, blocking=blocking)
            pytest.fail(f"seed {made.seed}: without {gone} nothing is said\n{dump_plan(made.plan)}")


def kernel_steps(plan: CommPlan) -> Steps | None:
    """The steps around a kernel that reads `a` and `b` and makes `c`; None where no kernel can."""
    made = [spec.name for spec in plan.tensors if spec.name == "c"]
    try:
        return [launch_steps(plan, rank, produced=made) for rank in range(plan.world)]
    except UnsupportedError:
        return None


def test_launches_of_kernels():
    dice = random.Random(8)
    tried = placed = read = 0
    for made in sound(300):
        steps = kernel_steps(made.plan)
        if steps is None:
            continue
        tried += 1
        made_by_tiles = [spec.name for spec in made.plan.tensors if spec.name == "c"]
        verify_steps(steps, made.plan, made_by_tiles)
        in_place = steps_in_place(made.plan, made_by_tiles)
        verify_steps(in_place, made.plan, made_by_tiles)
        kernels = [step for own in in_place for step in own if isinstance(step, Kernel)]
        placed += any(kernel.placed for kernel in kernels)
        read += any(kernel.given for kernel in kernels)
        if any(kernel.placed or kernel.given for kernel in kernels):
            steps = in_place
        fewer, gone = without_a_step(steps, dice)
        with pytest.raises(ScheduleError):
            verify_steps(fewer, made.plan, made_by_tiles)
            pytest.fail(f"seed {made.seed}: without {gone} nothing is said\n{dump_plan(made.plan)}")
    assert tried > 10 and placed > 3 and read > 3


def steps_in_place(plan: CommPlan, made: list[str]) -> Steps:
    """The steps of every rank, in place where that can be; where the kernel makes nothing of the plan, if its pushes allow it."""
    found: Steps = []
    for rank, own in enumerate(plan.ops):
        given = sent_as_given(plan, rank, made)
        possible = bool(made) or needs_no_stage(plan, rank, range(len(own)), given)
        given = given if possible and not made else frozenset()
        found.append(launch_steps(plan, rank, produced=made, in_place=possible, given=given))
    return found


def added(steps: tuple[Step, ...]) -> set[Piece]:
    return {piece for step in steps if isinstance(step, Sum) for piece in step.pieces}


def test_launches_with_sums_beside_the_kernel():
    """Of plans cut into parts: where sums can be early, their steps pass, add what late ones add, and none of them may go."""
    dice = random.Random(9)
    tried = 0
    for made in sound(1000, first=500):
        made_by_tiles = [spec.name for spec in made.plan.tensors if spec.name == "c"]
        plan = in_rounds(split_plan(made.plan, dice.choice((1, 2, 3))), made_by_tiles)
        if kernel_steps(plan) is None or not can_be_early(plan, made_by_tiles):
            continue
        tried += 1
        late: Steps = [launch_steps(plan, rank, produced=made_by_tiles) for rank in range(plan.world)]
        steps: Steps = [launch_steps(plan, rank, produced=made_by_tiles, early=True) for rank in range(plan.world)]
        assert list(map(added, steps)) == list(map(added, late))
        verify_steps(steps, plan, made_by_tiles)
        how = {"produced": made_by_tiles, "early": True, "in_place": True}
        verify_steps([launch_steps(plan, rank, **how) for rank in range(plan.world)], plan, made_by_tiles)
        try:
            verify_steps(late, plan, made_by_tiles, blocking=True)
        except ScheduleError:
            pass  # what feeds the kernel waits in a circle there
        else:
            verify_steps(steps, plan, made_by_tiles, blocking=True)
        fewer, gone = without_a_step(steps, dice)
        with pytest.raises(ScheduleError):
            verify_steps(fewer, plan, made_by_tiles)
            pytest.fail(f"seed {made.seed}: without {gone} nothing is said\n{dump_plan(plan)}")
    assert tried > 10
