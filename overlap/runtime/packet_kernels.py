"""The kernels of collectives by packets (`overlap.language.packets`): one launch each, no barrier, no flag.

    exchange   every rank's piece for every other, as it is          all-gather, all-to-all
    sum        the same, and what arrives is added in rank order     all-reduce, reduce-scatter

    program    push lines of all tiles | look at own slots, tile by tile -> result | epoch + 1

``slots`` of a rank: [2 sides][rank that sends][capacity] lines. Which side a call uses is its epoch's last bit.

What a rank sends to or keeps for rank p is a box of a dense tensor: columns p * chunk to p * chunk + chunk, no further than
``total``, of ``rows`` rows of ``total`` elements. With ``PARTS`` (a split) boxes differ by rank; without, it is the tensor.
A line holds 8 bytes, elements of a box in row-major order; it is moved in units of 8, 4, 2 or 1 bytes, as alignment allows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.language.packets import LINE_BYTES, mark_of, receive, receive_four, receive_two, send
from overlap.schedule import table as _layout

UNSPECIALISED = [
    "rank", "world", "programs", "capacity", "rows", "chunk", "total", "to_rows", "to_chunk", "to_total",
]  # fmt: skip

MOST_PROGRAMS = 1024
"""Words that hold the epoch: every program reads its own, so that one program's end is no other's beginning."""
CLEAN_EVERY = 2**31
"""Calls after which lines are cleared that no call has written for as long: their marks would come round again."""

LOOKED_AT = 32
"""Lines of the kernel that measures looks."""

_LINE: tl.constexpr = tl.constexpr(LINE_BYTES)
_LOOKED_AT: tl.constexpr = tl.constexpr(LOOKED_AT)
_MOST: tl.constexpr = tl.constexpr(MOST_PROGRAMS)
_CLEAN: tl.constexpr = tl.constexpr(CLEAN_EVERY - 1)
_FAULT: tl.constexpr = tl.constexpr(_layout.S_FAULT * _layout.SLOT_WORDS)


@triton.jit
def _width(rank, chunk, total):
    """Columns of a rank's box."""
    begin = tl.minimum(rank * chunk, total)
    return tl.minimum(begin + chunk, total) - begin


