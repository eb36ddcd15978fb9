"""Moves that NVSHMEM carries, in the table of a launch (`overlap.schedule.far`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from overlap.chunkplan.plan import P2P, OpId
from overlap.schedule.far import GET, PUT, kind_of
from overlap.schedule.table import SLOT_WORDS, flag_base

from .copies import plan_copy
from .reach import through_network

if TYPE_CHECKING:
    from .instance import Instance


def is_carried(instance: Instance, op_id: OpId) -> bool:
    """Whether NVSHMEM carries an operation of this rank."""
    op = _copied(instance, op_id)
    other = op.dst_rank if op.src_rank == instance.runtime.rank else op.src_rank
    return instance.operator.mover.far and through_network(instance.runtime, other)


def signal_of(instance: Instance, op_id: OpId) -> tuple[int, int] | None:
    """Of a flag that a signal raises, the address that it would have on this rank, and NVSHMEM's number of its rank."""
    runtime, op = instance.runtime, _copied(instance, op_id)
    if op.dst_rank == runtime.rank or not is_carried(instance, op_id):
        return None
    slot = flag_base(runtime.world) + instance.slots[op.dst_rank][op_id]
    return instance.state[slot * SLOT_WORDS :].data_ptr(), runtime.pes[op.dst_rank]


def pieces_of(instance: Instance, op_id: OpId) -> Iterator[tuple[int, ...]]:
    """Records of what NVSHMEM copies: rows of contiguous bytes, both ends as they would lie on this rank."""
    runtime, op = instance.runtime, _copied(instance, op_id)
    src = instance.parts[op.src.tensor].source(op_id, here=True)
    dst = instance.parts[op.dst.tensor].destination(op_id, here=True)
    puts = op.src_rank == runtime.rank
    kind = kind_of(PUT if puts else GET, runtime.pes[op.dst_rank if puts else op.src_rank])
    for piece in plan_copy(dst, src) if src.numel() else ():
        yield kind, piece.src, piece.dst, piece.rows, piece.width, piece.src_pitch, piece.dst_pitch


def _copied(instance: Instance, op_id: OpId) -> P2P:
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    return op
