"""Words of kernels whose computing programs move chunks between their tiles (`overlap.schedule.interleave`).

A program counts steps, one a wait. Its part of the first move is due behind some steps, later for later programs, and then a
part every `H_PACE` steps; a run says how many moves must be behind it before it waits, and the count goes on to there at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import moves as _table
from overlap.schedule import table as _layout

from .moves import (
    _FIRST,
    _HEADER,
    _MOVE_WORDS,
    _MOVES,
    _PROGRAMS,
    _REGISTERS,
    _SMALL_TMA,
    _make_part,
)

_PACE: tl.constexpr = tl.constexpr(_table.H_PACE)
_AHEAD: tl.constexpr = tl.constexpr(_layout.R_MOVES)


@triton.jit
def move_some(moves, state, epoch, step, table, run):
    """Ahead of a run's wait: makes this program's parts of the moves that are due, and of all that the wait may need.

    Returns:
        the step that the program has come to, an int32 scalar; it begins at 0.
    """
    return _move_some(moves, state, epoch, step, table, run, _REGISTERS, False)


@triton.jit
def move_some_async(moves, state, epoch, step, table, run):
    """As `move_some`, in loops that are flattened and in kernels that store through descriptors (sm_90)."""
    return _move_some(moves, state, epoch, step, table, run, _REGISTERS, True)


@triton.jit
def move_rest(moves, state, epoch, step):
    """Where a program ends: makes its parts of all moves that are left."""
    _move_rest(moves, state, epoch, step, _REGISTERS, False)


@triton.jit
def move_rest_async(moves, state, epoch, step):
    """As `move_rest`, in kernels that store through descriptors (sm_90)."""
    _move_rest(moves, state, epoch, step, _REGISTERS, True)


@triton.jit
def move_some_boxes(moves, state, epoch, step, memory, table, run):
    """As `move_some`, by TMA through ``memory`` (`box_memory`) where a piece of a chunk is `BOXES` (sm_90)."""
    return _move_some(moves, state, epoch, step, table, run, _SMALL_TMA, True, memory)


@triton.jit
def move_rest_boxes(moves, state, epoch, step, memory):
    """As `move_rest`, by TMA through ``memory`` where a piece of a chunk is `BOXES` (sm_90)."""
    _move_rest(moves, state, epoch, step, _SMALL_TMA, True, memory)


@triton.jit
def _move_some(moves, state, epoch, step, table, run, TRANSPORT: tl.constexpr, LANDED: tl.constexpr, memory=0):
    number = _number()
    ahead = tl.load(table + run + _AHEAD)
    pace = tl.load(moves + _PACE).to(tl.int32)
    reached = tl.maximum(step + 1, _first(moves, number) + (ahead - 1) * pace + 1)
    _make_parts(moves, state, epoch, number, step, _due(moves, number, reached), TRANSPORT, LANDED, memory)
    return reached


@triton.jit
def _move_rest(moves, state, epoch, step, TRANSPORT: tl.constexpr, LANDED: tl.constexpr, memory=0):
    number = _number()
    _make_parts(moves, state, epoch, number, step, _total(moves, number), TRANSPORT, LANDED, memory)


@triton.jit
def _number():
    """This program's position in launch order."""
    return tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))


@triton.jit
def _total(moves, number):
    """Moves that a program has parts of: all, or none if it is not resident from the start."""
    return tl.load(moves + _HEADER + _MOVES, mask=number < tl.load(moves + _PROGRAMS), other=0).to(tl.int32)


@triton.jit
def _first(moves, number):
    """The step behind which a program's first part is due."""
    return (number * tl.load(moves + _PACE) // tl.load(moves + _PROGRAMS)).to(tl.int32)


@triton.jit
def _due(moves, number, step):
    """How many moves a program has made its parts of by a step."""
    pace = tl.load(moves + _PACE).to(tl.int32)
    steps = tl.maximum(step - _first(moves, number), 0)
    return tl.minimum((steps + pace - 1) // pace, _total(moves, number))


@triton.jit
def _make_parts(moves, state, epoch, number, step, end, TRANSPORT: tl.constexpr, LANDED: tl.constexpr, memory):
    """Makes a program's parts of the moves from those made by ``step`` to ``end``."""
    i = _due(moves, number, step)
    programs = tl.load(moves + _PROGRAMS).to(tl.int32)
    begin = moves + tl.load(moves + _HEADER + _FIRST)
    while i < end:
        _make_part(moves, begin + i * _MOVE_WORDS, number, programs, state, epoch, TRANSPORT, LANDED, memory)
        i += 1
