"""The table of a launch in which some programs move chunks (`overlap.schedule.moves`), and how many programs those are.

bytes of a row       | head, to 16 | ...... words of 16 ...... | tail |
source, destination  one place modulo 16, pitches too: as drawn; else words of 4 bytes, or single bytes

By TMA the words of 16 are boxes where there are enough of them; of one row they are laid out as rows of a box's width, and
what is left over is a row of words.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from overlap.backends.capabilities import Need, require
from overlap.chunkplan.plan import P2P, OpId
from overlap.errors import UnsupportedError
from overlap.schedule.far import SIGNAL_WORDS
from overlap.schedule.interleave import pace
from overlap.schedule.moves import (
    BOX_WORDS,
    BOXES,
    HEADER_WORDS,
    IN_ROW,
    MOVE_WORDS,
    PROGRAM_WORDS,
    Group,
    Move,
    groups,
)
from overlap.schedule.table import SLOT_WORDS, counter_base

from ..calls.resolve import python_function
from ..cuda.launchers import triton_here
from ..launch.prepared import flag_word
from ..memory.copies import CopyPiece, plan_copy
from ..nvshmem.far_moves import pieces_of, signal_of

if TYPE_CHECKING:
    from ..instance import Instance
    from ..operator import Operator

WIDE = 16
PART = 8
"""Of the multiprocessors, one in so many moves chunks, where nobody says how many."""
_OTHERS = ("triton.", "overlap.language.")
MOST_WORDS = 2**29
"""Words of a piece: the kernel numbers their halves with 32 bits."""
BOX_WIDTH = 4 * BOX_WORDS
LEAST_WIDTH = BOX_WIDTH
"""Bytes of a row from which on TMA copies it: of narrower ones part of a box stands empty. Rows of 128 bytes were pulled at 100
GB/s by TMA and at 256 by load and store, rows of 256 at 287 and 254 (two H200s, bench/strided.py)."""
MOST_WIDTH = 2**31
"""Bytes of a row: boxes count its elements with 32 bits."""
LEAST_BYTES = 4096
"""Bytes from which on a piece is worth the descriptors that TMA takes, a microsecond or two."""

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Reserved:
    """A launch with moving programs: its grid, one-dimensional where they are added to it, and the table that all read."""

    grid: Grid
    words: Any


def reserved(
    instance: Instance, moves: Sequence[Move], kernel: Any, grid: Grid, arguments: dict[str, Any], tiles: int
) -> Reserved:
    """The launch of ``kernel`` that computes ``tiles`` as on ``grid`` and makes ``moves``.

    Where the backend is inline the programs that compute make them, as many as are resident from the start; those of a rank
    without tiles compute nothing.

    Raises:
        UnsupportedError: more moving programs than can be resident beside one that computes, a helper of the kernel that
            reads program ids, or a device or a Triton that is too old.
    """
    runtime, operator = instance.runtime, instance.operator
    device = instance.state.device
    if device.type == "cuda":
        here = torch.cuda.get_device_capability(device)
        need = Need(f"`{operator.name}`", moves="input", triton=triton_here(), capability=here)
        require(operator.mover, need, where=operator.span(operator.source.kernel_line))
    if tiles and operator.mover.inline:
        programs = min(runtime.resident(kernel, grid, arguments), math.prod(grid))
        often = pace(tiles, programs, len(moves)) if operator.persistent and not operator.ranges else 1
        words = move_words(instance, [Group(tuple(moves), programs)], grid, often)
        return Reserved(grid, instance.workspace.table(words, bits=64))
    helper = reads_program_id(python_function(kernel))
    if moves and helper is not None:
        raise UnsupportedError(
            f"`{operator.name}`'s kernel calls `{helper}`, which reads program ids, and those of programs that move chunks are "
            "among them",
            where=operator.span(operator.source.kernel_line),
            help=f'read tl.program_id in the kernel and pass it to `{helper}`, or backend="copy_engine"',
        )
    capacity = runtime.resident(kernel, grid, arguments)
    programs = programs_for(operator, runtime.sm_count, capacity) if moves else 0
    if operator.persistent and grid[1:] == (1, 1):
        grid = (min(grid[0], capacity - programs), 1, 1)
    words = move_words(instance, groups(instance.plan, moves, programs), grid)
    return Reserved((programs + math.prod(grid), 1, 1), instance.workspace.table(words, bits=64))


def programs_for(operator: Operator, multiprocessors: int, capacity: int) -> int:
    """How many programs move chunks.

    Args:
        capacity: programs of the kernel that are resident at a time.

    Raises:
        UnsupportedError: none would be left to compute.
    """
    asked = operator.realization.comm_sms
    programs = asked or max(1, multiprocessors // PART)
    if programs >= capacity:
        raise UnsupportedError(
            f"{operator.mover.name} with comm_sms={programs}: {capacity} programs of `{operator.name}`'s kernel "
            "are resident at a time, so none is left to compute",
            help=f"comm_sms={capacity - 1} at most" if capacity > 1 else 'backend="copy_engine"',
        )
    return programs


def reads_program_id(function: FunctionType, seen: frozenset[FunctionType] = frozenset()) -> str | None:
    """The name of a function, called from ``function`` at any depth, that reads program ids; Triton's and ours do not count."""
    names = function.__code__.co_names
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            values.append(cell.cell_contents)
    modules = [value for value in values if isinstance(value, ModuleType)]
    values += [getattr(module, name, None) for module in modules for name in names]
    for value in values:
        called = getattr(value, "fn", None)
        if not isinstance(called, FunctionType) or called in seen or f"{called.__module__}.".startswith(_OTHERS):
            continue
        if {"program_id", "num_programs"} & set(called.__code__.co_names):
            return called.__name__
        deeper = reads_program_id(called, seen | {function, called})
        if deeper is not None:
            return deeper
    return None


