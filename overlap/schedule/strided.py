"""Small strided pieces: the one rule for which chunks a copy engine should not copy, where something else can.

chunk [8, 4] of a[8, 1024] bf16, row-major: 8 rows of 8 bytes      copy engine: one 2-D copy, a few bytes at a time
chunk [8, 1024] of a[64, 1024]:             1 row of 16384 bytes    copy engine: one copy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from overlap.chunkplan.plan import P2P, CommOp, CommPlan
from overlap.chunkplan.region import Box


def row_bytes(box: Box, shape: Sequence[int], order: Sequence[int], itemsize: int) -> int:
    """Bytes of a box of a dense tensor that lie in one piece; of the whole box where it does.

    Args:
        shape: of the tensor; ``order``: its dimensions in memory, outermost first.
    """
    run = itemsize
    for d in reversed(order):
        run *= box.hi[d] - box.lo[d]
        if box.hi[d] - box.lo[d] < shape[d]:
            break
    return run


def narrow_by(
    plan: CommPlan, tensor: str, backend: str, *, order: Sequence[int], itemsize: int, limit: int, produced: bool
) -> CommPlan:
    """The plan whose strided chunks of ``tensor`` with rows of fewer than ``limit`` bytes go by ``backend``.

    Operations that name a backend keep it; so do those on what a kernel makes that wait for others, which no tile can.
    """
    shape = plan.tensor(tensor).shape

    def changed(op: CommOp) -> CommOp:
        if not isinstance(op, P2P) or op.src.tensor != tensor or op.backend is not None or op.src.box.empty:
            return op
        run = row_bytes(op.src.box, shape, order, itemsize)
        if run >= limit or run == op.src.box.size * itemsize or (produced and op.depends):
            return op
        return replace(op, backend=backend)

    return replace(plan, ops=tuple(tuple(changed(op) for op in own) for own in plan.ops))
