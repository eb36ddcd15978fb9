"""Plans with one operation more, less or changed."""

from __future__ import annotations

from dataclasses import replace

from overlap.chunkplan.plan import P2P, CommPlan, OpId


def with_op(plan: CommPlan, at: OpId, **changes: object) -> CommPlan:
    """The plan with some fields of one operation changed."""
    rows = [list(row) for row in plan.ops]
    rows[at[0]][at[1]] = replace(rows[at[0]][at[1]], **changes)  # type: ignore[arg-type]
    return replace(plan, ops=tuple(map(tuple, rows)))


def also(plan: CommPlan, rank: int, op: P2P) -> CommPlan:
    """The plan with one more operation at the end of a rank's list."""
    return replace(plan, ops=tuple((*row, op) if r == rank else row for r, row in enumerate(plan.ops)))


def without_op(plan: CommPlan, at: OpId) -> CommPlan:
    """The plan without one operation: dependencies on it go, those behind it move up."""

    def kept(depends: tuple[OpId, ...]) -> tuple[OpId, ...]:
        return tuple((r, i - (r == at[0] and i > at[1])) for r, i in depends if (r, i) != at)

    rows = (
        tuple(replace(op, depends=kept(op.depends)) for index, op in enumerate(row) if (rank, index) != at)
        for rank, row in enumerate(plan.ops)
    )
    return replace(plan, ops=tuple(rows), spans=())
