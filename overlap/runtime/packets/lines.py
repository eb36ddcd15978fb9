"""Parts of the kernels of collectives by packets: boxes of a tensor as lines, sending them, adding them, and the end of a call.

What a rank sends to or keeps for rank p is a box of a dense tensor: columns p * chunk to p * chunk + chunk, no further than
``total``, of ``rows`` rows of ``total`` elements. With ``PARTS`` (a split) boxes differ by rank; without, it is the tensor.
A line holds 8 bytes, elements of a box in row-major order; it is moved in units of 8, 4, 2 or 1 bytes, as alignment allows.

``slots`` of a rank: [2 sides][2 steps][rank that sends][capacity] lines. Which side a call uses is its epoch's last bit; only a
two-step all-reduce has a second step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.language.packed import added, packed
from overlap.language.packets import (
    CLEAN_EVERY,
    LINE_BYTES,
    MOST_PROGRAMS,
    mark_of,
    receive,
    receive_four,
    receive_two,
    record_late,
    send,
)

SIDES, STEPS = 2, 2

_LINE: tl.constexpr = tl.constexpr(LINE_BYTES)
_STEPS: tl.constexpr = tl.constexpr(STEPS)
_MOST: tl.constexpr = tl.constexpr(MOST_PROGRAMS)
_CLEAN: tl.constexpr = tl.constexpr(CLEAN_EVERY - 1)


@triton.jit
def side_of(epoch, world, capacity):
    """Where the slots of a call begin, in lines (int64)."""
    return (epoch & 1) * _STEPS * world * capacity


@triton.jit
def width_of(rank, chunk, total):
    """Columns of a rank's box."""
    begin = tl.minimum(rank * chunk, total)
    return tl.minimum(begin + chunk, total) - begin


