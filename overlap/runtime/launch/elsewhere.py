"""Sums that are stored where they go (`schedule.stored_sums`): which, and where that lies as seen from this rank's memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.region import Box
from overlap.schedule.pieces import Piece
from overlap.schedule.stored_sums import stored_sums

from ..bound_plan import BoundPlan
from ..group.reach import far
from ..memory.layout import Region, destination_region
from ..memory.plan_tensor import PlanTensor
from ..operator import Operator
from ..protocol import Runtime
from ..tables.sums import Operand

if TYPE_CHECKING:
    from ..memory.part import Part


def stored_by(operator: Operator, plan: CommPlan, runtime: Runtime, parts: Mapping[str, Part]) -> frozenset[OpId]:
    """The operations that sums carry out, where copy engines would and pointers reach every peer's memory. The same on every
    rank."""
    if any(far(runtime, rank) for rank in range(runtime.world)):
        return frozenset()
    sent = stored_sums(plan, [name for name, part in parts.items() if part.made])
    copied = sent.difference(*operator.carried(plan))
    return frozenset(op_id for op_id in copied if not operator.carriers.backend_of(plan.op(op_id)).far)


def stored_at(instance: BoundPlan, piece: Piece, stores: Collection[OpId], part: PlanTensor) -> dict[OpId, Operand]:
    """Where a piece goes by those of the operations ``stores`` that send it: their slots on other ranks."""
    found = {}
    for op_id in piece.ops:
        if op_id in stores:
            op = instance.plan.op(op_id)
            assert isinstance(op, P2P)
            region = destination_region(part.layouts[op.dst_rank], op_id)
            found[op_id] = _at(instance, part, op.dst_rank, region, piece.chunk.box)
    return found


def _at(instance: BoundPlan, part: PlanTensor, rank: int, region: Region, box: Box) -> Operand:
    """A box of a region of another rank's memory, by its place as seen from this rank's."""
    there = Operand.of(region, box)
    away = instance.runtime.peer(part.data, rank).data_ptr() - part.data.data_ptr()
    elements, rest = divmod(away, part.dtype.itemsize)
    assert not rest, f"memory of rank {rank} lies a part of an element away"
    return Operand(there.offset + elements, there.strides)
