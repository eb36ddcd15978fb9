"""Operations that NVSHMEM carries: in the table of a launch's moves, and as a kernel of their own (`overlap.schedule.far`)."""

from __future__ import annotations

from collections.abc import Iterator

from overlap.chunkplan.plan import P2P, OpId
from overlap.schedule.far import GET, LANE_WORDS, PART_BYTES, PUT, kind_of
from overlap.schedule.table import SLOT_WORDS, flag_base

from ..bound_plan import BoundPlan
from ..memory.copies import CopyPiece, plan_copy


def signal_of(instance: BoundPlan, op_id: OpId) -> tuple[int, int] | None:
    """Of a flag that a signal raises, the address that it would have on this rank, and NVSHMEM's number of its rank."""
    runtime, op = instance.runtime, _copied(instance, op_id)
    if op.dst_rank == runtime.rank or not instance.by_network(op_id):
        return None
    return _flag(instance, op_id), runtime.pes[op.dst_rank]


def pieces_of(instance: BoundPlan, op_id: OpId) -> Iterator[tuple[int, ...]]:
    """Records of what NVSHMEM copies: rows of contiguous bytes, both ends as they would lie on this rank."""
    runtime, op = instance.runtime, _copied(instance, op_id)
    puts = op.src_rank == runtime.rank
    kind = kind_of(PUT if puts else GET, runtime.pes[op.dst_rank if puts else op.src_rank])
    for piece in _rows(instance, op_id):
        yield kind, piece.src, piece.dst, piece.rows, piece.width, piece.src_pitch, piece.dst_pitch


def lane_words(instance: BoundPlan, op_id: OpId) -> tuple[list[int], int]:
    """The table of a kernel that carries an operation, and in how many parts at most."""
    pieces = [word for piece in pieces_of(instance, op_id) for word in piece]
    parts = sum(piece.rows * -(-piece.width // PART_BYTES) for piece in _rows(instance, op_id))
    flag, pe = signal_of(instance, op_id) or (_flag(instance, op_id), -1)
    return [0, LANE_WORDS + len(pieces), flag, pe, *pieces], parts


def _rows(instance: BoundPlan, op_id: OpId) -> Iterator[CopyPiece]:
    op = _copied(instance, op_id)
    src = instance.parts[op.src.tensor].source(op_id, here=True)
    dst = instance.parts[op.dst.tensor].destination(op_id, here=True)
    yield from plan_copy(dst, src) if src.numel() else ()


def _flag(instance: BoundPlan, op_id: OpId) -> int:
    """The address that an operation's flag has on this rank, or would have."""
    slot = flag_base(instance.runtime.world) + instance.slots[_copied(instance, op_id).dst_rank][op_id]
    return int(instance.state[slot * SLOT_WORDS :].data_ptr())


def _copied(instance: BoundPlan, op_id: OpId) -> P2P:
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    return op
