"""A pure event model of a plan: when each operation ends if nothing but order and duration holds it up.

An operation starts when the one before it in its channel and all it depends on have ended. Links are
not shared: two channels that use one link at once are each as fast as alone, so a predicted
time is a lower bound. With unit costs this gives the order of arrival (`arrival`).
"""

from __future__ import annotations

from dataclasses import dataclass

from overlap.chunkplan.order import HappensBefore, happens_before
from overlap.chunkplan.plan import CommOp, CommPlan, OpId


@dataclass(frozen=True)
class CostModel:
    """Duration of a transfer: ``latency`` seconds, and its bytes at ``bandwidth`` bytes a second."""

    latency: float = 1.0
    bandwidth: float = float("inf")
    itemsize: int = 2

    def duration(self, op: CommOp) -> float:
        return self.latency + op.dst.box.size * self.itemsize / self.bandwidth


UNIT = CostModel()
"""Every operation takes one unit of time."""


def finish_times(plan: CommPlan, cost: CostModel = UNIT, order: HappensBefore | None = None) -> dict[OpId, float]:
    """When each operation ends, the launch being time 0.

    Args:
        order: the plan's happens-before, where the caller has it already.

    Raises:
        PlanError: the plan is cyclic.
    """
    order = order or happens_before(plan)
    finish: dict[OpId, float] = {}
    for op in order.order:
        start = max((finish[before] for before, _ in order.predecessors[op]), default=0.0)
        finish[op] = start + cost.duration(plan.op(op))
    return finish
