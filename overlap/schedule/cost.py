"""A pure event model of a plan: when each operation ends if nothing but order and duration holds it up.

An operation starts when the one before it in its channel and all it depends on have ended. Links are
not shared: two channels that use one link at once are each as fast as alone, so a predicted
time is a lower bound. With unit costs this gives the order of arrival (`arrival`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from overlap.chunkplan.plan import CommOp, CommPlan, OpId
from overlap.errors import PlanError

from .cycles import find_cycle
from .model import op_name


@dataclass(frozen=True)
class CostModel:
    """Duration of a transfer: ``latency`` seconds, and its bytes at ``bandwidth`` bytes a second."""

    latency: float = 1.0
    bandwidth: float = float("inf")
    itemsize: int = 2

    def duration(self, op: CommOp) -> float:
        elements = 1
        for extent in op.dst.box.shape:
            elements *= max(extent, 0)
        return self.latency + elements * self.itemsize / self.bandwidth


UNIT = CostModel()
"""Every operation takes one unit of time."""


def predecessors(plan: CommPlan) -> dict[OpId, tuple[OpId, ...]]:
    """For every operation the ones it comes directly after: the one before it in its channel, and what it depends on.

    Raises:
        PlanError: a dependency on an operation that does not exist.
    """
    found: dict[OpId, tuple[OpId, ...]] = {}
    for rank, ops in enumerate(plan.ops):
        last: dict[int, OpId] = {}
        for index, op in enumerate(ops):
            for dep_rank, dep_index in op.depends:
                if not (0 <= dep_rank < len(plan.ops) and 0 <= dep_index < len(plan.ops[dep_rank])):
                    raise PlanError(
                        f"plan {plan.name}: {op_name((rank, index))} depends on {op_name((dep_rank, dep_index))}, "
                        "which does not exist"
                    )
            before = (last[op.channel],) if op.channel in last else ()
            found[rank, index] = tuple(dict.fromkeys((*before, *op.depends)))
            last[op.channel] = (rank, index)
    return found


def in_order(plan: CommPlan) -> tuple[OpId, ...]:
    """All operations, each behind its `predecessors`; the first in rank order among equals.

    Raises:
        PlanError: a cycle, with its operations named.
    """
    before = predecessors(plan)
    after: dict[OpId, list[OpId]] = {op: [] for op in before}
    missing = {op: len(preds) for op, preds in before.items()}
    for op, preds in before.items():
        for pred in preds:
            after[pred].append(op)
    ready = deque(op for op, n in missing.items() if n == 0)
    done: list[OpId] = []
    while ready:
        op = ready.popleft()
        done.append(op)
        for follower in after[op]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    if len(done) < len(before):
        story = " waits for ".join(map(op_name, find_cycle(before)))
        raise PlanError(f"plan {plan.name}: {story}", help="remove one of these dependencies")
    return tuple(done)


def finish_times(plan: CommPlan, cost: CostModel = UNIT) -> dict[OpId, float]:
    """When each operation ends, the launch being time 0.

    Raises:
        PlanError: the plan is cyclic or names an operation that does not exist.
    """
    before = predecessors(plan)
    finish: dict[OpId, float] = {}
    for op in in_order(plan):
        start = max((finish[p] for p in before[op]), default=0.0)
        finish[op] = start + cost.duration(plan.op(op))
    return finish
