"""Which sums the ranks that need them fetch themselves, in the place of copies to them.

    copied    rank 0  Sum (own shard) | Copy Raise (to 1) | Copy Raise (to 2) ...     rank 1  Sum (the rest: slot of 0 -> result)
    fetched   rank 0  Sum (own shard) | Raise (to 1) | Raise (to 2)                   rank 1  Sum (the rest: 0's sum -> result)

Behind the kernel all multiprocessors are free, and the one launch that puts what came in its place reads all peers' memory while
a copy engine serves one peer after the other. Nothing overwrites a sum that is read so: its rank's next launch makes it anew only
behind its entry, which waits for everybody's credits, and those stand behind the sums that read.
"""

from __future__ import annotations

from collections.abc import Collection

from overlap.chunkplan.plan import P2P, CommPlan, OpId

from .early import early_sums
from .pieces import Values, pieces


def fetched(
    plan: CommPlan, produced: Collection[str], *, early: bool = False, values: Values | None = None
) -> frozenset[OpId]:
    """Operations, of all ranks, that can be left to those that read what they send: a sum that is made behind the kernel, of
    elements that the destination ends with as they are and sends to nobody.

    Args:
        produced: tensors of the plan that the kernel writes.
        early: sums are made while the kernel runs, as far as they can; those are copied, so that they travel meanwhile.
    """
    values = values or Values(plan)
    found: set[OpId] = set()
    added: set[OpId | None] = set()
    for rank in range(plan.world):
        meanwhile = early_sums(plan, rank, produced, values) if early else ()
        for tensor in produced:
            sums, result = pieces(plan, rank, tensor, values)
            found.update(op for ops in sums for op in ops)
            for piece in (*result, *(piece for kept in sums.values() for piece in kept)):
                if piece.keep or len(piece.summands) > 1:
                    added.update(piece.summands)
        found.difference_update(op for sum_ in meanwhile for op in sum_.ops)
    return frozenset(op_id for op_id in found - added if _stays(plan, op_id))


def _stays(plan: CommPlan, op_id: OpId) -> bool:
    """Whether what an operation brings is in its place: the same part of the same tensor."""
    op = plan.op(op_id)
    return isinstance(op, P2P) and op.reduce is None and op.src == op.dst
