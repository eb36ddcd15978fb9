"""Device words: Triton functions that kernels call as ``ol.NAME``.

    symm.py    for kernels of users: rank, num_ranks, symm_at, wait, notify, put, get (docs/language.md)
    handle.py  what these find behind a handle
    flags.py   below all of them: polls, raised flags, and what must stand around them
    moves.py   for generated kernels: programs that move chunks, as `overlap.schedule.moves` lays them out
    boxes.py   below them: copies by TMA
    far.py     as moves.py, to ranks that no pointer reaches too; nvshmem.py are the functions of NVSHMEM below it
    interleave.py  above them: programs that move chunks between their tiles
    stores.py  for generated kernels: tiles stored where they go
    tile_sums.py  for generated kernels: tiles to which what other ranks have sent is added
    inline_words.py  for generated kernels: tiles sent in packets (packets.py, packed.py), and what comes added up
    awaits.py  flags that every thread looks at by itself, for collectives by blocks
    record.py  for generated kernels that are traced: when tiles wait, begin and end
    here       for generated kernels: runs of tiles, as `overlap.schedule.table` lays them out

Every word obeys one row of the memory table in overlap/backends/memory_rules.py; `words.py` says which.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr, static_range

from overlap.schedule import table as _layout

from .boxes import box_memory
from .far import move_chunks_far
from .flags import after, after_async, landed, landed_if, look, poll, raise_flag, raise_flags
from .inline_words import WHOLE, send_words, send_words_async, sum_words
from .interleave import move_rest, move_rest_async, move_rest_boxes, move_some, move_some_async, move_some_boxes
from .moves import computing_id, computing_position, computing_programs, move_chunks, move_chunks_async, moving
from .record import log_ends, log_part, log_ready, log_tile, log_waits
from .stores import lowest, no_run, pushed, pushed_async, shaped, shift, spot, steps, stride, ways
from .symm import get, notify, notify_async, num_ranks, put, rank, symm_at, wait
from .tile_sums import finish_tile, next_tile, own_tiles, wait_summands

__all__ = [
    "WHOLE",
    "after",
    "after_async",
    "box_memory",
    "computing_id",
    "computing_position",
    "computing_programs",
    "constexpr",
    "finish_tile",
    "get",
    "landed",
    "landed_if",
    "log_ends",
    "log_part",
    "log_ready",
    "log_tile",
    "log_waits",
    "look",
    "lowest",
    "next_tile",
    "no_run",
    "move_chunks",
    "move_chunks_async",
    "move_chunks_far",
    "move_rest",
    "move_rest_async",
    "move_rest_boxes",
    "move_some",
    "move_some_async",
    "move_some_boxes",
    "moving",
    "notify",
    "notify_async",
    "num_ranks",
    "own_tiles",
    "poll",
    "pushed",
    "pushed_async",
    "put",
    "raise_flag",
    "raise_flags",
    "rank",
    "send_words",
    "send_words_async",
    "shaped",
    "shift",
    "spot",
    "static_range",
    "steps",
    "stride",
    "sum_words",
    "symm_at",
    "wait",
    "wait_summands",
    "ways",
]

_RUN_WORDS: tl.constexpr = tl.constexpr(_layout.RUN_WORDS)
_H_RUNS: tl.constexpr = tl.constexpr(_layout.H_RUNS)
_H_RUN_BASE: tl.constexpr = tl.constexpr(_layout.H_RUN_BASE)
_H_COORD_BASE: tl.constexpr = tl.constexpr(_layout.H_COORD_BASE)
_H_FLAG_BASE: tl.constexpr = tl.constexpr(_layout.H_FLAG_BASE)
_H_TILES: tl.constexpr = tl.constexpr(_layout.H_TILES)
_H_AXES: tl.constexpr = tl.constexpr(_layout.H_AXES)
_R_FIRST: tl.constexpr = tl.constexpr(_layout.R_FIRST)
_R_WAIT_BEGIN: tl.constexpr = tl.constexpr(_layout.R_WAIT_BEGIN)
_R_WAIT_END: tl.constexpr = tl.constexpr(_layout.R_WAIT_END)
_R_OWN: tl.constexpr = tl.constexpr(_layout.R_OWN)
_R_AXIS: tl.constexpr = tl.constexpr(_layout.R_AXIS)
_H_COUNTER_BASE: tl.constexpr = tl.constexpr(_layout.H_COUNTER_BASE)
_R_RAISE_BEGIN: tl.constexpr = tl.constexpr(_layout.R_RAISE_BEGIN)
_R_RAISE_END: tl.constexpr = tl.constexpr(_layout.R_RAISE_END)
_RAISE_WORDS: tl.constexpr = tl.constexpr(_layout.RAISE_WORDS)
_MAX_RAISES: tl.constexpr = tl.constexpr(_layout.MAX_RAISES)
_SLOT_WORDS: tl.constexpr = tl.constexpr(_layout.SLOT_WORDS)
_EPOCH: tl.constexpr = tl.constexpr(_layout.S_EPOCH * _layout.SLOT_WORDS)


@triton.jit
def now(state):
    """This launch's epoch, an int64 scalar; the entry kernel wrote it earlier on the same stream."""
    return tl.load(state + _EPOCH)


@triton.jit
def position():
    """This program's position in launch order: the first grid dimension runs fastest."""
    return tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))


