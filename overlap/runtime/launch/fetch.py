"""Sums that the ranks that need them read where a peer made them (`schedule.fetched`): which, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.schedule.fetched import fetched
from overlap.schedule.pieces import Piece

from ..bound_plan import BoundPlan
from ..group.reach import far
from ..memory.layout import source_region
from ..memory.plan_tensor import PlanTensor
from ..operator import Operator
from ..protocol import Runtime
from ..tables.sums import Operand

if TYPE_CHECKING:
    from ..memory.part import Part


def fetched_by(
    operator: Operator, plan: CommPlan, runtime: Runtime, parts: Mapping[str, Part], *, early: bool, below: int
) -> frozenset[OpId]:
    """The operations whose sums, of fewer bytes than ``below``, are fetched: those that lanes would copy, where pointers reach
    every peer's memory. The same on every rank."""
    produced = [name for name, part in parts.items() if part.made]
    if not below or not produced or any(far(runtime, rank) for rank in range(runtime.world)):
        return frozenset()
    copied = fetched(plan, produced, early=early).difference(*operator.carried(plan))
    return frozenset(
        op_id
        for op_id in copied
        if not operator.carriers.backend_of(plan.op(op_id)).far and _bytes(plan, op_id, parts) < below
    )


def _bytes(plan: CommPlan, op_id: OpId, parts: Mapping[str, Part]) -> int:
    chunk = plan.op(op_id).dst
    return chunk.box.size * parts[chunk.tensor].dtype.itemsize


def elsewhere(instance: BoundPlan, piece: Piece, part: PlanTensor) -> dict[OpId, Operand]:
    """The summands of a piece that are read where a peer made them, by their places as seen from this rank's memory."""
    found = {}
    for op_id in piece.summands:
        if op_id is not None and op_id in instance.fetched:
            op = instance.plan.op(op_id)
            assert isinstance(op, P2P)
            there = Operand.of(source_region(part.layouts[op.src_rank], op_id, op.src.box), piece.chunk.box)
            away = instance.runtime.peer(part.data, op.src_rank).data_ptr() - part.data.data_ptr()
            elements, rest = divmod(away, part.dtype.itemsize)
            assert not rest, f"memory of rank {op.src_rank} lies a part of an element away"
            found[op_id] = Operand(there.offset + elements, there.strides)
    return found
