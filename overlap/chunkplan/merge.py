"""Several plans over different tensors as one, carried out in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from overlap.errors import PlanError, SourceSpan

from .plan import CommOp, CommPlan, OpId, TensorSpec


def merge_plans(plans: Sequence[CommPlan], *, name: str | None = None) -> CommPlan:
    """One plan that does what all ``plans`` do. A single plan is returned as it is.

    Each rank's list is the plans' lists one behind the other: dependencies and places move along, and every plan
    keeps its channels to itself, so that no plan waits for another one.

    Args:
        plans: one or more, for one world and with different tensors.
        name: of the merged plan; the plans' names joined by ``+`` where it is None.

    Raises:
        PlanError: no plan, different worlds, or a tensor of two plans.
    """
    if not plans:
        raise PlanError("no plan to merge", help="give one plan a communicated tensor")
    first = plans[0]
    if len(plans) == 1:
        return first
    tensors: dict[str, TensorSpec] = {}
    for plan in plans:
        if plan.world != first.world:
            raise PlanError(
                f"plan {first.name} is for a world of {first.world}, plan {plan.name} for one of {plan.world}",
                where=plan.where(),
                help="one launch has one world: build all its plans for that",
            )
        for spec in plan.tensors:
            if spec.name in tensors:
                raise PlanError(
                    f"plan {plan.name} moves tensor `{spec.name}`, which another plan of this launch moves already",
                    where=plan.where(),
                    help="give each communicated tensor one plan",
                )
            tensors[spec.name] = spec
    ranks = range(first.world)
    ops: list[list[CommOp]] = [[] for _ in ranks]
    spans: list[list[SourceSpan | None]] = [[] for _ in ranks]
    channels = 0
    for plan in plans:
        shift = [len(row) for row in ops]
        for rank, row in enumerate(plan.ops):
            for index, op in enumerate(row):
                ops[rank].append(_moved(op, shift, channels))
                spans[rank].append(plan.where((rank, index)))
        channels += 1 + max((op.channel for _, op in plan.items()), default=-1)
    # Plans that name no axes run on any mesh.
    meshes = {plan.mesh for plan in plans if plan.mesh is not None}
    return CommPlan(
        name=name or "+".join(plan.name for plan in plans),
        world=first.world,
        tensors=tuple(tensors.values()),
        before=tuple(tuple(chunk for plan in plans for chunk in plan.before[rank]) for rank in ranks),
        after=tuple(tuple(chunk for plan in plans for chunk in plan.after[rank]) for rank in ranks),
        ops=tuple(map(tuple, ops)),
        mesh=meshes.pop() if len(meshes) == 1 else None,
        meta={key: value for plan in plans for key, value in plan.meta.items()},
        span=next((plan.span for plan in plans if plan.span), None),
        spans=tuple(map(tuple, spans)),
    )


def _moved(op: CommOp, shift: Sequence[int], channels: int) -> CommOp:
    depends: tuple[OpId, ...] = tuple((rank, shift[rank] + index) for rank, index in op.depends)
    return replace(op, depends=depends, channel=op.channel + channels)
