"""The verifier behind `transfer`: all ranks' steps of a plan without a kernel obey the protocol, checked without running."""

from __future__ import annotations

from collections.abc import Sequence

from overlap.chunkplan.plan import P2P, CommPlan
from overlap.chunkplan.verify import check_structure
from overlap.errors import ScheduleError

from .pieces import Values
from .steps import Await, Copy, Credit, Entry, Hold, Join, Kernel, Step, Sum
from .transfer import lanes_of, needs_ready, transfer_sums
from .verify_steps import check_copies, check_lanes, check_progress
from .verify_sums import Produced, check_sums


def verify_transfer(
    steps: Sequence[Sequence[Step]], plan: CommPlan, *, blocking: bool = False, values: Values | None = None
) -> None:
    """Checks the steps of all ranks, in rank order, for one launch of ``plan`` without a kernel.

    On each rank: one entry first, with the waits that the plan needs; lanes, copies and flags as `verify_steps.verify_steps`
    says; everything that is sent on, and everything the rank ends with, added up once and before it is needed; lanes that
    need a multiprocessor joined before results take them all; credits last. Across ranks: no cycle of waits.

    Args:
        blocking: also no cycle where each host waits for a kernel to end before it enqueues more.
        values: of this plan, where the caller has them already.

    Raises:
        ScheduleError: names the rank, the step and, for a deadlock, the chain.
        PlanError: the plan is malformed or cyclic.
    """
    check_structure(plan)
    if len(steps) != plan.world:
        raise ScheduleError(f"transfer steps of {len(steps)} ranks for plan {plan.name} of world {plan.world}")
    values = values or Values(plan)
    for rank, own in enumerate(steps):
        sums = transfer_sums(plan, rank, values).values()
        kept = {op: made for sent, _ in sums for ops, made in sent.items() for op in ops}
        result = tuple(piece for _, final in sums for piece in final)
        _check_entry(own, plan, rank)
        check_lanes(own, rank)
        check_copies(own, plan, rank, lanes_of(plan, rank, values))
        check_sums(own, rank, Produced({}, kept, result), kernel=False)
        _check_room(own, plan, rank)
        _check_credits(own, plan, rank)
    check_progress(steps, plan, (), blocking)


def _check_entry(steps: Sequence[Step], plan: CommPlan, rank: int) -> None:
    entries = [step for step in steps if isinstance(step, Entry)]
    if len(entries) != 1 or steps[0] is not entries[0]:
        raise ScheduleError(f"rank {rank}: a transfer begins with its one entry step, here are {len(entries)}")
    wanted = Entry(plan.world > 1, needs_ready(plan))
    if entries[0] != wanted:
        raise ScheduleError(f"rank {rank}: the transfer begins with {entries[0]}, and the plan needs {wanted}")
    for step in steps:
        if isinstance(step, Kernel | Hold):
            raise ScheduleError(f"rank {rank}: {step} in a transfer, which has no kernel")


def _check_room(steps: Sequence[Step], plan: CommPlan, rank: int) -> None:
    """No lane that needs a multiprocessor is open when results are added up."""
    busy: set[int] = set()
    for step in steps:
        if isinstance(step, Await):
            busy.add(step.lane)
        elif isinstance(step, Copy):
            op = plan.op(step.op)
            if isinstance(op, P2P) and op.src_rank == op.dst_rank:
                busy.add(step.lane)
        elif isinstance(step, Join):
            busy.discard(step.lane)
        elif isinstance(step, Sum) and busy and not any(piece.keep for piece in step.pieces):
            raise ScheduleError(
                f"rank {rank}: the result {step.tensor} is added up while lane {min(busy)} still needs a multiprocessor"
            )


def _check_credits(steps: Sequence[Step], plan: CommPlan, rank: int) -> None:
    given = [step.peer for step in steps if isinstance(step, Credit)]
    expected = sorted(set(range(plan.world)) - {rank})
    if sorted(given) != expected:
        raise ScheduleError(f"rank {rank}: credits to ranks {sorted(given)}, each of {expected} must get one")
    for step in steps[len(steps) - len(given) :]:
        if not isinstance(step, Credit) or step.lane is not None:
            raise ScheduleError(
                f"rank {rank}: {step} behind a credit, or a credit on a lane: peers may overwrite what is still read"
            )
