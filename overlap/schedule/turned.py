"""Pulls of sums turned into pushes: only the rank that adds a sum up knows when it is whole.

    rank 0   pull A | pull S (a sum of rank 1) | pull B         rank 0   pull A | pull B (behind S)
    rank 1   ...                                                rank 1   ... | push S (behind A)

What ran before and behind such an operation in its channel does so still, by dependencies.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from overlap.chunkplan.plan import P2P, CommOp, CommPlan, OpId
from overlap.errors import SourceSpan

from .pieces import Values


def pulled_sums(plan: CommPlan, values: Values) -> tuple[OpId, ...]:
    """The pulls of a plan that take what their source must add up first."""
    return tuple(
        op_id
        for op_id, op in plan.items()
        if isinstance(op, P2P) and op.direction == "pull" and not values.in_place(op_id)
    )


def push_instead(plan: CommPlan, pulls: Collection[OpId]) -> CommPlan:
    """The plan with ``pulls`` as pushes at the end of their sources' lists, each old channel in a new one."""
    if not pulls:
        return plan
    turned = set(pulls)
    moved: dict[OpId, OpId] = {}
    lists: list[list[OpId]] = []
    for rank, ops in enumerate(plan.ops):
        lists.append([(rank, index) for index in range(len(ops)) if (rank, index) not in turned])
    for op_id in sorted(turned):
        lists[_source(plan, op_id)].append(op_id)
    for rank, found in enumerate(lists):
        moved.update({op_id: (rank, index) for index, op_id in enumerate(found)})

    before: dict[OpId, OpId] = {}
    for rank, ops in enumerate(plan.ops):
        last: dict[int, OpId] = {}
        for index, op in enumerate(ops):
            if op.channel in last:
                before[rank, index] = last[op.channel]
            last[op.channel] = (rank, index)

    channels: dict[tuple[int, int, int], int] = {}
    free = 1 + max(op.channel for _, op in plan.items())

    def made(op_id: OpId) -> CommOp:
        op = plan.op(op_id)
        depends = [moved[dep] for dep in op.depends]
        earlier = before.get(op_id)
        if earlier is not None and (op_id in turned or earlier in turned) and moved[earlier] not in depends:
            depends.append(moved[earlier])
        if op_id not in turned:
            return replace(op, depends=tuple(depends))
        assert isinstance(op, P2P)
        lane = (op.src_rank, op_id[0], op.channel)
        channel = channels.setdefault(lane, free + sum(rank == op.src_rank for rank, _, _ in channels))
        return replace(op, direction="push", channel=channel, depends=tuple(depends))

    spans: list[tuple[SourceSpan | None, ...]] = [tuple(plan.where(op_id) for op_id in found) for found in lists]
    return replace(
        plan,
        ops=tuple(tuple(made(op_id) for op_id in found) for found in lists),
        spans=tuple(spans) if plan.spans else (),
    )


def _source(plan: CommPlan, op_id: OpId) -> int:
    op = plan.op(op_id)
    assert isinstance(op, P2P)
    return op.src_rank