def move_words(instance: Instance, made: Sequence[Group], grid: Grid, often: int = 0) -> list[int]:
    """The table as int64 words.

    Args:
        made: who makes what.
        grid: of the programs that compute.
        often: steps from one part of a program to the next, where the programs that compute make them.
    """
    moves = [move for group in made for move in group.moves]
    programs = sum(group.programs for group in made)
    first_move = HEADER_WORDS + programs * PROGRAM_WORDS
    signals = {move.op: signal for move in moves if (signal := signal_of(instance, move.op)) is not None}
    first_signal = first_move + len(moves) * MOVE_WORDS
    first_await = first_signal + len(signals) * SIGNAL_WORDS
    first_piece = first_await + sum(len(move.awaits) for move in moves)
    records: list[int] = []
    rows: list[int] = []
    awaits: list[int] = []
    pieces: list[int] = []
    base = counter_base(instance.runtime.world, instance.memory.room.flags) + instance.first_move_counter
    for group in made:
        begin = first_move + len(rows)
        for number in range(group.programs):
            records += [begin, len(group.moves), number, group.programs]
        for move in group.moves:
            awaited, piece = first_await + len(awaits), first_piece + len(pieces)
            awaits += [_landing(instance, op_id) for op_id in move.awaits]
            pieces += [word for found in _pieces(instance, move.op) for word in found]
            counter = (base + move.op[1]) * SLOT_WORDS
            rows += [awaited, first_await + len(awaits), piece, first_piece + len(pieces), counter]
            if move.op in signals:
                rows.append(-(first_signal + list(signals).index(move.op) * SIGNAL_WORDS))
            else:
                rows.append(_landing(instance, move.op))
    signalled = [word for signal in signals.values() for word in signal]
    return [programs, *grid, often, *records, *rows, *signalled, *awaits, *pieces]


