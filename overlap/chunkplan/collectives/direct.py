"""``path="direct"``: the collective stays one operation, which a library such as torch.distributed carries out."""

from __future__ import annotations

from ..plan import Collective, CommOp, CommPlan
from .step import CollectiveStep


def direct_plan(step: CollectiveStep) -> CommPlan:
    """One `Collective` in the list of every rank of the group. It is not cut: ``split`` plays no part."""
    before, after = step.before(), step.after()
    reduction = step.reduction if step.reduces else None
    ops: list[tuple[CommOp, ...]] = [() for _ in range(step.world)]
    for rank in step.group:
        ops[rank] = (Collective(step.kind, step.group, before[rank][0], after[rank][0], reduce=reduction),)
    return CommPlan(f"{step.kind}_direct", step.world, (step.spec,), before, after, tuple(ops))
