"""A plan of a group, whose ranks count from 0, put in its place among all ranks of a world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from overlap.errors import PlanError, SourceSpan

from ..plan import Chunk, Collective, CommOp, CommPlan, OpId


def place_plan(plan: CommPlan, ranks: Sequence[int], world: int) -> CommPlan:
    """The plan carried out by ``ranks``: its rank i becomes global rank ``ranks[i]``. Other ranks hold and do nothing.

    Raises:
        PlanError: not one global rank for each rank of the plan, or one that is not in the world.
    """
    if len(ranks) != plan.world or len(set(ranks)) != len(ranks) or not all(0 <= rank < world for rank in ranks):
        raise PlanError(
            f"plan {plan.name} for {plan.world} ranks cannot run on ranks {', '.join(map(str, ranks))} of {world}",
            where=plan.where(),
            help=f"give {plan.world} different ranks, 0 to {world - 1}",
        )

    def moved(op: CommOp) -> CommOp:
        depends: tuple[OpId, ...] = tuple((ranks[rank], index) for rank, index in op.depends)
        if isinstance(op, Collective):
            return replace(op, depends=depends, ranks=tuple(ranks[rank] for rank in op.ranks))
        return replace(op, depends=depends, src_rank=ranks[op.src_rank], dst_rank=ranks[op.dst_rank])

    before: list[tuple[Chunk, ...]] = [() for _ in range(world)]
    after: list[tuple[Chunk, ...]] = [() for _ in range(world)]
    ops: list[tuple[CommOp, ...]] = [() for _ in range(world)]
    spans: list[tuple[SourceSpan | None, ...]] = [() for _ in range(world)]
    for member, rank in enumerate(ranks):
        before[rank], after[rank] = plan.before[member], plan.after[member]
        ops[rank] = tuple(moved(op) for op in plan.ops[member])
        spans[rank] = plan.spans[member] if plan.spans else ()
    return replace(
        plan,
        world=world,
        before=tuple(before),
        after=tuple(after),
        ops=tuple(ops),
        spans=tuple(spans) if plan.spans else (),
    )
