"""Of `verify_steps`: what is copied out of the caller's tensor, and what stands beside the staging of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import CommPlan
from overlap.errors import ScheduleError

from .givens import reads_held, sent_as_given
from .steps import Copy, Fork, Kernel, Stage, Step


def check_given(steps: Sequence[Step], plan: CommPlan, rank: int, produced: Collection[str]) -> None:
    """What is copied out of the caller's tensor may be, and whatever reads what is staged stands behind that."""
    allowed = sent_as_given(plan, rank, produced)
    stages = [i for i, step in enumerate(steps) if isinstance(step, Stage)]
    kernel = next(i for i, step in enumerate(steps) if isinstance(step, Kernel))
    given = [step for step in steps if isinstance(step, Copy) and step.given]
    if bool(given) != bool(stages) or len(stages) > 1 or any(i > kernel for i in stages):
        raise ScheduleError(
            f"rank {rank}: {len(stages)} stages, {len(given)} copies out of the caller's tensor; such copies need one, ahead of "
            "the kernel, and others none"
        )
    forked: dict[int, int] = {}
    for i, step in enumerate(steps):
        if isinstance(step, Fork):
            forked[step.lane] = i
        elif isinstance(step, Copy) and step.given:
            if step.op not in allowed:
                raise ScheduleError(
                    f"rank {rank}: {name_op(plan, step.op)} is copied out of the caller's tensor, which does not hold "
                    "what it sends",
                    where=plan.where(step.op),
                )
        elif isinstance(step, Copy) and stages and forked.get(step.lane, -1) < stages[0]:
            if plan.op(step.op).src.tensor not in produced and reads_held(plan, step.op):
                raise ScheduleError(
                    f"rank {rank}: lane {step.lane} copies {name_op(plan, step.op)} beside the staging of what it sends",
                    where=plan.where(step.op),
                )
