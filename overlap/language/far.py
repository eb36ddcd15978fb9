"""Words of kernels in which some programs of the launch move chunks, to ranks that no pointer reaches too.

    put    every program  awaits | its parts | quiet | count ... the last one in: put_signal of the flag
    pull   every program  awaits | its parts | quiet | count ... the last one in: release of the flag, which is here

Each program's quiet completes its own copies before it counts, so that whoever counted last stands for all of them: the flag
needs no order of its own among copies to a rank.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import far as _far
from overlap.schedule import moves as _table

from .flags import after, poll
from .moves import _LOAD_STORE, _copy
from .nvshmem import get_nbi, put_nbi, quiet, raise_far

_HEADER: tl.constexpr = tl.constexpr(_table.HEADER_WORDS)
_PROGRAM_WORDS: tl.constexpr = tl.constexpr(_table.PROGRAM_WORDS)
_FIRST: tl.constexpr = tl.constexpr(_table.G_FIRST)
_MOVES: tl.constexpr = tl.constexpr(_table.G_MOVES)
_NUMBER: tl.constexpr = tl.constexpr(_table.G_NUMBER)
_IN_GROUP: tl.constexpr = tl.constexpr(_table.G_PROGRAMS)
_MOVE_WORDS: tl.constexpr = tl.constexpr(_table.MOVE_WORDS)
_AWAIT: tl.constexpr = tl.constexpr(_table.M_AWAIT)
_AWAIT_END: tl.constexpr = tl.constexpr(_table.M_AWAIT_END)
_PIECE: tl.constexpr = tl.constexpr(_table.M_PIECE)
_PIECE_END: tl.constexpr = tl.constexpr(_table.M_PIECE_END)
_COUNTER: tl.constexpr = tl.constexpr(_table.M_COUNTER)
_FLAG: tl.constexpr = tl.constexpr(_table.M_FLAG)
_PIECE_WORDS: tl.constexpr = tl.constexpr(_table.PIECE_WORDS)
_KIND: tl.constexpr = tl.constexpr(_table.P_KIND)
_SRC: tl.constexpr = tl.constexpr(_table.P_SRC)
_DST: tl.constexpr = tl.constexpr(_table.P_DST)
_ROWS: tl.constexpr = tl.constexpr(_table.P_WORDS)
_ROW: tl.constexpr = tl.constexpr(_table.P_ROW)
_SRC_PITCH: tl.constexpr = tl.constexpr(_table.P_SRC_PITCH)
_DST_PITCH: tl.constexpr = tl.constexpr(_table.P_DST_PITCH)
_FAR_FLAG: tl.constexpr = tl.constexpr(_far.F_FLAG)
_FAR_PE: tl.constexpr = tl.constexpr(_far.F_PE)
_GET: tl.constexpr = tl.constexpr(_far.GET)
_PART: tl.constexpr = tl.constexpr(_far.PART_BYTES)
_LANE: tl.constexpr = tl.constexpr(_far.LANE_WORDS)
_LANE_COUNTER: tl.constexpr = tl.constexpr(_far.L_COUNTER)
_LANE_END: tl.constexpr = tl.constexpr(_far.L_END)
_LANE_FLAG: tl.constexpr = tl.constexpr(_far.L_FLAG)
_LANE_PE: tl.constexpr = tl.constexpr(_far.L_PE)


@triton.jit
def move_chunks_far(moves, state, epoch):
    """As `move_chunks`, through NVSHMEM where a piece or a flag is at a rank that no pointer reaches.

    Flags have landed when the kernel ends, so that no later launch's can be overtaken by one of this.
    """
    mine = moves + _HEADER + tl.program_id(0) * _PROGRAM_WORDS
    move = moves + tl.load(mine + _FIRST)
    number = tl.load(mine + _NUMBER).to(tl.int32)
    programs = tl.load(mine + _IN_GROUP).to(tl.int32)
    for _ in range(tl.load(mine + _MOVES).to(tl.int32)):
        _make_part(moves, move, number, programs, state, epoch)
        move += _MOVE_WORDS
    quiet()


@triton.jit
def _make_part(moves, move, number, programs, state, epoch):
    """Makes part ``number`` of ``programs`` of a move: awaits, copies, counts; the last one in raises the flag."""
    seen = epoch
    i = tl.load(move + _AWAIT)
    end = tl.load(move + _AWAIT_END)
    while i < end:
        seen = tl.minimum(seen, poll(tl.load(moves + i).to(tl.pointer_type(tl.int64)), epoch, state))
        i += 1
    piece = tl.load(move + _PIECE)
    last_piece = tl.load(move + _PIECE_END)
    turn = after(number, seen)
    while piece < last_piece:
        kind = tl.load(moves + piece + _KIND)
        if kind < 0:
            _carry(moves + piece, kind, turn, programs)
        else:
            _copy(moves + piece, turn, programs, _LOAD_STORE)
        piece += _PIECE_WORDS
        turn = (turn + 1) % programs
    quiet()
    tl.debug_barrier()
    counted = tl.atomic_add(state + tl.load(move + _COUNTER), 1, sem="acq_rel", scope="sys")
    flag = tl.load(move + _FLAG)
    if counted == programs - 1:
        if flag < 0:
            far = moves - flag
            raise_far(state, tl.load(far + _FAR_FLAG), epoch, tl.load(far + _FAR_PE).to(tl.int32))
        else:
            tl.atomic_xchg(flag.to(tl.pointer_type(tl.int64)), epoch, sem="release", scope="sys")


@triton.jit
def carry_chunk(words, state, epoch):
    """One operation, by all programs of a launch: its parts, quiet, count; the last one in raises the flag.

    The count of the launch is in the table, and the last one in makes it zero again.
    """
    programs = tl.num_programs(0)
    turn = tl.program_id(0)
    piece = tl.full((), _LANE, tl.int64)
    end = tl.load(words + _LANE_END)
    while piece < end:
        _carry(words + piece, tl.load(words + piece + _KIND), turn, programs)
        piece += _PIECE_WORDS
        turn = (turn + 1) % programs
    quiet()
    tl.debug_barrier()
    counted = tl.atomic_add(words + _LANE_COUNTER, 1, sem="acq_rel", scope="sys")
    if counted == programs - 1:
        tl.atomic_xchg(words + _LANE_COUNTER, 0, sem="relaxed", scope="gpu")
        flag = tl.load(words + _LANE_FLAG)
        pe = tl.load(words + _LANE_PE).to(tl.int32)
        if pe < 0:
            tl.atomic_xchg(flag.to(tl.pointer_type(tl.int64)), epoch, sem="release", scope="sys")
        else:
            raise_far(state, flag, epoch, pe)
            quiet()


@triton.jit
def _carry(piece, kind, turn, programs):
    """Every ``programs``-th part of the rows of a piece, from part ``turn`` on: a row is cut into parts of `_PART` bytes."""
    other = -1 - kind
    pe = (other // 2).to(tl.int32)
    src = tl.load(piece + _SRC)
    dst = tl.load(piece + _DST)
    width = tl.load(piece + _ROW)
    in_row = (width + (_PART - 1)) // _PART
    part = turn.to(tl.int64)
    parts = tl.load(piece + _ROWS) * in_row
    while part < parts:
        row = part // in_row
        begin = (part - row * in_row) * _PART
        size = tl.minimum(width - begin, _PART)
        there = dst + row * tl.load(piece + _DST_PITCH) + begin
        here = src + row * tl.load(piece + _SRC_PITCH) + begin
        if other % 2 == _GET:
            get_nbi(there, here, size, pe)
        else:
            put_nbi(there, here, size, pe)
        part += programs
