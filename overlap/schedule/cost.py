"""What a plan costs: bytes by rank, and when each operation ends if nothing but order and duration holds it up.

An operation starts when the one before it in its channel and all it depends on have ended. Links are
not shared: two channels that use one link at once are each as fast as alone, so a predicted
time is a lower bound. With unit costs this gives the order of arrival (`arrival`). `events` is the model with machines,
ports that are shared, and tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlap.chunkplan.order import HappensBefore, happens_before
from overlap.chunkplan.plan import Collective, CommOp, CommPlan, OpId

from .collective import collective_bytes
from .machine import Machine


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


@dataclass(frozen=True)
class Volumes:
    """Bytes by rank: what leaves it, what enters it, and what of that goes to, and comes from, other nodes."""

    sent: tuple[int, ...]
    received: tuple[int, ...]
    far_sent: tuple[int, ...]
    far_received: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes that all ranks send together."""
        return sum(self.sent)


def volumes(plan: CommPlan, itemsize: int = 2, machine: Machine | None = None) -> Volumes:
    """How many bytes each rank sends and receives; a copy inside a rank counts for nothing.

    A collective counts as `collective_bytes` says, all of it far if its ranks are not of one node.

    Args:
        machine: says which ranks are of one node; without it all are.
    """
    sent, received, far_sent, far_received = ([0] * plan.world for _ in range(4))
    for (rank, _), op in plan.items():
        if isinstance(op, Collective):
            whole = op.src if op.kind == "reduce_scatter" else op.dst
            size = int(collective_bytes(op.kind, len(op.ranks), whole.box.size * itemsize))
            source = target = rank
            far = machine is not None and len({peer // machine.node for peer in op.ranks}) > 1
        else:
            source, target, size = op.src_rank, op.dst_rank, op.src.box.size * itemsize
            if source == target:
                continue
            far = machine is not None and source // machine.node != target // machine.node
        sent[source] += size
        received[target] += size
        if far:
            far_sent[source] += size
            far_received[target] += size
    return Volumes(tuple(sent), tuple(received), tuple(far_sent), tuple(far_received))
