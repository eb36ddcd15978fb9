"""Which sums are stored where they are sent to by the launch that makes them, in the place of copies behind it.

    copied   rank 0  Sum (own shard) | Copy Raise (to 1) | Copy Raise (to 2) | ...     slots of 1, 2, ..., one after the other
    stored   rank 0  Sum (own shard: own result, slot of 1, slot of 2, ..., then all their flags)

A copy takes its latency and a flag, and of all lanes of a rank one goes at a time; a launch stores to all peers at once, while it
adds, and raises all flags together. What arrives, where, and who waits for it are as with copies: a slot is written when every
peer has given its credit, and read behind its flag.
"""

from __future__ import annotations

from collections.abc import Collection

from overlap.chunkplan.plan import P2P, CommPlan, OpId

from .pieces import Values, pieces


def stored_sums(plan: CommPlan, produced: Collection[str], values: Values | None = None) -> frozenset[OpId]:
    """Operations, of all ranks, that sums can carry out: those that send a sum and wait for nothing else than it does.

    Args:
        produced: tensors of the plan that the kernel writes.
    """
    values = values or Values(plan)
    found: set[OpId] = set()
    for rank in range(plan.world):
        for tensor in produced:
            for ops, kept in pieces(plan, rank, tensor, values)[0].items():
                landed = {op for piece in kept for op in piece.summands}
                found.update(op for op in ops if _waits_for(plan, op) <= landed)
    return frozenset(found)


def _waits_for(plan: CommPlan, op_id: OpId) -> set[OpId]:
    op = plan.op(op_id)
    assert isinstance(op, P2P)
    return set(op.depends)
