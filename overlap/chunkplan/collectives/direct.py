"""``path="direct"``: the collective stays one operation, which a library such as torch.distributed carries out."""

from __future__ import annotations

from dataclasses import replace

from overlap.errors import UnsupportedError

from ..order import name_op
from ..plan import Chunk, Collective, CommOp, CommPlan
from .step import CollectiveStep


def direct_plan(step: CollectiveStep) -> CommPlan:
    """One `Collective` in the list of every rank of the group. It is not cut: ``split`` plays no part."""
    before, after = step.before(), step.after()
    reduction = step.reduction if step.reduces else None
    ops: list[tuple[CommOp, ...]] = [() for _ in range(step.world)]
    for rank in step.group:
        ops[rank] = (Collective(step.kind, step.group, before[rank][0], after[rank][0], reduce=reduction),)
    return CommPlan(f"{step.kind}_direct", step.world, (step.spec,), before, after, tuple(ops))


def check_direct(plan: CommPlan) -> None:
    """Refuses what no library does.

    Raises:
        UnsupportedError: copies beside collectives, or a reduction other than a sum.
    """
    for op_id, op in plan.items():
        if not isinstance(op, Collective):
            raise UnsupportedError(
                f"plan {plan.name} has collectives, and {name_op(plan, op_id)}, which is none",
                where=plan.where(op_id),
                help="let a plan move chunks or hand collectives to a library: use two plans, one behind the other",
            )
        if op.reduce is not None and op.reduce.op != "sum":
            raise UnsupportedError(
                f"plan {plan.name}, {name_op(plan, op_id)}: `reduce: {op.reduce}` is not handed to a library",
                where=plan.where(op_id),
                help="there is sum",
            )


def _meet(one: Chunk, other: Chunk) -> bool:
    return one.tensor == other.tensor and one.box.overlaps(other.box)


def handed_over(plan: CommPlan) -> bool:
    """Whether a plan has collectives and nothing else, so that a library carries it out."""
    ops = [op for _, op in plan.items()]
    return bool(ops) and all(isinstance(op, Collective) for op in ops)


def settled(plan: CommPlan, *, produced: bool) -> CommPlan:
    """A plan as a kernel's launch sees it whose collectives a library carries out ahead of the kernel, or behind it.

    What the kernel reads is there; of what it makes (``produced``) nothing is waited for, and the launch ends with nothing.

    Raises:
        UnsupportedError: as `check_direct`, or one comes behind another.
    """
    if not handed_over(plan):
        return plan
    check_direct(plan)
    for rank, own in enumerate(plan.ops):
        for index, op in enumerate(own):
            fed = [i for i, other in enumerate(own[:index]) if _meet(other.dst, op.src)]
            if op.depends or fed:
                raise UnsupportedError(
                    f"plan {plan.name}, {name_op(plan, (rank, index))} comes behind another collective",
                    where=plan.where((rank, index)),
                    help="a launch hands over collectives that do not wait for each other",
                )
    nothing: tuple[tuple[CommOp, ...], ...] = ((),) * plan.world
    if produced:
        return replace(plan, after=((),) * plan.world, ops=nothing, spans=())
    return replace(plan, before=plan.after, ops=nothing, spans=())
