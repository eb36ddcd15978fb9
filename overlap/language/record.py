"""Words of kernels that record when their tiles wait, begin and end (``trace`` of a realization, `overlap trace`).

A record is a few int64 words of an ordinary tensor of this rank, one record for each tile by its position in the schedule and,
where a loop inside the tile waits for chunks, one for each part of it: layout `overlap.schedule.recorded`. So the buffer is as
large as the schedule and never full, and no two programs write one word. Nothing is ordered by a record and nothing waits for
one: they are plain stores, read by the host when the launch is done.

Times are the device's global timer in nanoseconds, as coarse as the device makes it; one thread of the program takes them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import recorded as _layout
from overlap.schedule import table as _table

_TILE_WORDS: tl.constexpr = tl.constexpr(_layout.TILE_WORDS)
_PART_WORDS: tl.constexpr = tl.constexpr(_layout.PART_WORDS)
_WAITS: tl.constexpr = tl.constexpr(_layout.WAITS)
_READY: tl.constexpr = tl.constexpr(_layout.READY)
_BEGINS: tl.constexpr = tl.constexpr(_layout.BEGINS)
_ENDS: tl.constexpr = tl.constexpr(_layout.ENDS)
_WHO: tl.constexpr = tl.constexpr(_layout.WHO)
_H_TILES: tl.constexpr = tl.constexpr(_table.H_TILES)
_H_RUNS: tl.constexpr = tl.constexpr(_table.H_RUNS)


@triton.jit
def timer():
    """The device's global timer, int64 nanoseconds (PTX ISA, special registers: ``%globaltimer``)."""
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _multiprocessor():
    """The multiprocessor that this program runs on, int32."""
    return tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def log_tile(log, position):
    """The tile at ``position`` begins in this program; returns the offset of its record."""
    line = position * _TILE_WORDS
    program = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
    tl.store(log + line + _WHO, (program.to(tl.int64) << 32) | _multiprocessor().to(tl.int64))
    tl.store(log + line + _BEGINS, timer())
    return line


@triton.jit
def log_part(log, table, parts, LOOPS: tl.constexpr, line, number):
    """Offset of the record of part ``number`` of a tile, whose own is at ``line``; they stand behind those of all tiles.

    Each of the tile's ``LOOPS`` loops over the parts has records of its own, the second's behind the first's.
    """
    base = tl.load(table + _H_TILES) * _TILE_WORDS
    return base + (line // _TILE_WORDS * tl.load(parts + _H_RUNS) * LOOPS + number) * _PART_WORDS


@triton.jit
def log_waits(log, line):
    """The program begins to wait, of a tile or a part of one."""
    tl.store(log + line + _WAITS, timer())


@triton.jit
def log_ready(log, line):
    """What was waited for has been seen."""
    tl.store(log + line + _READY, timer())


@triton.jit
def log_ends(log, line):
    """The tile's last statement has been issued by this thread; its stores may be on their way."""
    tl.store(log + line + _ENDS, timer())
