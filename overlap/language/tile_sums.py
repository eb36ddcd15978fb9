"""Words of kernels that finish the tiles of the rank's own part of a result: what other ranks have sent is added to them.

    own tile [rows, columns] as it would travel | cut in columns, since registers hold a part and a summand
    part 0    own value + slot of rank 0 + slot of rank 2 ...      in ACCUMULATOR, rounded once, stored
    part 1    ...

Such tiles come last and have a loop of their own (`overlap.schedule.tile_sums`). ``sums`` is the table of
`overlap.runtime.tables.tile_sums`; where a run's record begins in it stands in its R_WAY. The own value is the first summand
and the others follow in the order of the ranks, whatever arrives first: to add it in its place, as the sum kernel does, is
one value more to hold, and the registers beside a tile have no room for that.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import table as _layout

from .awaits import behind_barrier
from .flags import poll

_R_WAY: tl.constexpr = tl.constexpr(_layout.R_WAY)
_R_WAIT_BEGIN: tl.constexpr = tl.constexpr(_layout.R_WAIT_BEGIN)
_R_WAIT_END: tl.constexpr = tl.constexpr(_layout.R_WAIT_END)
_H_FLAG_BASE: tl.constexpr = tl.constexpr(_layout.H_FLAG_BASE)
_SLOT_WORDS: tl.constexpr = tl.constexpr(_layout.SLOT_WORDS)
_H_FINISHED: tl.constexpr = tl.constexpr(_layout.H_FINISHED)
_FIRST: tl.constexpr = tl.constexpr(_layout.F_FIRST)
_ENDS: tl.constexpr = tl.constexpr(_layout.F_ENDS)
_STRIDES: tl.constexpr = tl.constexpr(_layout.F_STRIDES)
_SLOTS: tl.constexpr = tl.constexpr(_layout.F_SLOTS)


@triton.jit
def own_tiles(table):
    """Position of the first tile that is finished; their number where none is."""
    return tl.load(table + _H_FINISHED)


@triton.jit
def next_tile(start, first, step):
    """The first tile from ``first`` on of a program whose tiles are ``start``, ``start + step``, ..."""
    return start + tl.cdiv(tl.maximum(first - start, 0), step) * step


@triton.jit
def wait_summands(table, run, state, epoch, SUMMANDS: tl.constexpr):
    """As `wait_run`, with a look at all flags at once ahead: one after the other they take a tile of four ranks 3 us.

    ``SUMMANDS``: that any tile has from elsewhere, at most.
    """
    flags = state + tl.load(table + _H_FLAG_BASE)
    i = tl.load(table + run + _R_WAIT_BEGIN)
    end = tl.load(table + run + _R_WAIT_END)
    seen = epoch
    if SUMMANDS > 1:
        lanes = i + 2 * tl.arange(0, triton.next_power_of_2(SUMMANDS))
        there = lanes < end
        slots = tl.load(table + lanes, mask=there, other=0)
        nothing = tl.zeros(lanes.shape, tl.int64)
        come = tl.atomic_add(flags + slots * _SLOT_WORDS, nothing, mask=there, sem="acquire", scope="sys")
        # A barrier that leaves a flattened loop its stages: all threads are behind what one has seen.
        up = behind_barrier(tl.min(tl.where(there & (come < epoch), 0, 1)))
        # Those that are not up yet are polled, which knows of deadlines.
        i = tl.where(up == 0, i, tl.minimum(end, i + 2 * triton.next_power_of_2(SUMMANDS)))
        seen = tl.maximum(epoch, up.to(tl.int64))
    while i < end:
        slot = tl.load(table + i)
        wanted = epoch * tl.load(table + i + 1)
        seen = tl.minimum(seen, poll(flags + slot * _SLOT_WORDS, wanted, state))
        i += 2
    return seen


@triton.jit
def _cut(tile, part: tl.constexpr, PARTS: tl.constexpr):
    """Columns ``part`` of ``PARTS``, a power of two, of a tile of two dimensions."""
    if PARTS == 1:
        found = tile
    else:
        rows: tl.constexpr = tile.shape[0]
        half: tl.constexpr = tile.shape[1] // 2
        left, right = tl.split(tl.permute(tl.reshape(tile, (rows, 2, half)), (0, 2, 1)))
        if part * 2 < PARTS:
            found = _cut(left, part, PARTS // 2)
        else:
            found = _cut(right, part - PARTS // 2, PARTS // 2)
    return found


@triton.jit
def _added(value, record, SUMMANDS: tl.constexpr, ACCUMULATOR: tl.constexpr, offsets, inside):
    total = value.to(ACCUMULATOR)
    for i in tl.static_range(SUMMANDS):
        slot = tl.load(record + _SLOTS + i).to(tl.pointer_type(value.dtype))
        total += tl.load(tl.multiple_of(slot, 16) + offsets, mask=inside, other=0.0).to(ACCUMULATOR)
    return total.to(value.dtype)


@triton.jit
def finish_tile(
    result, tile, table, run, sums, SUMMANDS: tl.constexpr, at0, at1=0, at2=0, ACCUMULATOR: tl.constexpr = tl.float32
):
    """Adds what other ranks have sent of a tile and stores it through ``result``, a descriptor of the rank's part of the result.

    Args:
        result: its block has all of a tile but its columns, of which it has the tile's over a power of two.
        tile: in the type of the result, and as it would travel.
        SUMMANDS: that any tile has from elsewhere, at most.
        at0, at1, at2: the tile's first element in what the kernel makes.

    Slots lie in rows of a multiple of 16 bytes, as the runtime makes sure of.
    """
    DIMS: tl.constexpr = len(tile.shape)
    width: tl.constexpr = result.block_shape[DIMS - 1]
    PARTS: tl.constexpr = tile.shape[DIMS - 1] // width
    rows: tl.constexpr = tile.numel // tile.shape[DIMS - 1]
    record = sums + tl.load(table + run + _R_WAY)
    flat = tl.reshape(tile, (rows, width * PARTS))
    row = tl.arange(0, rows)
    first0 = tl.load(record + _FIRST).to(tl.int32)
    first1 = tl.load(record + _FIRST + 1).to(tl.int32)
    first2 = tl.load(record + _FIRST + 2).to(tl.int32)
    # Rows behind the end are read as the last one, which costs nothing, and are not stored.
    if DIMS == 2:
        outer = tl.minimum(row + at0, tl.load(record + _ENDS).to(tl.int32) - 1)
        before = outer.to(tl.int64) * tl.multiple_of(tl.load(record + _STRIDES), 8)
    elif DIMS == 3:
        middle: tl.constexpr = tile.shape[1]
        outer = tl.minimum(row // middle + at0, tl.load(record + _ENDS).to(tl.int32) - 1)
        between = tl.minimum(row % middle + at1, tl.load(record + _ENDS + 1).to(tl.int32) - 1)
        before = outer.to(tl.int64) * tl.multiple_of(tl.load(record + _STRIDES), 8)
        before += between * tl.multiple_of(tl.load(record + _STRIDES + 1), 8)
    last = at1 if DIMS == 2 else at2
    end = tl.multiple_of(tl.load(record + _ENDS + DIMS - 1), 8)
    for part in tl.static_range(PARTS):
        # Behind the part before, or its summands would be on their way with those of this one, more than registers hold.
        begin = last + part * width
        columns = begin + tl.arange(0, width)
        offsets = before[:, None] + columns[None, :] + (behind_barrier(part) - part) * 16
        inside = (columns < end)[None, :]
        value = _added(_cut(flat, part, PARTS), record, SUMMANDS, ACCUMULATOR, offsets, inside)
        if DIMS == 2:
            result.store([at0 - first0, begin - first1], value)
        else:
            result.store([at0 - first0, at1 - first1, begin - first2], tl.reshape(value, result.block_shape))
