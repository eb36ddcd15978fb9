"""What a plan costs in bytes: how much leaves and enters each rank, and how much of that crosses between nodes.

When it happens is the event model's to say (`events`).
"""

from __future__ import annotations

from dataclasses import dataclass

from overlap.chunkplan.plan import Collective, CommPlan

from .collective import collective_bytes
from .machine import Machine


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
