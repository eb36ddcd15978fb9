"""Words of kernels that send the tiles of a result in packets (`overlap.language.packets`) and add up what comes, in one launch.

    program   tile stored | barrier | its lines to every receiver | next tile ... | hello | looks, adds, stores | looks for hellos

`overlap.schedule.words` is the table that says who gets what. ``words`` of a rank: `MOST_PROGRAMS` epochs, one a program, then
two sides of lines; call e uses side e % 2.

Two sides are enough, as for the collectives of `overlap.runtime.packets.low_latency`: in each call every rank says hello to every
other, whatever else there is to send, and no launch ends before it has heard all. So who has ended call e - 1 knows that all
others had ended call e - 2, and with it read what lies on the side that call e writes.

What a program sends it has stored itself, ahead of a CTA barrier, so that plain loads find it. Nothing that another program
made is read but by words: what a rank adds of its own comes through its own slots.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import table as _layout
from overlap.schedule import words as _words

from .flags import landed
from .packed import added, element, packed
from .packets import CLEAN_EVERY, LINE_BYTES, MOST_PROGRAMS, mark_of, receive, receive_four, record_late, send

WHOLE: tl.constexpr = tl.constexpr(2**31 - 1)
"""Block of a dimension that no tile axis spans: all of it."""

_RUN_WORDS: tl.constexpr = tl.constexpr(_layout.RUN_WORDS)
_R_WAY: tl.constexpr = tl.constexpr(_layout.R_WAY)
_LINE: tl.constexpr = tl.constexpr(LINE_BYTES)
_MOST: tl.constexpr = tl.constexpr(MOST_PROGRAMS)
_CLEAN: tl.constexpr = tl.constexpr(CLEAN_EVERY - 1)
_HEADER: tl.constexpr = tl.constexpr(_words.HEADER_WORDS)
_SIDE: tl.constexpr = tl.constexpr(_words.H_SIDE)
_RANK: tl.constexpr = tl.constexpr(_words.H_RANK)
_WORLD: tl.constexpr = tl.constexpr(_words.H_WORLD)
_NUMBER: tl.constexpr = tl.constexpr(_words.H_NUMBER)
_PIECES: tl.constexpr = tl.constexpr(_words.H_PIECES)
_FIRST_PIECE: tl.constexpr = tl.constexpr(_words.H_FIRST_PIECE)
_USED: tl.constexpr = tl.constexpr(_words.H_USED)
_CAPACITY: tl.constexpr = tl.constexpr(_words.H_CAPACITY)
_STRIDES: tl.constexpr = tl.constexpr(_words.H_STRIDES)
_ADDRESS: tl.constexpr = tl.constexpr(_words.R_ADDRESS)
_LO: tl.constexpr = tl.constexpr(_words.R_LO)
_HI: tl.constexpr = tl.constexpr(_words.R_HI)
_PIECE: tl.constexpr = tl.constexpr(_words.PIECE_WORDS)
_LINES: tl.constexpr = tl.constexpr(_words.P_LINES)
_ROWS: tl.constexpr = tl.constexpr(_words.P_ROWS)
_WIDTH: tl.constexpr = tl.constexpr(_words.P_WIDTH)
_COUNT: tl.constexpr = tl.constexpr(_words.P_COUNT)
_FIRST: tl.constexpr = tl.constexpr(_words.P_FIRST)
_BLOCK: tl.constexpr = tl.constexpr(_words.P_BLOCK)
_OUT: tl.constexpr = tl.constexpr(_words.P_OUT)
_OUT_STRIDES: tl.constexpr = tl.constexpr(_words.P_STRIDES)
_PACKED: tl.constexpr = tl.constexpr(_words.P_PACKED)
_SUMMAND: tl.constexpr = tl.constexpr(_words.SUMMAND_WORDS)


@triton.jit
def _position():
    return tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))


@triton.jit
def _units(pointer, UNIT: tl.constexpr):
    """The same address, of integers of ``UNIT`` bytes."""
    if UNIT == 8:
        found = pointer.to(tl.pointer_type(tl.int64))
    elif UNIT == 4:
        found = pointer.to(tl.pointer_type(tl.int32))
    elif UNIT == 2:
        found = pointer.to(tl.pointer_type(tl.int16))
    else:
        found = pointer.to(tl.pointer_type(tl.int8))
    return found


@triton.jit
def _bits(data, UNIT: tl.constexpr):
    """Integers of ``UNIT`` bytes as the lowest of 8, zeros above (int64)."""
    if UNIT == 8:
        found = data
    elif UNIT == 4:
        found = data.to(tl.uint32, bitcast=True).to(tl.int64)
    elif UNIT == 2:
        found = data.to(tl.uint16, bitcast=True).to(tl.int64)
    else:
        found = data.to(tl.uint8, bitcast=True).to(tl.int64)
    return found


@triton.jit
def _send_tile(table, run, slots, words, made, UNIT: tl.constexpr, LANES: tl.constexpr,
               begin0, block0, begin1, block1, begin2, block2):  # fmt: skip
    """Sends what lies in the box of a tile, from ``begin`` on in each dimension, to whoever adds any of it.

    ``UNIT``: bytes of a row in a line; ``LANES``: lines at a time, one a thread.
    """
    size: tl.constexpr = made.dtype.element_ty.primitive_bitwidth // 8
    each: tl.constexpr = UNIT // size
    epoch = tl.load(words + _position()) + 1
    mark = mark_of(epoch)
    side = (epoch & 1) * tl.load(slots + _SIDE)
    step0 = tl.load(slots + _STRIDES)
    step1 = tl.load(slots + _STRIDES + 1)
    step2 = tl.load(slots + _STRIDES + 2)
    data = _units(made, UNIT)
    for way in range(tl.load(table + run + _R_WAY), tl.load(table + run + _RUN_WORDS + _R_WAY)):
        to = slots + tl.load(slots + way)
        base = tl.load(to + _ADDRESS) + side
        lo0 = tl.load(to + _LO).to(tl.int32)
        lo1 = tl.load(to + _LO + 1).to(tl.int32)
        lo2 = tl.load(to + _LO + 2).to(tl.int32)
        hi0 = tl.load(to + _HI).to(tl.int32)
        hi1 = tl.load(to + _HI + 1).to(tl.int32)
        hi2 = tl.load(to + _HI + 2).to(tl.int32)
        from0 = tl.maximum(lo0, begin0)
        from1 = tl.maximum(lo1, begin1)
        from2 = tl.maximum(lo2, begin2)
        # No sum of a begin and a block: that of a whole dimension would pass 2^31.
        count0 = tl.maximum(tl.minimum(hi0 - from0, block0 - (from0 - begin0)), 0)
        count1 = tl.maximum(tl.minimum(hi1 - from1, block1 - (from1 - begin1)), 0)
        count2 = tl.maximum(tl.minimum(hi2 - from2, block2 - (from2 - begin2)), 0) // each
        for start in range(0, count0 * count1 * count2, LANES):
            i = start + tl.arange(0, LANES)
            inside = i < count0 * count1 * count2
            i2 = i % count2
            i1 = i // count2 % count1
            i0 = i // count2 // count1
            at = (from0 + i0) * step0 + (from1 + i1) * step1 + (from2 + i2 * each) * step2
            if step2 == 1:
                # Rows are as long as lines divide them, wherever they begin.
                line = _bits(tl.load(data + at // each, mask=inside, other=0), UNIT)
            else:
                line = tl.zeros((LANES,), tl.int64)
                for k in tl.static_range(each):
                    line |= packed(tl.load(made + at + k * step2, mask=inside, other=0), k, made.dtype.element_ty)
            row = (from0 - lo0 + i0) * (hi1 - lo1) + from1 - lo1 + i1
            number = row.to(tl.int64) * ((hi2 - lo2) // each) + (from2 - lo2) // each + i2
            send(base + number * _LINE, line, mark, inside)


@triton.jit
def send_words(table, run, slots, words, made, UNIT: tl.constexpr, LANES: tl.constexpr,
               begin0, block0, begin1, block1, begin2, block2):  # fmt: skip
    """Sends a tile that this program has stored, by pointers, to whoever adds any of it."""
    tl.debug_barrier()
    _send_tile(table, run, slots, words, made, UNIT, LANES, begin0, block0, begin1, block1, begin2, block2)


@triton.jit
def send_words_async(table, run, slots, words, made, UNIT: tl.constexpr, LANES: tl.constexpr,
                     begin0, block0, begin1, block1, begin2, block2):  # fmt: skip
    """As `send_words`, of a tile that was stored by TMA (sm_90)."""
    _send_tile(table, landed(run), slots, words, made, UNIT, LANES, begin0, block0, begin1, block1, begin2, block2)


@triton.jit
def sum_words(slots, words, state, made, out, UNIT: tl.constexpr, LANES: tl.constexpr, ACCUMULATOR: tl.constexpr):
    """The end of a program: its share of the rank's part of the result, added in rank order and rounded once, into ``out``.

    ``made``: the kernel's own result, for its dtype; what only one rank makes arrives bit by bit.
    """
    DTYPE: tl.constexpr = made.dtype.element_ty
    to_type: tl.constexpr = out.dtype.element_ty
    each: tl.constexpr = UNIT * 8 // DTYPE.primitive_bitwidth
    pid = _position()
    programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
    epoch = tl.load(words + pid) + 1
    mark = mark_of(epoch)
    side = (epoch & 1) * tl.load(slots + _SIDE)
    own = (words + _MOST).to(tl.int64) + side
    lanes = tl.arange(0, LANES)
    late = tl.zeros((LANES,), tl.int64)
    marks = tl.zeros((LANES,), tl.int32)
    nothing = tl.zeros((LANES,), tl.int64)
    rank = tl.load(slots + _RANK).to(tl.int32)
    world = tl.load(slots + _WORLD).to(tl.int32)
    # One program says hello and hears the others.
    greeted = tl.where(pid == 0, world, 0)
    for peer in range(0, greeted, LANES):
        there = (peer + lanes < world) & (peer + lanes != rank)
        send(tl.load(slots + _HEADER + peer + lanes, mask=there, other=0) + side, nothing, mark, there)
    for number in range(tl.load(slots + _PIECES).to(tl.int32)):
        piece = slots + tl.load(slots + _FIRST_PIECE) + number * _PIECE
        lines = tl.load(piece + _LINES).to(tl.int32)
        rows = tl.load(piece + _ROWS).to(tl.int32)
        width = tl.load(piece + _WIDTH).to(tl.int32)
        count = tl.load(piece + _COUNT).to(tl.int32)
        first = slots + tl.load(piece + _FIRST)
        to = tl.load(piece + _OUT)
        to0 = tl.load(piece + _OUT_STRIDES)
        to1 = tl.load(piece + _OUT_STRIDES + 1)
        to2 = tl.load(piece + _OUT_STRIDES + 2)
        whole = tl.load(piece + _PACKED) != 0
        # Pieces are dealt out one behind the other, so that small ones do not all fall to the same programs.
        turn = (pid - tl.load(piece + _BLOCK).to(tl.int32) % programs + programs) % programs
        for start in range(turn * LANES, lines, programs * LANES):
            i = start + lanes
            inside = i < lines
            i2 = i % width
            i1 = i // width % rows
            i0 = i // width // rows
            moved = nothing
            sum0 = tl.zeros((LANES,), ACCUMULATOR)
            sum1 = sum0
            sum2 = sum0
            sum3 = sum0
            for j0 in range(0, count, 4):
                wanted = inside.to(tl.int32)
                wanted |= (inside & (j0 + 1 < count)).to(tl.int32) * 2
                wanted |= (inside & (j0 + 2 < count)).to(tl.int32) * 4
                wanted |= (inside & (j0 + 3 < count)).to(tl.int32) * 8
                place0 = own + _line(first, j0, count, i0, i1, i2) * _LINE
                place1 = own + _line(first, j0 + 1, count, i0, i1, i2) * _LINE
                place2 = own + _line(first, j0 + 2, count, i0, i1, i2) * _LINE
                place3 = own + _line(first, j0 + 3, count, i0, i1, i2) * _LINE
                data0, data1, data2, data3, left, seen = receive_four(
                    place0, place1, place2, place3, wanted, mark, state
                )
                # The lowest bit that is left is the first summand that has not come.
                missing = tl.where(
                    left & 1 != 0, place0, tl.where(left & 2 != 0, place1, tl.where(left & 4 != 0, place2, place3))
                )
                marks = tl.where((left != 0) & (late == 0), seen, marks)
                late = tl.where((left != 0) & (late == 0), missing, late)
                moved = tl.where(j0 == 0, data0, moved)
                for k in tl.static_range(4):
                    if k == 0:
                        data = data0
                    elif k == 1:
                        data = data1
                    elif k == 2:
                        data = data2
                    else:
                        data = data3
                    sum0 = added(sum0, data, j0 + k, count, 0, DTYPE, ACCUMULATOR)
                    if each > 1:
                        sum1 = added(sum1, data, j0 + k, count, 1, DTYPE, ACCUMULATOR)
                    if each > 2:
                        sum2 = added(sum2, data, j0 + k, count, 2, DTYPE, ACCUMULATOR)
                        sum3 = added(sum3, data, j0 + k, count, 3, DTYPE, ACCUMULATOR)
            at = to + i0 * to0 + i1 * to1 + i2 * each * to2
            if whole:
                line = packed(sum0, 0, DTYPE)
                if each > 1:
                    line |= packed(sum1, 1, DTYPE)
                if each > 2:
                    line |= packed(sum2, 2, DTYPE) | packed(sum3, 3, DTYPE)
                units = _units(out, UNIT)
                line = tl.where(count == 1, moved, line)
                tl.store(units + at // each, line.to(units.dtype.element_ty), mask=inside)
            else:
                for k in tl.static_range(each):
                    value = sum0 if k == 0 else (sum1 if k == 1 else (sum2 if k == 2 else sum3))
                    value = tl.where(count == 1, element(moved, k, DTYPE).to(to_type), value.to(to_type))
                    tl.store(out + at + k * to2, value, mask=inside)
    for peer in range(0, greeted, LANES):
        there = (peer + lanes < world) & (peer + lanes != rank)
        place = own + (peer + lanes) * _LINE
        data, left, seen = receive(place, there, mark, state)
        marks = tl.where((left != 0) & (late == 0), seen, marks)
        late = tl.where((left != 0) & (late == 0), place, late)
    record_late(state, late, epoch, marks, tl.load(slots + _NUMBER))
    if (epoch > _CLEAN) & ((epoch & _CLEAN) < 2):
        # Lines that this launch has not: their marks would come round again.
        capacity = tl.load(slots + _CAPACITY)
        for begin in range(tl.load(slots + _USED) + pid * LANES, capacity, programs * LANES):
            send(own + (begin + lanes) * _LINE, nothing, 0, begin + lanes < capacity)
    # Every thread has read the epoch that one now replaces.
    tl.debug_barrier()
    tl.store(words + pid, epoch)
    if pid == 0:
        # Programs that this launch has not: a later one may.
        others = tl.arange(0, _MOST)
        tl.store(words + others, epoch, mask=others >= programs)


@triton.jit
def _line(first, j, count, i0, i1, i2):
    """Line of a side where element (i0, i1, i2), in lines, of a piece's ``j``-th summand is; of the last where there is none."""
    summand = first + tl.minimum(j, count - 1) * _SUMMAND
    return tl.load(summand) + i0 * tl.load(summand + 1) + i1 * tl.load(summand + 2) + i2
