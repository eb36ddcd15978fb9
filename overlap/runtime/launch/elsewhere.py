"""Sums across ranks' memory: read where a peer made them (`schedule.fetched`), or stored where they go (`schedule.stored_sums`):
which, and where that lies as seen from this rank's memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.region import Box
from overlap.schedule.fetched import fetched
from overlap.schedule.pieces import Piece
from overlap.schedule.stored_sums import stored_sums

from ..bound_plan import BoundPlan
from ..group.reach import far
from ..memory.layout import Region, destination_region, source_region
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
    if not below:
        return frozenset()
    near = _near(operator, plan, runtime, parts, fetched(plan, _made(parts), early=early))
    return frozenset(op_id for op_id in near if _bytes(plan, op_id, parts) < below)


def stored_by(operator: Operator, plan: CommPlan, runtime: Runtime, parts: Mapping[str, Part]) -> frozenset[OpId]:
    """The operations that sums carry out, where lanes would and pointers reach every peer's memory. The same on every rank."""
    return _near(operator, plan, runtime, parts, stored_sums(plan, _made(parts)))


def _made(parts: Mapping[str, Part]) -> list[str]:
    return [name for name, part in parts.items() if part.made]


def _near(
    operator: Operator, plan: CommPlan, runtime: Runtime, parts: Mapping[str, Part], ops: Collection[OpId]
) -> frozenset[OpId]:
    """Those of ``ops`` that copy engines carry out, where pointers reach every peer's memory."""
    if any(far(runtime, rank) for rank in range(runtime.world)):
        return frozenset()
    copied = frozenset(ops).difference(*operator.carried(plan))
    return frozenset(op_id for op_id in copied if not operator.carriers.backend_of(plan.op(op_id)).far)


def _bytes(plan: CommPlan, op_id: OpId, parts: Mapping[str, Part]) -> int:
    chunk = plan.op(op_id).dst
    return chunk.box.size * parts[chunk.tensor].dtype.itemsize


def fetched_from(instance: BoundPlan, piece: Piece, part: PlanTensor) -> dict[OpId, Operand]:
    """The summands of a piece that are read where a peer made them, by their places as seen from this rank's memory."""
    found = {}
    for op_id in piece.summands:
        if op_id is not None and op_id in instance.fetched:
            op = instance.plan.op(op_id)
            assert isinstance(op, P2P)
            region = source_region(part.layouts[op.src_rank], op_id, op.src.box)
            found[op_id] = _at(instance, part, op.src_rank, region, piece.chunk.box)
    return found


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