@triton.jit
def lines_of(elements, UNITS: tl.constexpr):
    """Lines of so many units; one at least, so that every rank hears of every other in each call."""
    return tl.maximum((elements + UNITS - 1) // UNITS, 1)


@triton.jit
def spot_of(unit, rank, width, chunk, total, FLAT: tl.constexpr):
    """Where unit ``unit`` of a rank's box lies in the tensor."""
    begin = tl.minimum(rank * chunk, total)
    if FLAT:
        spot = begin + unit
    else:
        row = unit // tl.maximum(width, 1)
        spot = begin + row * total + (unit - row * width)
    return spot


@triton.jit
def load_line(base, line, inside, rank, rows, chunk, total, UNIT: tl.constexpr, FLAT: tl.constexpr):
    """8 bytes (int64) of a rank's box, zeros past its end."""
    units: tl.constexpr = 8 // UNIT
    width = width_of(rank, chunk, total)
    data = tl.zeros(line.shape, tl.int64)
    for k in tl.static_range(units):
        unit = line * units + k
        there = inside & (unit < rows * width)
        part = tl.load(base + spot_of(unit, rank, width, chunk, total, FLAT), mask=there, other=0)
        if UNIT == 8:
            data = part
        elif UNIT == 4:
            data |= part.to(tl.uint32, bitcast=True).to(tl.int64) << (32 * k)
        elif UNIT == 2:
            data |= part.to(tl.uint16, bitcast=True).to(tl.int64) << (16 * k)
        else:
            data |= part.to(tl.uint8, bitcast=True).to(tl.int64) << (8 * k)
    return data


@triton.jit
def store_line(base, data, line, inside, rank, rows, chunk, total, UNIT: tl.constexpr, FLAT: tl.constexpr):
    """Stores 8 bytes of a rank's box, no further than its end."""
    units: tl.constexpr = 8 // UNIT
    width = width_of(rank, chunk, total)
    for k in tl.static_range(units):
        unit = line * units + k
        there = inside & (unit < rows * width)
        part = (data >> (8 * UNIT * k)).to(base.dtype.element_ty)
        tl.store(base + spot_of(unit, rank, width, chunk, total, FLAT), part, mask=there)


@triton.jit
def _share(src, number, rank, world, rows, chunk, total,
           UNIT: tl.constexpr, FLAT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """What a program sends at a time: a tile of the lines for one rank, the first to get it where all get the same."""
    units: tl.constexpr = 8 // UNIT
    lanes = tl.arange(0, BLOCK)
    if PARTS:
        others = tl.maximum(world - 1, 1)
        peer = (rank + 1 + number % others) % world
        line = number // others * BLOCK + lanes
        inside = line < lines_of(rows * width_of(peer, chunk, total), units)
        data = load_line(src, line, inside, peer, rows, chunk, total, UNIT, FLAT)
    else:
        peer = (rank + 1) % world
        line = number * BLOCK + lanes
        inside = line < lines_of(rows * total, units)
        data = load_line(src, line, inside, 0, rows, chunk, total, UNIT, FLAT)
    return peer, line, inside, data


@triton.jit
def push(src, peers, calls, pid, rank, world, programs, capacity, rows, chunk, total,
         UNIT: tl.constexpr, FLAT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Begins a call and sends this rank's lines to all others, into their slots; its epoch, mark and side.

    What is loaded first is loaded at once: the epoch, where the first peer's slots are and the first tile.
    """
    units: tl.constexpr = 8 // UNIT
    peer, line, inside, data = _share(src, pid, rank, world, rows, chunk, total, UNIT, FLAT, PARTS, BLOCK)
    base = tl.load(peers + peer)
    epoch = tl.load(calls + pid) + 1
    mark = mark_of(epoch)
    side = side_of(epoch, world, capacity)
    place = side + rank * tl.cast(capacity, tl.int64)
    count = tl.cdiv(lines_of(rows * tl.minimum(chunk, total), units), BLOCK)
    if PARTS:
        count = count * (world - 1)
    for number in range(pid, count, programs):
        if PARTS:
            send(base + (place + line) * _LINE, data, mark, inside)
        else:
            for turn in range(1, world):
                send(base + (place + line) * _LINE, data, mark, inside)
                base = tl.load(peers + (rank + turn + 1) % world)
        peer, line, inside, data = _share(
            src, number + programs, rank, world, rows, chunk, total, UNIT, FLAT, PARTS, BLOCK
        )
        base = tl.load(peers + peer)
    return epoch, mark, side


@triton.jit
def finish(slots, calls, state, epoch, side, pid, programs, late, seen, rank, world, capacity,
           rows, chunk, total, mine, then_chunk, then_total,
           UNITS: tl.constexpr, ALIKE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """What is left of a call: its record if lines did not come, lines cleared that are long unused, the next epoch.

    ``late``: addresses of lines in vain, 0 of those that came; the boxes are what every sender has sent, with ``ALIKE`` that of
    rank ``mine`` each; ``then_chunk``, ``then_total``: the lines that each has sent its box of in a second step, 0 without one.
    """
    record_late(state, late, epoch, seen, 0)
    if (epoch > _CLEAN) & ((epoch & _CLEAN) < 2):
        lanes = tl.arange(0, BLOCK)
        for sender in range(world):
            if sender != rank:
                kept = lines_of(rows * width_of(mine if ALIKE else sender, chunk, total), UNITS)
                base = slots.to(tl.int64) + (side + sender * tl.cast(capacity, tl.int64)) * _LINE
                then = lines_of(width_of(sender, then_chunk, then_total), 1)
                for step in range(2):
                    used = tl.where(step == 0, kept, tl.where(then_total > 0, then, 0))
                    for begin in range(used + pid * BLOCK, capacity, programs * BLOCK):
                        line = begin + lanes
                        send(base + tl.cast(line, tl.int64) * _LINE, tl.zeros(late.shape, tl.int64), 0, line < capacity)
                    base += world * tl.cast(capacity, tl.int64) * _LINE
    # Every thread has read the epoch that one now replaces.
    tl.debug_barrier()
    tl.store(calls + pid, epoch)
    if pid == 0:
        # Programs that this launch has not: a later one may.
        others = tl.arange(0, _MOST)
        tl.store(calls + others, epoch, mask=others >= programs)


@triton.jit
def sum_lines(own, kept, line, inside, mark, state, rank, world, capacity, late, marks,
              SENDERS: tl.constexpr, DTYPE: tl.constexpr, ACCUMULATOR: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The sums of all ranks' lines in rank order, of elements 0 to 3 of a line as far as it has them; then what came late.

    ``own``: the address of this side's slots; ``kept``: this rank's lines, which are sent to nobody.
    """
    elements: tl.constexpr = 64 // DTYPE.primitive_bitwidth
    sum0 = tl.zeros((BLOCK,), ACCUMULATOR)
    sum1 = sum0
    sum2 = sum0
    sum3 = sum0
    for begin in range(0, world, SENDERS):
        place = own + (begin * tl.cast(capacity, tl.int64) + line) * _LINE
        step = tl.cast(capacity, tl.int64) * _LINE
        wanted = (inside & (begin != rank)).to(tl.int32)
        if SENDERS > 1:
            wanted |= (inside & (begin + 1 != rank) & (begin + 1 < world)).to(tl.int32) * 2
        if SENDERS > 2:
            wanted |= (inside & (begin + 2 != rank) & (begin + 2 < world)).to(tl.int32) * 4
            wanted |= (inside & (begin + 3 != rank) & (begin + 3 < world)).to(tl.int32) * 8
        if SENDERS == 1:
            data0, left, seen = receive(place, wanted, mark, state)
        elif SENDERS == 2:
            data0, data1, left, seen = receive_two(place, place + step, wanted, mark, state)
        else:
            data0, data1, data2, data3, left, seen = receive_four(
                place, place + step, place + 2 * step, place + 3 * step, wanted, mark, state
            )
        # The lowest bit that is left is the first sender that has not come.
        lowest = (left & 1 == 0).to(tl.int64) * (1 + (left & 3 == 0).to(tl.int64) * (1 + (left & 7 == 0).to(tl.int64)))
        marks = tl.where((left != 0) & (late == 0), seen, marks)
        late = tl.where((left != 0) & (late == 0), place + lowest * step, late)
        for k in tl.static_range(SENDERS):
            if k == 0:
                got = data0
            elif k == 1:
                got = data1
            elif k == 2:
                got = data2
            else:
                got = data3
            data = tl.where(begin + k == rank, kept, got)
            sum0 = added(sum0, data, begin + k, world, 0, DTYPE, ACCUMULATOR)
            if elements > 1:
                sum1 = added(sum1, data, begin + k, world, 1, DTYPE, ACCUMULATOR)
            if elements > 2:
                sum2 = added(sum2, data, begin + k, world, 2, DTYPE, ACCUMULATOR)
                sum3 = added(sum3, data, begin + k, world, 3, DTYPE, ACCUMULATOR)
    return sum0, sum1, sum2, sum3, late, marks


@triton.jit
def packed_line(sum0, sum1, sum2, sum3, DTYPE: tl.constexpr):
    """A line of sums, each rounded once."""
    elements: tl.constexpr = 64 // DTYPE.primitive_bitwidth
    data = packed(sum0, 0, DTYPE)
    if elements > 1:
        data |= packed(sum1, 1, DTYPE)
    if elements > 2:
        data |= packed(sum2, 2, DTYPE) | packed(sum3, 3, DTYPE)
    return data
