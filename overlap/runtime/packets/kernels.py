"""The kernels of collectives by packets (`overlap.language.packets`): one launch each, no barrier, no flag.

    exchange   every rank's piece for every other, as it is          all-gather, all-to-all
    sum        the same, and what arrives is added in rank order     all-reduce, reduce-scatter
    two_step   each rank adds a part, and sends the sums to all      all-reduce

    program    push lines of all tiles | look at own slots, tile by tile -> result | epoch + 1

Arguments of all: ``src``/``out``, integers of ``UNIT``/``TO_UNIT`` bytes; boxes of them as `lines` says; ``slots``: this
rank's lines, ``peers``: the addresses of every rank's; ``calls``: the epoch of the last call, a word a program.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.language.awaits import await_stream
from overlap.language.packets import LINE_BYTES, mark_of, receive, send

from .lines import (
    finish,
    lines_of,
    load_line,
    packed_line,
    push,
    side_of,
    store_line,
    sum_lines,
    width_of,
)

UNSPECIALISED = [
    "rank", "world", "programs", "capacity", "rows", "chunk", "total", "to_rows", "to_chunk", "to_total", "size", "to_size",
]  # fmt: skip

LOOKED_AT = 32
"""Lines of the kernel that measures looks."""

_LINE: tl.constexpr = tl.constexpr(LINE_BYTES)
_LOOKED_AT: tl.constexpr = tl.constexpr(LOOKED_AT)


@triton.jit(do_not_specialize=UNSPECIALISED)
def exchange_kernel(src, out, slots, peers, calls, state, rank, world, programs, capacity,
                    rows, chunk, total, to_rows, to_chunk, to_total,
                    UNIT: tl.constexpr, TO_UNIT: tl.constexpr, FLAT: tl.constexpr, TO_FLAT: tl.constexpr,
                    PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr = False):  # fmt: skip
    """Every rank's piece for every other; boxes of ``out`` are always by rank."""
    if EARLY:
        await_stream()
    pid = tl.program_id(0)
    epoch, mark, side = push(
        src, peers, calls, pid, rank, world, programs, capacity, rows, chunk, total, UNIT, FLAT, PARTS, BLOCK
    )
    units: tl.constexpr = 8 // TO_UNIT
    own = slots.to(tl.int64) + side * _LINE
    lanes = tl.arange(0, BLOCK)
    late = tl.zeros((BLOCK,), tl.int64)
    marks = tl.zeros((BLOCK,), tl.int32)
    longest = lines_of(to_rows * tl.minimum(to_chunk, to_total), units)
    for pair in range(pid, tl.cdiv(longest, BLOCK) * world, programs):
        sender = (rank + pair % world) % world
        line = pair // world * BLOCK + lanes
        inside = line < lines_of(to_rows * width_of(sender, to_chunk, to_total), units)
        if sender == rank:
            data = load_line(src, line, inside, rank if PARTS else 0, rows, chunk, total, UNIT, FLAT)
        else:
            place = own + (sender * tl.cast(capacity, tl.int64) + line) * _LINE
            data, left, seen = receive(place, inside, mark, state)
            marks = tl.where((left != 0) & (late == 0), seen, marks)
            late = tl.where((left != 0) & (late == 0), place, late)
        store_line(out, data, line, inside, sender, to_rows, to_chunk, to_total, TO_UNIT, TO_FLAT)
    finish(slots, calls, state, epoch, side, pid, programs, late, marks, rank, world, capacity, to_rows, to_chunk, to_total, 0,
           0, 0, units, False, BLOCK)  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def sum_packets_kernel(src, out, slots, peers, calls, state, rank, world, programs, capacity,
                       rows, chunk, total, UNIT: tl.constexpr, TO_UNIT: tl.constexpr, FLAT: tl.constexpr,
                       PARTS: tl.constexpr, SENDERS: tl.constexpr, DTYPE: tl.constexpr, ACCUMULATOR: tl.constexpr,
                       BLOCK: tl.constexpr, EARLY: tl.constexpr = False):  # fmt: skip
    """The sum of every rank's piece for this rank, added in rank order in ``ACCUMULATOR`` and rounded once.

    ``out`` is dense: integers of ``TO_UNIT`` bytes, or with 0 elements of any float type.
    ``SENDERS``: ranks whose lines are looked at together.
    """
    if EARLY:
        await_stream()
    pid = tl.program_id(0)
    epoch, mark, side = push(
        src, peers, calls, pid, rank, world, programs, capacity, rows, chunk, total, UNIT, FLAT, PARTS, BLOCK
    )
    units: tl.constexpr = 8 // UNIT
    elements: tl.constexpr = 64 // DTYPE.primitive_bitwidth
    mine = rank if PARTS else 0
    width = width_of(mine, chunk, total)
    lines = lines_of(rows * width, units)
    own = slots.to(tl.int64) + side * _LINE
    lanes = tl.arange(0, BLOCK)
    late = tl.zeros((BLOCK,), tl.int64)
    marks = tl.zeros((BLOCK,), tl.int32)
    for tile in range(pid, tl.cdiv(lines, BLOCK), programs):
        line = tile * BLOCK + lanes
        inside = line < lines
        kept = load_line(src, line, inside, mine, rows, chunk, total, UNIT, FLAT)
        sum0, sum1, sum2, sum3, late, marks = sum_lines(
            own, kept, line, inside, mark, state, rank, world, capacity, late, marks, SENDERS, DTYPE, ACCUMULATOR, BLOCK
        )
        if TO_UNIT == 0:
            # Of another type than what is added: rounded once, to that.
            count = rows * width * UNIT // (8 // elements)
            for k in tl.static_range(elements):
                added = sum0 if k == 0 else (sum1 if k == 1 else (sum2 if k == 2 else sum3))
                at = line * elements + k
                tl.store(out + at, added.to(out.dtype.element_ty), mask=inside & (at < count))
        else:
            data = packed_line(sum0, sum1, sum2, sum3, DTYPE)
            size = rows * width * UNIT // TO_UNIT
            store_line(out, data, line, inside, 0, 1, size, size, TO_UNIT, True)
    finish(slots, calls, state, epoch, side, pid, programs, late, marks, rank, world, capacity, rows, chunk, total, mine,
           0, 0, units, True, BLOCK)  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def two_step_kernel(src, out, slots, peers, calls, state, rank, world, programs, capacity, chunk, total, size, to_size,
                    UNIT: tl.constexpr, TO_UNIT: tl.constexpr, SENDERS: tl.constexpr, DTYPE: tl.constexpr,
                    ACCUMULATOR: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr = False):  # fmt: skip
    """An all-reduce of fewer bytes: every rank adds ``chunk`` of the ``total`` lines, and sends the sums to all.

    ``size``, ``to_size``: of ``src`` and ``out``, in units. They do not share memory: a program stores results of lines that
    another one has sent on, which nothing orders for plain accesses.
    """
    if EARLY:
        await_stream()
    pid = tl.program_id(0)
    epoch = tl.load(calls + pid) + 1
    mark = mark_of(epoch)
    side = side_of(epoch, world, capacity)
    wide = tl.cast(capacity, tl.int64)
    others = tl.maximum(world - 1, 1)
    own = slots.to(tl.int64) + side * _LINE
    second = side + world * wide
    lanes = tl.arange(0, BLOCK)
    late = tl.zeros((BLOCK,), tl.int64)
    marks = tl.zeros((BLOCK,), tl.int32)
    pairs = tl.cdiv(lines_of(tl.minimum(chunk, total), 1), BLOCK) * (world - 1)
    for pair in range(pid, pairs, programs):
        peer = (rank + 1 + pair % others) % world
        line = pair // others * BLOCK + lanes
        width = width_of(peer, chunk, total)
        data = load_line(src, peer * chunk + line, line < width, 0, 1, size, size, UNIT, True)
        there = tl.load(peers + peer) + (side + rank * wide + line) * _LINE
        send(there, data, mark, line < lines_of(width, 1))
    mine = width_of(rank, chunk, total)
    for tile in range(pid, tl.cdiv(lines_of(mine, 1), BLOCK), programs):
        line = tile * BLOCK + lanes
        inside = line < lines_of(mine, 1)
        kept = load_line(src, rank * chunk + line, line < mine, 0, 1, size, size, UNIT, True)
        sum0, sum1, sum2, sum3, late, marks = sum_lines(
            own, kept, line, inside, mark, state, rank, world, capacity, late, marks, SENDERS, DTYPE, ACCUMULATOR, BLOCK
        )
        data = packed_line(sum0, sum1, sum2, sum3, DTYPE)
        for turn in range(1, world):
            base = tl.load(peers + (rank + turn) % world)
            send(base + (second + rank * wide + line) * _LINE, data, mark, inside)
        store_line(out, data, rank * chunk + line, line < mine, 0, 1, to_size, to_size, TO_UNIT, True)
    for pair in range(pid, pairs, programs):
        owner = (rank + 1 + pair % others) % world
        line = pair // others * BLOCK + lanes
        width = width_of(owner, chunk, total)
        place = slots.to(tl.int64) + (second + owner * wide + line) * _LINE
        data, left, seen = receive(place, line < lines_of(width, 1), mark, state)
        marks = tl.where((left != 0) & (late == 0), seen, marks)
        late = tl.where((left != 0) & (late == 0), place, late)
        store_line(out, data, owner * chunk + line, line < width, 0, 1, to_size, to_size, TO_UNIT, True)
    finish(slots, calls, state, epoch, side, pid, programs, late, marks, rank, world, capacity, 1, chunk, total, rank,
           chunk, total, 1, True, BLOCK)  # fmt: skip


@triton.jit
def wait_packets_kernel(lines, state):
    """Looks at lines that nobody sends, to see how long a look takes."""
    place = lines.to(tl.int64) + tl.arange(0, _LOOKED_AT) * _LINE
    receive(place, place != 0, mark_of(tl.full((), 1, tl.int64)), state)