@triton.jit
def _lines(elements, UNITS: tl.constexpr):
    """Lines of so many units; one at least, so that every rank hears of every other in each call."""
    return tl.maximum((elements + UNITS - 1) // UNITS, 1)


@triton.jit
def _spot(unit, rank, width, chunk, total, FLAT: tl.constexpr):
    """Where unit ``unit`` of a rank's box lies in the tensor."""
    begin = tl.minimum(rank * chunk, total)
    if FLAT:
        spot = begin + unit
    else:
        row = unit // tl.maximum(width, 1)
        spot = begin + row * total + (unit - row * width)
    return spot


@triton.jit
def _load_line(base, line, inside, rank, rows, chunk, total, UNIT: tl.constexpr, FLAT: tl.constexpr):
    """8 bytes (int64) of a rank's box, zeros past its end."""
    units: tl.constexpr = 8 // UNIT
    width = _width(rank, chunk, total)
    data = tl.zeros(line.shape, tl.int64)
    for k in tl.static_range(units):
        unit = line * units + k
        there = inside & (unit < rows * width)
        part = tl.load(base + _spot(unit, rank, width, chunk, total, FLAT), mask=there, other=0)
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
def _store_line(base, data, line, inside, rank, rows, chunk, total, UNIT: tl.constexpr, FLAT: tl.constexpr):
    """Stores 8 bytes of a rank's box, no further than its end."""
    units: tl.constexpr = 8 // UNIT
    width = _width(rank, chunk, total)
    for k in tl.static_range(units):
        unit = line * units + k
        there = inside & (unit < rows * width)
        part = (data >> (8 * UNIT * k)).to(base.dtype.element_ty)
        tl.store(base + _spot(unit, rank, width, chunk, total, FLAT), part, mask=there)


@triton.jit
def _element(data, k: tl.constexpr, DTYPE: tl.constexpr, ACCUMULATOR: tl.constexpr):
    """Element ``k`` of a line, in the type that is added in."""
    bits: tl.constexpr = DTYPE.primitive_bitwidth
    if bits == 64:
        found = data.to(DTYPE, bitcast=True)
    elif bits == 32:
        found = (data >> (32 * k)).to(tl.int32).to(DTYPE, bitcast=True)
    else:
        found = (data >> (16 * k)).to(tl.int16).to(DTYPE, bitcast=True)
    return found.to(ACCUMULATOR)


@triton.jit
def _packed(element, k: tl.constexpr, DTYPE: tl.constexpr):
    """An element of a line, rounded, where it stands in it."""
    bits: tl.constexpr = DTYPE.primitive_bitwidth
    rounded = element.to(DTYPE)
    if bits == 64:
        found = rounded.to(tl.int64, bitcast=True)
    elif bits == 32:
        found = rounded.to(tl.uint32, bitcast=True).to(tl.int64) << (32 * k)
    else:
        found = rounded.to(tl.uint16, bitcast=True).to(tl.int64) << (16 * k)
    return found


@triton.jit
def _added(total, data, rank, world, k: tl.constexpr, DTYPE: tl.constexpr, ACCUMULATOR: tl.constexpr):
    """A sum with element ``k`` of the next rank's line; the first rank's begins it, ranks past the last add nothing."""
    element = _element(data, k, DTYPE, ACCUMULATOR)
    return tl.where(rank == 0, element, tl.where(rank < world, total + element, total))


@triton.jit
def _push(src, slots, peers, mark, side, pid, rank, world, programs, capacity, rows, chunk, total,
          UNIT: tl.constexpr, FLAT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Sends this rank's lines to all others, whose slots they go into; programs share (peer, tile) pairs."""
    units: tl.constexpr = 8 // UNIT
    longest = tl.cdiv(_lines(rows * tl.minimum(chunk, total), units), BLOCK)
    lanes = tl.arange(0, BLOCK)
    if PARTS:
        for pair in range(pid, longest * (world - 1), programs):
            peer = (rank + 1 + pair % (world - 1)) % world
            line = pair // (world - 1) * BLOCK + lanes
            inside = line < _lines(rows * _width(peer, chunk, total), units)
            data = _load_line(src, line, inside, peer, rows, chunk, total, UNIT, FLAT)
            there = tl.load(peers + peer) + (side + rank * tl.cast(capacity, tl.int64) + line) * _LINE
            send(there, data, mark, inside)
    else:
        for tile in range(pid, longest, programs):
            line = tile * BLOCK + lanes
            inside = line < _lines(rows * total, units)
            data = _load_line(src, line, inside, 0, rows, chunk, total, UNIT, FLAT)
            for turn in range(1, world):
                base = tl.load(peers + (rank + turn) % world)
                send(base + (side + rank * tl.cast(capacity, tl.int64) + line) * _LINE, data, mark, inside)


@triton.jit
def _finish(slots, calls, state, epoch, side, pid, programs, late, seen, rank, world, capacity, rows, chunk, total, mine,
            UNITS: tl.constexpr, ALIKE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """What is left of a call: its record if lines did not come, lines cleared that are long unused, the next epoch.

    ``late``: addresses of lines in vain, 0 of those that came; the boxes are what every sender has sent, with ``ALIKE`` that of
    rank ``mine`` each.
    """
    lost = late != 0
    nothing = tl.zeros(late.shape, tl.int32)
    earlier = tl.atomic_xchg(state + _FAULT + nothing, 1, mask=lost, sem="relaxed", scope="gpu")
    first = lost & (earlier == 0)
    # Nothing is loaded where nothing is to be recorded, so that nobody waits for it.
    record = tl.load(state + _FAULT + 1 + nothing, mask=first, other=0).to(tl.pointer_type(tl.int64))
    tl.store(record + 1, late, mask=first)
    tl.store(record + 2, epoch, mask=first)
    tl.store(record + 3, seen.to(tl.int64), mask=first)
    tl.store(record + 4, 0, mask=first)
    tl.store(record, 1, mask=first)
    if (epoch > _CLEAN) & ((epoch & _CLEAN) < 2):
        lanes = tl.arange(0, BLOCK)
        for sender in range(world):
            if sender != rank:
                kept = _lines(rows * _width(mine if ALIKE else sender, chunk, total), UNITS)
                base = slots.to(tl.int64) + (side + sender * tl.cast(capacity, tl.int64)) * _LINE
                for begin in range(kept + pid * BLOCK, capacity, programs * BLOCK):
                    line = begin + lanes
                    send(base + tl.cast(line, tl.int64) * _LINE, tl.zeros(late.shape, tl.int64), 0, line < capacity)
    tl.store(calls + pid, epoch)
    if pid == 0:
        # Programs that this launch has not: a later one may.
        others = tl.arange(0, _MOST)
        tl.store(calls + others, epoch, mask=others >= programs)


@triton.jit(do_not_specialize=UNSPECIALISED)
def exchange_kernel(src, out, slots, peers, calls, state, rank, world, programs, capacity,
                    rows, chunk, total, to_rows, to_chunk, to_total,
                    UNIT: tl.constexpr, TO_UNIT: tl.constexpr, FLAT: tl.constexpr, TO_FLAT: tl.constexpr,
                    PARTS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Every rank's piece for every other.

    ``src``/``out``: integers of ``UNIT``/``TO_UNIT`` bytes; boxes as above, of ``out`` always by rank; ``slots``: this rank's
    lines, ``peers``: the addresses of every rank's; ``calls``: the epoch of the last call, a word a program.
    """
    pid = tl.program_id(0)
    epoch = tl.load(calls + pid) + 1
    mark = mark_of(epoch)
    side = (epoch & 1) * world * capacity
    _push(
        src,
        slots,
        peers,
        mark,
        side,
        pid,
        rank,
        world,
        programs,
        capacity,
        rows,
        chunk,
        total,
        UNIT,
        FLAT,
        PARTS,
        BLOCK,
    )
    units: tl.constexpr = 8 // TO_UNIT
    own = slots.to(tl.int64) + side * _LINE
    lanes = tl.arange(0, BLOCK)
    late = tl.zeros((BLOCK,), tl.int64)
    marks = tl.zeros((BLOCK,), tl.int32)
    longest = _lines(to_rows * tl.minimum(to_chunk, to_total), units)
    for pair in range(pid, tl.cdiv(longest, BLOCK) * world, programs):
        sender = (rank + pair % world) % world
        line = pair // world * BLOCK + lanes
        inside = line < _lines(to_rows * _width(sender, to_chunk, to_total), units)
        if sender == rank:
            data = _load_line(src, line, inside, rank if PARTS else 0, rows, chunk, total, UNIT, FLAT)
        else:
            place = own + (sender * tl.cast(capacity, tl.int64) + line) * _LINE
            data, left, seen = receive(place, inside, mark, state)
            marks = tl.where((left != 0) & (late == 0), seen, marks)
            late = tl.where((left != 0) & (late == 0), place, late)
        _store_line(out, data, line, inside, sender, to_rows, to_chunk, to_total, TO_UNIT, TO_FLAT)
    _finish(slots, calls, state, epoch, side, pid, programs, late, marks, rank, world, capacity, to_rows, to_chunk, to_total, 0,
            units, False, BLOCK)  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def sum_packets_kernel(src, out, slots, peers, calls, state, rank, world, programs, capacity,
                       rows, chunk, total, UNIT: tl.constexpr, TO_UNIT: tl.constexpr, FLAT: tl.constexpr,
                       PARTS: tl.constexpr, SENDERS: tl.constexpr, DTYPE: tl.constexpr, ACCUMULATOR: tl.constexpr,
                       BLOCK: tl.constexpr):  # fmt: skip
    """The sum of every rank's piece for this rank, added in rank order in ``ACCUMULATOR`` and rounded once.

    Arguments as of `exchange_kernel`. ``out`` is dense: integers of ``TO_UNIT`` bytes, or with 0 elements of any float type.
    ``SENDERS``: ranks whose lines are looked at together.
    """
    pid = tl.program_id(0)
    epoch = tl.load(calls + pid) + 1
    mark = mark_of(epoch)
    side = (epoch & 1) * world * capacity
    _push(
        src,
        slots,
        peers,
        mark,
        side,
        pid,
        rank,
        world,
        programs,
        capacity,
        rows,
        chunk,
        total,
        UNIT,
        FLAT,
        PARTS,
        BLOCK,
    )
    units: tl.constexpr = 8 // UNIT
    elements: tl.constexpr = 64 // DTYPE.primitive_bitwidth
    mine = rank if PARTS else 0
    width = _width(mine, chunk, total)
    lines = _lines(rows * width, units)
    own = slots.to(tl.int64) + side * _LINE
    lanes = tl.arange(0, BLOCK)
    late = tl.zeros((BLOCK,), tl.int64)
    marks = tl.zeros((BLOCK,), tl.int32)
    for tile in range(pid, tl.cdiv(lines, BLOCK), programs):
        line = tile * BLOCK + lanes
        inside = line < lines
        kept = _load_line(src, line, inside, mine, rows, chunk, total, UNIT, FLAT)
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
            lowest = (left & 1 == 0).to(tl.int64) * (
                1 + (left & 3 == 0).to(tl.int64) * (1 + (left & 7 == 0).to(tl.int64))
            )
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
                sum0 = _added(sum0, data, begin + k, world, 0, DTYPE, ACCUMULATOR)
                if elements > 1:
                    sum1 = _added(sum1, data, begin + k, world, 1, DTYPE, ACCUMULATOR)
                if elements > 2:
                    sum2 = _added(sum2, data, begin + k, world, 2, DTYPE, ACCUMULATOR)
                    sum3 = _added(sum3, data, begin + k, world, 3, DTYPE, ACCUMULATOR)
        if TO_UNIT == 0:
            # Of another type than what is added: rounded once, to that.
            count = rows * width * UNIT // (8 // elements)
            for k in tl.static_range(elements):
                added = sum0 if k == 0 else (sum1 if k == 1 else (sum2 if k == 2 else sum3))
                at = line * elements + k
                tl.store(out + at, added.to(out.dtype.element_ty), mask=inside & (at < count))
        else:
            data = _packed(sum0, 0, DTYPE)
            if elements > 1:
                data |= _packed(sum1, 1, DTYPE)
            if elements > 2:
                data |= _packed(sum2, 2, DTYPE) | _packed(sum3, 3, DTYPE)
            size = rows * width * UNIT // TO_UNIT
            _store_line(out, data, line, inside, 0, 1, size, size, TO_UNIT, True)
    _finish(slots, calls, state, epoch, side, pid, programs, late, marks, rank, world, capacity, rows, chunk, total, mine,
            units, True, BLOCK)  # fmt: skip


@triton.jit
def wait_packets_kernel(lines, state):
    """Looks at lines that nobody sends, to see how long a look takes."""
    place = lines.to(tl.int64) + tl.arange(0, _LOOKED_AT) * _LINE
    receive(place, place != 0, mark_of(tl.full((), 1, tl.int64)), state)
