"""Copies by TMA: boxes of a piece from one address to another, a peer's memory included (sm_90).

    program p of n   box p -> shared memory -> there | box p + n | box p + 2 n ...     `STAGES` on the way at a time

Descriptors are made where they are used, once a piece: what is moved is known from a table. A store is done when
`overlap.language.flags.landed` has returned; Triton waits only until its source was read (3.6 and 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import moves as _table

_SRC: tl.constexpr = tl.constexpr(_table.P_SRC)
_DST: tl.constexpr = tl.constexpr(_table.P_DST)
_ROWS: tl.constexpr = tl.constexpr(_table.P_WORDS)
_ROW: tl.constexpr = tl.constexpr(_table.P_ROW)
_SRC_PITCH: tl.constexpr = tl.constexpr(_table.P_SRC_PITCH)
_DST_PITCH: tl.constexpr = tl.constexpr(_table.P_DST_PITCH)
_SMALL: tl.constexpr = tl.constexpr(_table.SMALL_BOX_ROWS)
_WIDE: tl.constexpr = tl.constexpr(_table.BOX_WORDS)


@triton.jit
def copy_boxes(piece, turn, programs, HIGH: tl.constexpr, STAGES: tl.constexpr):
    """Every ``programs``-th box of a piece of kind `BOXES`, from box ``turn`` on.

    What stands beyond the piece's edge in a box is neither read nor written.

    Args:
        HIGH: rows of a box.
        STAGES: boxes on the way at a time; 0: one, without a ``for`` that would keep a tile loop around it from being flattened.
    """
    rows = tl.load(piece + _ROWS).to(tl.int32)
    row = tl.load(piece + _ROW).to(tl.int32)
    across = tl.cdiv(row, _WIDE)
    boxes = tl.cdiv(rows, HIGH) * across
    if turn < boxes:
        src = tl.load(piece + _SRC).to(tl.pointer_type(tl.int32))
        dst = tl.load(piece + _DST).to(tl.pointer_type(tl.int32))
        here = tl.make_tensor_descriptor(src, [rows, row], [tl.load(piece + _SRC_PITCH), 1], [HIGH, _WIDE])
        there = tl.make_tensor_descriptor(dst, [rows, row], [tl.load(piece + _DST_PITCH), 1], [HIGH, _WIDE])
        if STAGES > 0:
            for box in tl.range(turn, boxes, programs, num_stages=STAGES):
                at = [box // across * HIGH, box % across * _WIDE]
                there.store(at, here.load(at))
        else:
            box = turn
            while box < boxes:
                at = [box // across * HIGH, box % across * _WIDE]
                there.store(at, here.load(at))
                box += programs


@triton.jit(noinline=True)
def copy_small_boxes(piece, turn, programs):
    """The same between two tiles of a program: small boxes, one at a time.

    A function of its own in machine code too: Triton cannot pipeline a loop around a ``while`` with descriptors made in it (3.6
    to 3.9).
    """
    copy_boxes(piece, turn, programs, _SMALL, 0)
