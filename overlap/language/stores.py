"""Words of kernels that store the tiles of a result where they go: into slots in other ranks' memory, and their own.

    ld/st   pointers + shift(...)                          the same element, so many elements away
    TMA     anywhere.store([*spot(...), row, column], ..)  one descriptor for all places

``slots`` is the table of `overlap.runtime.tables.slots`; `overlap.schedule.table` says where the ways of a run begin in it.

The descriptor that reaches every place has two dimensions in front of the result's own, which are not of the result: steps of
`HIGH_BYTES` and of `LOW_BYTES` from the lowest place, so that two coordinates are an address. A place costs no descriptor, and
a program makes none for a tile. Rows and columns are bounded as in the result, whatever the place; coordinates past the end,
which ``spot`` gives where a run has no such place, store nothing. Coordinates below zero are never given: on an H100 a store
of a box that is wholly below zero is an illegal instruction.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import table as _layout

from .flags import landed

_H_RUNS: tl.constexpr = tl.constexpr(_layout.H_RUNS)
_H_RUN_BASE: tl.constexpr = tl.constexpr(_layout.H_RUN_BASE)
_RUN_WORDS: tl.constexpr = tl.constexpr(_layout.RUN_WORDS)
_R_WAY: tl.constexpr = tl.constexpr(_layout.R_WAY)
_R_RAISE_BEGIN: tl.constexpr = tl.constexpr(_layout.R_RAISE_BEGIN)
_R_RAISE_END: tl.constexpr = tl.constexpr(_layout.R_RAISE_END)
_RAISE_WORDS: tl.constexpr = tl.constexpr(_layout.RAISE_WORDS)
_MAX_RAISES: tl.constexpr = tl.constexpr(_layout.MAX_RAISES)
_H_FLAG_BASE: tl.constexpr = tl.constexpr(_layout.H_FLAG_BASE)
_H_COUNTER_BASE: tl.constexpr = tl.constexpr(_layout.H_COUNTER_BASE)
_SLOT_WORDS: tl.constexpr = tl.constexpr(_layout.SLOT_WORDS)
_EPOCH: tl.constexpr = tl.constexpr(_layout.S_EPOCH * _layout.SLOT_WORDS)
_LOWEST: tl.constexpr = tl.constexpr(_layout.W_LOWEST)
_HIGHEST: tl.constexpr = tl.constexpr(_layout.W_HIGHEST)
_STATES: tl.constexpr = tl.constexpr(_layout.W_STATES)
_LOW_BYTES: tl.constexpr = tl.constexpr(_layout.LOW_BYTES)
_HIGH_BYTES: tl.constexpr = tl.constexpr(_layout.HIGH_BYTES)
_LOW_STEPS: tl.constexpr = tl.constexpr(_layout.HIGH_BYTES // _layout.LOW_BYTES)
_NOWHERE: tl.constexpr = tl.constexpr((_layout.HIGH_BYTES // _layout.LOW_BYTES) << 30)
_LOW_BITS: tl.constexpr = tl.constexpr((_layout.HIGH_BYTES // _layout.LOW_BYTES).bit_length() - 1)


@triton.jit
def ways(table, run):
    """In how many places the tiles of the run are stored: one, but on the edges of chunks."""
    return tl.load(table + run + _RUN_WORDS + _R_WAY) - tl.load(table + run + _R_WAY)


@triton.jit
def shift(table, run, way, slots):
    """Elements (int64) from the result's own memory to the ``way``-th place where the run's tiles are stored.

    Places are chosen so that 16 elements and whole vectors of 16 bytes stay aligned.
    """
    return tl.multiple_of(tl.load(slots + tl.load(table + run + _R_WAY) + way), 16)


@triton.jit
def spot(table, run, way, slots):
    """The ``way``-th place where the run's tiles are stored, as the first two coordinates of the descriptor that reaches all.

    Where the run has no such place the first is past the end, and the store that it is given to stores nothing.
    """
    entry = tl.load(table + run + _R_WAY) + way
    there = entry < tl.load(table + run + _RUN_WORDS + _R_WAY)
    place = tl.load(slots + entry, mask=there, other=_NOWHERE)
    return (place >> _LOW_BITS).to(tl.int32), (place & (_LOW_STEPS - 1)).to(tl.int32)


@triton.jit
def shaped(tile, anywhere):
    """``tile`` in the shape that the descriptor ``anywhere`` stores: the same elements, two dimensions of 1 in front."""
    return tl.reshape(tile, anywhere.block_shape)


@triton.jit
def lowest(slots):
    """Elements (int64, at most 0) from the result's own memory to the lowest of all places."""
    return tl.multiple_of(tl.load(slots + _LOWEST), 16)


@triton.jit
def steps(slots, which: tl.constexpr):
    """Extent (int32) of the descriptor's first (0) or second (1) dimension."""
    if which == 0:
        extent = tl.load(slots + _HIGHEST).to(tl.int32)
    else:
        extent = _LOW_STEPS
    return extent


@triton.jit
def stride(pointer, which: tl.constexpr):
    """Stride in elements of the descriptor's first (0) or second (1) dimension, for the result behind ``pointer``."""
    size: tl.constexpr = pointer.dtype.element_ty.primitive_bitwidth // 8
    return (_HIGH_BYTES if which == 0 else _LOW_BYTES) // size


@triton.jit
def no_run(table):
    """A run without chunks: what is counted into it tells nobody."""
    return tl.load(table + _H_RUN_BASE) + tl.load(table + _H_RUNS) * _RUN_WORDS


@triton.jit
def _push_in(table, run, state, slots, LANES: tl.constexpr = _MAX_RAISES):
    """Adds one to every counter of the run, and raises the flags behind those that it fills.

    ``LANES``: at least the counters of any run. Lanes instead of a loop, which would keep a tile loop from being flattened.
    """
    begin = tl.load(table + run + _R_RAISE_BEGIN)
    end = tl.load(table + run + _R_RAISE_END)
    entries = begin + tl.arange(0, LANES) * _RAISE_WORDS
    inside = entries < end
    counters = state + tl.load(table + _H_COUNTER_BASE) + tl.load(table + entries, mask=inside, other=0) * _SLOT_WORDS
    target = tl.load(table + entries + 1, mask=inside, other=0)
    peer = tl.load(table + entries + 2, mask=inside, other=0)
    slot = tl.load(table + entries + 3, mask=inside, other=0)
    one = tl.full((LANES,), 1, tl.int64)
    before = tl.atomic_add(counters, one, mask=inside, sem="acq_rel", scope="sys")
    last = inside & (before == target - 1)
    there = tl.load(slots + _STATES + peer, mask=last, other=0).to(tl.pointer_type(tl.int64))
    flags = there + tl.load(table + _H_FLAG_BASE) + slot * _SLOT_WORDS
    tl.atomic_xchg(flags, one * tl.load(state + _EPOCH), mask=last, sem="release", scope="sys")


@triton.jit
def pushed(table, run, state, slots):
    """Counts a tile into the chunks it is part of, after all stores of this program; a chunk's last tile raises its flag.

    Every lane acquires what the counter's earlier tiles released, so that the flag that the last one raises stands for all
    their stores.
    """
    tl.debug_barrier()
    _push_in(table, run, state, slots)


@triton.jit
def pushed_async(table, run, state, slots, WAYS: tl.constexpr):
    """As `pushed`: TMA stores have landed in all ``WAYS`` places, not only been read, and the barrier leaves a flattened loop
    its stages (sm_90)."""
    _push_in(table, landed(run), state, slots, triton.next_power_of_2(WAYS))
