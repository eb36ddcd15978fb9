"""Words of kernels in which some programs of the launch move chunks; the table they read is `overlap.schedule.moves`.

The moving programs come first in launch order, so that they are resident before any tile waits for what they bring.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import moves as _table

from .boxes import copy_boxes, copy_small_boxes
from .flags import after, after_async, landed, poll

_HEADER: tl.constexpr = tl.constexpr(_table.HEADER_WORDS)
_PROGRAMS: tl.constexpr = tl.constexpr(_table.H_PROGRAMS)
_GRID: tl.constexpr = tl.constexpr(_table.H_GRID)
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
_IN_ROW: tl.constexpr = tl.constexpr(_table.IN_ROW)
_BOXES: tl.constexpr = tl.constexpr(_table.BOXES)
_SRC: tl.constexpr = tl.constexpr(_table.P_SRC)
_DST: tl.constexpr = tl.constexpr(_table.P_DST)
_WORDS: tl.constexpr = tl.constexpr(_table.P_WORDS)
_ROW: tl.constexpr = tl.constexpr(_table.P_ROW)
_SRC_PITCH: tl.constexpr = tl.constexpr(_table.P_SRC_PITCH)
_DST_PITCH: tl.constexpr = tl.constexpr(_table.P_DST_PITCH)
_STAGES: tl.constexpr = tl.constexpr(_table.STAGES)
_PAIRS: tl.constexpr = tl.constexpr(_table.BLOCK_BYTES // 16)
_NARROW: tl.constexpr = tl.constexpr(1024)
_LOAD_STORE: tl.constexpr = tl.constexpr("load/store")
_REGISTERS: tl.constexpr = tl.constexpr("load/store, without shared memory")
_TMA: tl.constexpr = tl.constexpr("tma store")
_SMALL_TMA: tl.constexpr = tl.constexpr("tma store, a small box at a time")
_BETWEEN_PAIRS: tl.constexpr = tl.constexpr(1024)
_BOX_ROWS: tl.constexpr = tl.constexpr(_table.BOX_ROWS)


@triton.jit
def moving(moves):
    """Whether this program moves chunks."""
    return tl.program_id(0) < tl.load(moves + _PROGRAMS)


@triton.jit
def computing_position(moves):
    """Position in launch order among the programs that compute."""
    return tl.program_id(0) - tl.load(moves + _PROGRAMS).to(tl.int32)


@triton.jit
def computing_programs(moves, axis: tl.constexpr = 0):
    """Extent along ``axis`` of the grid of the programs that compute, as the kernel would have been launched with."""
    return tl.load(moves + _GRID + axis).to(tl.int32)


@triton.jit
def computing_id(moves, axis: tl.constexpr = 0):
    """``tl.program_id(axis)`` in that grid; the launch itself is one-dimensional."""
    position = computing_position(moves)
    if axis == 0:
        return position % computing_programs(moves, 0)
    position = position // computing_programs(moves, 0)
    if axis == 1:
        return position % computing_programs(moves, 1)
    return position // computing_programs(moves, 1)


@triton.jit
def move_chunks(moves, state, epoch, TRANSPORT: tl.constexpr = _LOAD_STORE):
    """Makes this program's part of every move of its group: awaits what it depends on, copies, counts; the last one in
    raises the flag.

    Args:
        TRANSPORT: how a part is copied (`_make_part`).
    """
    mine = moves + _HEADER + tl.program_id(0) * _PROGRAM_WORDS
    move = moves + tl.load(mine + _FIRST)
    number = tl.load(mine + _NUMBER).to(tl.int32)
    programs = tl.load(mine + _IN_GROUP).to(tl.int32)
    for _ in range(tl.load(mine + _MOVES).to(tl.int32)):
        _make_part(moves, move, number, programs, state, epoch, TRANSPORT, TRANSPORT == _TMA)
        move += _MOVE_WORDS


@triton.jit
def move_chunks_async(moves, state, epoch):
    """As `move_chunks`, by TMA where a piece of a chunk is `BOXES` (sm_90)."""
    move_chunks(moves, state, epoch, _TMA)


@triton.jit
def _make_part(moves, move, number, programs, state, epoch, TRANSPORT: tl.constexpr, LANDED: tl.constexpr, memory=0):
    """Makes part ``number`` of ``programs`` of a move: awaits, copies, counts; the last one in raises the flag.

    ``memory``: what small boxes are copied through. ``LANDED``: the barrier behind the copies is `landed`. Each program acquires
    the flags for itself, and its loads depend on what it saw. Counting acquires and releases at system scope, so that the flag
    stands for the stores of all programs of the group, in peers' memory too.
    """
    boxes: tl.constexpr = (TRANSPORT == _TMA) | (TRANSPORT == _SMALL_TMA)
    tl.static_assert(boxes | (TRANSPORT == _LOAD_STORE) | (TRANSPORT == _REGISTERS), "a move goes by load/store or TMA")
    seen = epoch
    i = tl.load(move + _AWAIT)
    end = tl.load(move + _AWAIT_END)
    while i < end:
        seen = tl.minimum(seen, poll(tl.load(moves + i).to(tl.pointer_type(tl.int64)), epoch, state))
        i += 1
    piece = tl.load(move + _PIECE)
    last_piece = tl.load(move + _PIECE_END)
    if boxes:
        turn = after_async(number, seen)
    else:
        turn = after(number, seen)
    while piece < last_piece:
        _copy(moves + piece, turn, programs, TRANSPORT, memory)
        piece += _PIECE_WORDS
        # Pieces smaller than a block fall to one program after another.
        turn = (turn + 1) % programs
    at = _COUNTER + tl.zeros((), tl.int32)
    if LANDED:
        at = landed(at)
    else:
        tl.debug_barrier()
    counter = state + tl.load(move + at)
    counted = tl.atomic_add(counter, 1, sem="acq_rel", scope="sys")
    flag = tl.load(move + _FLAG).to(tl.pointer_type(tl.int64))
    tl.atomic_xchg(flag, epoch, mask=counted == programs - 1, sem="release", scope="sys")


@triton.jit
def _copy(piece, turn, programs, TRANSPORT: tl.constexpr, memory=0):
    """Every ``programs``-th block or box of a piece, from number ``turn`` on."""
    kind = tl.load(piece + _KIND)
    if TRANSPORT == _TMA:
        if kind == _BOXES:
            copy_boxes(piece, turn, programs, _BOX_ROWS, _STAGES)
        else:
            _copy_words(piece, kind, turn, programs, _PAIRS, _STAGES)
    elif TRANSPORT == _SMALL_TMA:
        if kind == _BOXES:
            copy_small_boxes(piece, turn, programs, memory)
        else:
            _copy_words(piece, kind, turn, programs, _BETWEEN_PAIRS, 0)
    elif TRANSPORT == _REGISTERS:
        _copy_words(piece, kind, turn, programs, _BETWEEN_PAIRS, 0)
    elif kind == _IN_ROW:
        _copy_row(piece, turn, programs)
    else:
        _copy_words(piece, kind, turn, programs, _PAIRS, _STAGES)


@triton.jit
def _copy_words(piece, kind, turn, programs, PAIRS: tl.constexpr, STAGES: tl.constexpr):
    """The same of a piece in rows of words of ``kind`` bytes, those of 16 in blocks of ``PAIRS``; ``STAGES`` 0: no pipeline."""
    narrow: tl.constexpr = min(STAGES, 1)
    if (kind == 16) | (kind == _IN_ROW):
        _copy_rows(piece, turn, programs, tl.int64, 2, PAIRS, STAGES)
    elif kind == 4:
        _copy_rows(piece, turn, programs, tl.int32, 1, _NARROW, narrow)
    else:
        _copy_rows(piece, turn, programs, tl.int8, 1, _NARROW, narrow)


@triton.jit
def _copy_row(piece, turn, programs):
    """One row of 16-byte words, two elements each."""
    src = tl.multiple_of(tl.load(piece + _SRC).to(tl.pointer_type(tl.int64)), 16)
    dst = tl.multiple_of(tl.load(piece + _DST).to(tl.pointer_type(tl.int64)), 16)
    count = tl.load(piece + _WORDS).to(tl.int32) * 2
    block: tl.constexpr = _PAIRS * 2
    for start in tl.range(turn * block, count, programs * block, num_stages=_STAGES):
        i = start + tl.arange(0, block)
        inside = i < count
        tl.store(dst + i, tl.load(src + i, mask=inside), mask=inside)


@triton.jit
def _copy_rows(
    piece,
    turn,
    programs,
    ELEMENT: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Rows of words of ``LANES`` elements, pipelined in ``STAGES``; 0: through registers alone."""
    size: tl.constexpr = LANES * ELEMENT.primitive_bitwidth // 8
    src = tl.multiple_of(tl.load(piece + _SRC).to(tl.pointer_type(ELEMENT)), size)
    dst = tl.multiple_of(tl.load(piece + _DST).to(tl.pointer_type(ELEMENT)), size)
    words = tl.load(piece + _WORDS).to(tl.int32)
    row = tl.load(piece + _ROW).to(tl.int32)
    src_pitch = tl.load(piece + _SRC_PITCH)
    dst_pitch = tl.load(piece + _DST_PITCH)
    if STAGES > 0:
        for start in tl.range(turn * BLOCK, words, programs * BLOCK, num_stages=STAGES):
            _copy_block(src, dst, start, words, row, src_pitch, dst_pitch, LANES, BLOCK)
    else:
        # A `while`: with a second `for` in it a tile loop would not be flattened.
        start = turn * BLOCK
        while start < words:
            _copy_block(src, dst, start, words, row, src_pitch, dst_pitch, LANES, BLOCK)
            start += programs * BLOCK


@triton.jit
def _copy_block(src, dst, start, words, row, src_pitch, dst_pitch, LANES: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, LANES)
    i = start + tl.arange(0, BLOCK)
    inside = (i < words)[:, None]
    r = (i // row).to(tl.int64)
    c = (i % row).to(tl.int64) * LANES
    # Every term is a multiple of the word, which the compiler cannot see in a table.
    at = tl.multiple_of(r * src_pitch + c, LANES)
    to = tl.multiple_of(r * dst_pitch + c, LANES)
    value = tl.load(src + (at[:, None] + lanes[None, :]), mask=inside)
    tl.store(dst + (to[:, None] + lanes[None, :]), value, mask=inside)
