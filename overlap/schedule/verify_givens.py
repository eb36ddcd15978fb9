"""Of `verify_steps`: what is copied out of the caller's tensor, and what stands beside the staging of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.errors import ScheduleError

from .givens import reads_held, sent_as_given
from .steps import Copy, Fork, Kernel, Stage, Step


def check_given(steps: Sequence[Step], plan: CommPlan, rank: int, produced: Collection[str]) -> None:
    """What is copied out of the caller's tensor may be, and whatever reads what is staged stands behind that."""
    allowed = sent_as_given(plan, rank, produced)
    stages = [i for i, step in enumerate(steps) if isinstance(step, Stage)]
    kernel, launched = next((i, step) for i, step in enumerate(steps) if isinstance(step, Kernel))
    given = [step for step in steps if isinstance(step, Copy) and step.given]
    if launched.given:
        _check_unstaged(plan, rank, launched, stages, {step.op for step in given}, produced)
    elif bool(given) != bool(stages) or len(stages) > 1 or any(i > kernel for i in stages):
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


def _check_unstaged(
    plan: CommPlan,
    rank: int,
    kernel: Kernel,
    stages: Collection[int],
    given: Collection[OpId],
    produced: Collection[str],
) -> None:
    """A kernel that reads what its caller holds there reads all of it there, and so does whoever sends any of it."""
    held = {chunk for chunk in plan.before[rank] if chunk.tensor not in produced and not chunk.box.empty}
    if stages or set(kernel.given) != held:
        raise ScheduleError(
            f"rank {rank}: the kernel reads {', '.join(map(str, kernel.given))} where its caller has that, of "
            f"{', '.join(sorted(map(str, held))) or 'nothing'}, beside {len(stages)} stages; it is all of it, and no stage"
        )
    for op_id, op in plan.items():
        if isinstance(op, P2P) and op.src_rank == rank and op_id not in given and reads_held(plan, op_id):
            raise ScheduleError(
                f"rank {rank}: {name_op(plan, op_id)} reads what is not staged: the kernel reads it where its caller has it",
                where=plan.where(op_id),
            )