def _landing(instance: Instance, op_id: OpId) -> int:
    """Address of the flag that says where an operation lands that it has."""
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    return int(flag_word(instance, op_id, op.dst_rank).data_ptr())


def _pieces(instance: Instance, op_id: OpId) -> Iterator[tuple[int, ...]]:
    op = instance.plan.op(op_id)
    if instance.by_network(op_id):
        yield from pieces_of(instance, op_id)
        return
    src = instance.parts[op.src.tensor].source(op_id)
    dst = instance.parts[op.dst.tensor].destination(op_id)
    mover = instance.operator.mover
    boxes = mover.writer == "tma store"
    for piece in plan_copy(dst, src) if src.numel() else ():
        yield from piece_words(piece, boxes=boxes)


def piece_words(piece: CopyPiece, *, boxes: bool = False) -> Iterator[tuple[int, ...]]:
    """Records of a copy, each with the widest words that source and destination allow; ``boxes``: by TMA what it can take."""
    pitches = (piece.src_pitch, piece.dst_pitch) if piece.rows > 1 else ()
    if (piece.src - piece.dst) % WIDE or any(pitch % WIDE for pitch in pitches):
        parts = [(0, piece.width, False)]
    else:
        head = min(piece.width, -piece.src % WIDE)
        body = (piece.width - head) // WIDE * WIDE
        parts = [(0, head, False), (head, body, boxes), (head + body, piece.width - head - body, False)]
    for begin, width, wide in parts:
        if width:
            part = replace(piece, src=piece.src + begin, dst=piece.dst + begin, width=width)
            for laid in _rows_of_boxes(part) if wide else (part,):
                yield from _limited(laid, boxes=wide)


def _rows_of_boxes(piece: CopyPiece) -> Iterator[CopyPiece]:
    """One row as rows of a box's width, and what is left over; other pieces as they are."""
    laid = piece.width // BOX_WIDTH * BOX_WIDTH
    if piece.rows > 1 or laid < LEAST_BYTES:
        yield piece
        return
    yield CopyPiece(piece.dst, piece.src, BOX_WIDTH, laid // BOX_WIDTH, BOX_WIDTH, BOX_WIDTH)
    if piece.width > laid:
        yield replace(piece, src=piece.src + laid, dst=piece.dst + laid, width=piece.width - laid)


def _limited(piece: CopyPiece, *, boxes: bool) -> Iterator[tuple[int, ...]]:
    pitches = (piece.src_pitch, piece.dst_pitch) if piece.rows > 1 else (0, 0)
    word = next(w for w in (WIDE, 4, 1) if not any(n % w for n in (piece.src, piece.dst, piece.width, *pitches)))
    row = piece.width // word
    if row * piece.rows <= MOST_WORDS:
        if boxes and LEAST_WIDTH <= piece.width <= MOST_WIDTH and piece.width * piece.rows >= LEAST_BYTES:
            # Of a single row any pitch will do that is a row's.
            steps = [(pitch or piece.width) // 4 for pitch in pitches]
            yield BOXES, piece.src, piece.dst, piece.rows, piece.width // 4, *steps
            return
        unit = word if word < WIDE else WIDE // 2
        kind = IN_ROW if word == WIDE and piece.rows == 1 and not boxes else word
        yield kind, piece.src, piece.dst, row * piece.rows, row, pitches[0] // unit, pitches[1] // unit
        return
    if piece.rows > 1:
        upper = piece.rows // 2
        lower = replace(
            piece,
            src=piece.src + upper * piece.src_pitch,
            dst=piece.dst + upper * piece.dst_pitch,
            rows=piece.rows - upper,
        )
        halves = (replace(piece, rows=upper), lower)
    else:
        left = row // 2 * word
        halves = (
            replace(piece, width=left),
            replace(piece, src=piece.src + left, dst=piece.dst + left, width=piece.width - left),
        )
    for half in halves:
        yield from _limited(half, boxes=boxes)
