"""Chunks moved by programs of the user's own launch: what each move waits for, which programs make it, and the table.

    rank r   program 0    move A, its part | count | move B, its part | count ...
             program 1    move A, its part | count, last: raise A's flag | move B ...
             program 2..  tiles, each run behind the flags of its chunks

Programs of one group make every move of the group together, a part each, and the last one to have stored its part raises
the flag. Nothing keeps them in step, so a move that touches what an earlier one of its group touches waits for that one's
flag, also where the plan relies on their order in one channel. Who sees a flag sees all that its group did before: every
program counts its parts in order.

Table of a launch (int64 words)::

    header     moving programs, extents of the grid of the computing ones, pace (`interleave`)
    programs   PROGRAM_WORDS each: first move, moves, number in the group, programs of the group
    moves      MOVE_WORDS each: first await, its end, first piece, its end, counter, address of the flag
    awaits     addresses of flags
    pieces     PIECE_WORDS each: kind, source, destination, words, words a row, two pitches

What begins or ends is a place in this table, a counter one in the state words. A piece's kind is what it is copied in: words of
1, 4 or 16 bytes (`IN_ROW`: 16, in one row), whose pitches count elements of 1, 4 or 8 bytes; or `BOXES`, by TMA, where there
are rows in the place of words, and words and elements are of 4 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from overlap.chunkplan.order import HappensBefore, happens_before
from overlap.chunkplan.plan import P2P, Chunk, CommPlan, OpId

HEADER_WORDS = 5
PROGRAM_WORDS = 4
MOVE_WORDS = 6
PIECE_WORDS = 7
H_PROGRAMS, H_GRID, H_PACE = 0, 1, 4
G_FIRST, G_MOVES, G_NUMBER, G_PROGRAMS = range(PROGRAM_WORDS)
M_AWAIT, M_AWAIT_END, M_PIECE, M_PIECE_END, M_COUNTER, M_FLAG = range(MOVE_WORDS)
P_KIND, P_SRC, P_DST, P_WORDS, P_ROW, P_SRC_PITCH, P_DST_PITCH = range(PIECE_WORDS)
IN_ROW, BOXES = 0, 2

STAGES = 4
"""Blocks that a moving program has on the way at a time, one of them on its way out."""
BLOCK_BYTES = 8192
BOX_ROWS, BOX_WORDS = 64, 64
"""A box of words of 4 bytes: of 8 programs with `STAGES` each 241 GB/s were measured over NVLink (H100)."""
BOX_BYTES = BOX_ROWS * BOX_WORDS * 4
SMALL_BOX_ROWS = 32
"""Of a box that a program copies between two of its tiles, beside the buffers of their pipeline."""
BETWEEN_BYTES = SMALL_BOX_ROWS * BOX_WORDS * 4 + 1024
"""Shared memory that such a box takes, and barriers for its rows: a multiple of 1024, to which buffers of tiles are aligned."""
_BLOCKS = STAGES * BLOCK_BYTES
SHARED_BYTES = {"load/store": _BLOCKS, "nvshmem put": _BLOCKS, "tma store": STAGES * BOX_BYTES}
"""Shared memory that moving takes at most, by who writes, of a block that has it for its tiles or adds it."""


@dataclass(frozen=True)
class Move:
    """An operation of this rank that its kernel carries out, and those whose flags it waits for."""

    op: OpId
    awaits: tuple[OpId, ...] = ()


@dataclass(frozen=True)
class Group:
    """Moves that the same ``programs`` make, in order."""

    moves: tuple[Move, ...]
    programs: int


def moves_of(
    plan: CommPlan, rank: int, order: HappensBefore | None = None, moved: Collection[OpId] | None = None
) -> tuple[Move, ...]:
    """The moves of a rank, in an order in which no ranks can wait for each other in a circle: a part of one for all ranks.

    Args:
        moved: the operations that programs of kernels carry out, at least those of the rank; None: all there are.

    Raises:
        PlanError: the plan is cyclic.
    """
    order = order or happens_before(plan)
    own = [op_id for op_id in order.order if op_id[0] == rank and (moved is None or op_id in moved)]
    return tuple(Move(op_id, _awaits(plan, op_id, own[:i], moved)) for i, op_id in enumerate(own))


def behind_another(plan: CommPlan, op_id: OpId, moved: Collection[OpId]) -> OpId | None:
    """The operation ahead of ``op_id`` in its channel, if one of the two is ``moved`` and a lane copies the other.

    A channel keeps its order by itself in a lane, and in a group of programs; from one to the other a flag has to.
    """
    rank, index = op_id
    channel = plan.op(op_id).channel
    ahead = next((i for i in range(index - 1, -1, -1) if plan.ops[rank][i].channel == channel), None)
    if ahead is None or ((rank, ahead) in moved) == (op_id in moved):
        return None
    return rank, ahead


def groups(plan: CommPlan, moves: Sequence[Move], programs: int) -> tuple[Group, ...]:
    """The moves dealt out: a group a channel while there are programs for it, the programs as evenly as possible."""
    channels = sorted({plan.op(move.op).channel for move in moves})
    count = min(len(channels), programs)
    found = []
    for number in range(count):
        mine = tuple(m for m in moves if channels.index(plan.op(m.op).channel) % count == number)
        found.append(Group(mine, programs // count + (number < programs % count)))
    return tuple(found)


def _awaits(plan: CommPlan, op_id: OpId, earlier: Sequence[OpId], moved: Collection[OpId] | None) -> tuple[OpId, ...]:
    """What the plan says, the last earlier move of the channel that may not run beside this one, and a copy just ahead."""
    op = plan.op(op_id)
    found = list(dict.fromkeys(op.depends))
    copied = None if moved is None else behind_another(plan, op_id, moved)
    if copied is not None and copied not in found:
        found.append(copied)
    before = [e for e in earlier if plan.op(e).channel == op.channel and _conflict(plan, e, op_id)]
    if before and before[-1] not in found:
        found.append(before[-1])
    return tuple(found)


def _conflict(plan: CommPlan, one: OpId, other: OpId) -> bool:
    """Whether one of two operations writes what the other reads or writes."""
    a, b = plan.op(one), plan.op(other)
    assert isinstance(a, P2P) and isinstance(b, P2P)
    return (
        _meet(a.dst_rank, a.dst, b.src_rank, b.src)
        or _meet(a.src_rank, a.src, b.dst_rank, b.dst)
        or _meet(a.dst_rank, a.dst, b.dst_rank, b.dst)
    )


def _meet(rank: int, chunk: Chunk, other: int, beside: Chunk) -> bool:
    return rank == other and chunk.tensor == beside.tensor and chunk.box.overlaps(beside.box)
