"""The order in which chunks reach a rank.

all-gather by pull, 4 ranks, rank 1:     time 0      1      2      3
                                         own 1   from 2  from 3  from 0
"""

from __future__ import annotations

from collections.abc import Mapping

from overlap.chunkplan.plan import Collective, CommPlan, OpId

from .cost import UNIT, CostModel, finish_times


def arrival_order(plan: CommPlan, rank: int, cost: CostModel = UNIT) -> tuple[OpId, ...]:
    """Operations that land on ``rank``, the earliest first; the rank's own chunks come before all of them.

    Operations that end together are taken in rotated order of their source, ``(src - rank) % world``, then in
    the order of the plan, so the answer does not depend on anything but the plan and the costs.

    Raises:
        PlanError: the plan is cyclic.
    """
    return by_finish(plan, rank, finish_times(plan, cost))


def by_finish(plan: CommPlan, rank: int, finish: Mapping[OpId, float]) -> tuple[OpId, ...]:
    """`arrival_order` for end times that are known already."""

    def key(op_id: OpId) -> tuple[float, int, OpId]:
        op = plan.op(op_id)
        distance = 0 if isinstance(op, Collective) else (op.src_rank - rank) % plan.world
        return finish[op_id], distance, op_id

    return tuple(sorted(plan.arriving(rank), key=key))
