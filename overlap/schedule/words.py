"""Results that kernels send in low-latency words and add up themselves: who sends what to whom, and the table that says so.

    rank r of 3, a reduce-scatter     slots of r, a side      hello of 0, 1, 2 | part of rank 0 | own part | part of rank 2
                                      c[r]                    = the three of them, added in rank order

Every operation is a box that its source's tiles make, and has lines of its own at its destination; so has each part of the result
that the rank makes itself, which it sends to itself. A plan whose operations send anything else, a sum say, is refused.

The table (int64 words, `overlap.runtime.tables.inline_words`)::

    header (HEADER_WORDS) | every rank's hello of this rank | ways of each run: where the records of its receivers are
    | receivers | pieces | summands
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.region import Box
from overlap.errors import UnsupportedError

from .pieces import Piece, Values, pieces
from .step import Kernel

DIMS = 3
"""Dimensions of a result at most; fewer are as if others of one element stood in front."""

HEADER_WORDS = 12
H_SIDE, H_RANK, H_WORLD, H_NUMBER, H_PIECES, H_FIRST_PIECE, H_USED, H_CAPACITY, H_STRIDES = range(9)
"""Bytes of a side; this rank, ranks; the number of what is launched; pieces, and where the first one's record is; lines of a side
that the launch writes, and that it has; strides of the kernel's own result in elements, `DIMS` of them."""

RECEIVER_WORDS = 1 + 2 * DIMS
R_ADDRESS, R_LO, R_HI = 0, 1, 1 + DIMS
"""Where side 0 of the box's lines begins; the box, in elements of the kernel's own result."""

PIECE_WORDS = 11
P_LINES, P_ROWS, P_WIDTH, P_COUNT, P_FIRST, P_BLOCK, P_OUT, P_STRIDES = range(8)
P_PACKED = P_STRIDES + DIMS
"""Lines; of dimensions 1 and 2 the extents, the last in lines; summands, and where the first one's record is; blocks of the
pieces ahead; where it lies in the result, its strides there; whether a line is stored there whole."""

SUMMAND_WORDS = DIMS
"""Line of a side where a summand of a piece begins, and its strides in lines along dimensions 0 and 1."""

LANES = 256
"""Lines of a block: what pieces are dealt out to programs by, so that they begin at different ones."""


def first_way(world: int) -> int:
    """Where in the table the ways of the first run begin."""
    return HEADER_WORDS + world


@dataclass(frozen=True)
class Slot:
    """Lines that one box takes of its receiver's slots: what ``source`` makes of ``box``; ``op``: None of the rank's own part."""

    source: int
    op: OpId | None
    box: Box


def slots(plan: CommPlan, rank: int, tensor: str, values: Values | None = None) -> tuple[Slot, ...]:
    """What arrives in ``rank``'s slots in a launch, in the order in which it lies there; nothing of it is empty.

    Raises:
        UnsupportedError: a rank sends, or ends with, what tiles did not make as it is.
    """
    values = values or Values(plan)
    _, result = summed(plan, rank, tensor, values)
    found = [Slot(rank, None, piece.chunk.box) for piece in result if None in piece.summands]
    for op_id in sorted(plan.arriving(rank)):
        op = plan.op(op_id)
        if isinstance(op, P2P) and op.dst.tensor == tensor:
            found.append(Slot(op.src_rank, op_id, op.dst.box))
    return tuple(slot for slot in sorted(found, key=lambda slot: slot.source) if not slot.box.empty)


def summed(
    plan: CommPlan, rank: int, tensor: str, values: Values | None = None
) -> tuple[tuple[OpId, ...], tuple[Piece, ...]]:
    """The operations of ``rank`` that send what its tiles make, and the pieces of its result.

    Raises:
        UnsupportedError: a rank sends what tiles did not make as it is.
    """
    values = values or Values(plan)
    sent = []
    for index, op in enumerate(plan.ops[rank]):
        op_id = (rank, index)
        if not isinstance(op, P2P) or op.depends or not values.sends_partial(op_id):
            raise UnsupportedError(
                f"plan {plan.name}, {name_op(plan, op_id)} sends what others have sent, and words_inline sends what tiles make",
                where=plan.where(op_id),
                help="a plan of one step (reduce_scatter_1d, all_reduce_one_shot, all_to_all_1d), or copy_engine",
            )
        sent.append(op_id)
    _, result = pieces(plan, rank, tensor, values)
    return tuple(sent), tuple(piece for piece in result if not piece.chunk.box.empty)


def word_steps(plan: CommPlan, rank: int, produced: Collection[str]) -> tuple[Kernel, ...]:
    """The steps of a launch: the kernel.

    Raises:
        UnsupportedError: as `summed`; or the plan communicates something else besides, which no word of the kernel waits for.
    """
    tensors = [spec.name for spec in plan.tensors]
    others = [name for name in tensors if name not in produced]
    if others or len(tensors) != 1:
        raise UnsupportedError(
            f"words_inline sends one result of a kernel and nothing else; this one communicates {', '.join(tensors)}",
            where=plan.where(),
            help="copy_engine or ldst_inline",
        )
    sent, _ = summed(plan, rank, tensors[0])
    return (Kernel(sent),)