@triton.jit
def find_run(table, tile):
    """Offset of the record of the run that holds position ``tile``; the sentinel record ends the search."""
    run = tl.load(table + _H_RUN_BASE)
    while tl.load(table + run + _RUN_WORDS + _R_FIRST) <= tile:
        run += _RUN_WORDS
    return run


@triton.jit
def runs(table):
    """Number of runs in a table."""
    return tl.load(table + _H_RUNS)


@triton.jit
def run_at(table, number):
    """Offset of the record of run ``number``, for tables that are walked run by run (the parts of an in-tile loop)."""
    return tl.load(table + _H_RUN_BASE) + number * _RUN_WORDS


@triton.jit
def rebase(table, run, tile):
    """Position of ``tile`` inside its run."""
    return tile - tl.load(table + run + _R_FIRST)


@triton.jit
def count(table, run, axis: tl.constexpr):
    """Tiles of the run along ``axis``."""
    return tl.load(table + run + _R_AXIS + 2 * axis + 1)


@triton.jit
def origin(table, run, axis: tl.constexpr):
    """First tile of the run along ``axis``."""
    return tl.load(table + run + _R_AXIS + 2 * axis)


@triton.jit
def place(table, run, tile, axis: tl.constexpr, pid):
    """Coordinate along ``axis`` in the whole grid of coordinate ``pid`` inside the run.

    Where the user's mapping is no bijection on the run's box, the table holds coordinates by position
    and ``pid`` is not used.
    """
    base = tl.load(table + _H_COORD_BASE)
    axes = tl.load(table + _H_AXES)
    first = tl.load(table + run + _R_FIRST)
    moved = pid + tl.load(table + run + _R_AXIS + 2 * axis)
    return tl.load(table + base + (first + tile) * axes + axis, mask=base > 0, other=moved)


@triton.jit
def own(table, run):
    """Whether tiles of the run touch nothing but the rank's own part of the one tensor that is communicated."""
    return tl.load(table + run + _R_OWN) != 0


@triton.jit
def own_begin(origin, dim: tl.constexpr):
    """First index along ``dim``, of what the kernel sees, of the rank's own part; where that is used as it lies there, 0."""
    return tl.load(origin + 2 * dim)


@triton.jit
def own_end(origin, dim: tl.constexpr):
    """The index behind the last; where the own part is used as it lies there, 0."""
    return tl.load(origin + 2 * dim + 1)


@triton.jit
def within(index, begin, end):
    """Whether ``index`` is in ``[begin, end)``."""
    return (index >= begin) & (index < end)


@triton.jit
def wait_run(table, run, state, epoch):
    """Polls every flag of the run; returns the smallest value seen, an int64 scalar.

    A ``while``, because a second ``for`` beside the K loop keeps Triton from flattening a tile loop that asks for it.
    """
    flags = state + tl.load(table + _H_FLAG_BASE)
    i = tl.load(table + run + _R_WAIT_BEGIN)
    end = tl.load(table + run + _R_WAIT_END)
    seen = epoch
    while i < end:
        slot = tl.load(table + i)
        wanted = epoch * tl.load(table + i + 1)
        seen = tl.minimum(seen, poll(flags + slot * _SLOT_WORDS, wanted, state))
        i += 2
    return seen


@triton.jit
def advanced(value, iterations, step):
    """A loop variable that grows by ``step``, ``iterations`` later; pointers by 64-bit distances, numbers in their own type."""
    moved = value + tl.cast(iterations, tl.int64) * step
    return moved if value.dtype.is_ptr() else moved.to(value.dtype)


@triton.jit
def _count_in(table, run, state, tiles=1, there=1):
    """Adds ``tiles`` to every counter of the run, with what this program has stored before its last barrier; if ``there``."""
    begin = tl.load(table + run + _R_RAISE_BEGIN)
    end = tl.load(table + run + _R_RAISE_END)
    # Lanes instead of a loop, which would keep a tile loop from being flattened.
    entries = begin + tl.arange(0, _MAX_RAISES) * _RAISE_WORDS
    inside = (entries < end) & (there != 0)
    slots = tl.load(table + entries, mask=inside, other=0)
    counters = state + tl.load(table + _H_COUNTER_BASE) + slots * _SLOT_WORDS
    counted = tl.zeros((_MAX_RAISES,), tl.int64) + tiles
    tl.atomic_add(counters, counted, mask=inside, sem="release", scope="sys")


@triton.jit
def produced(table, run, state):
    """Counts a tile into the chunks it makes a part of, after all stores of this program.

    System scope, because copy engines of this and of other devices read what the counter stands for.
    """
    tl.debug_barrier()
    _count_in(table, run, state)


@triton.jit
def produced_async(table, run, state):
    """As `produced`: TMA stores have landed, not only been read, and the barrier leaves a flattened loop its stages (sm_90)."""
    _count_in(table, landed(run), state)


@triton.jit
def produced_once(table, run, state, tile, step):
    """As `produced_async`, once for all tiles of the run that this program makes, ``step`` apart: behind the last of them.

    Until then nothing is waited for. Each count takes a store's way to the memory, a barrier and a release at system scope, in
    which nothing is multiplied; and a chunk is whole no sooner by the tiles that come before a program's last.
    """
    first = tl.load(table + run + _R_FIRST)
    end = tl.minimum(tl.load(table + run + _RUN_WORDS + _R_FIRST), tl.load(table + _H_TILES))
    last = (tile + step >= end).to(tl.int32)
    _count_in(table, landed_if(run, last), state, (tile - first) // step + 1, last)
