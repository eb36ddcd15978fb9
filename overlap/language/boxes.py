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
_HIGH: tl.constexpr = tl.constexpr(_table.BOX_ROWS)
_WIDE: tl.constexpr = tl.constexpr(_table.BOX_WORDS)
_STAGES: tl.constexpr = tl.constexpr(_table.STAGES)


@triton.jit
def copy_boxes(piece, turn, programs):
    """Every ``programs``-th box of a piece of kind `BOXES`, from box ``turn`` on.

    What stands beyond the piece's edge in a box is neither read nor written.
    """
    rows = tl.load(piece + _ROWS).to(tl.int32)
    row = tl.load(piece + _ROW).to(tl.int32)
    across = tl.cdiv(row, _WIDE)
    boxes = tl.cdiv(rows, _HIGH) * across
    if turn < boxes:
        src = tl.load(piece + _SRC).to(tl.pointer_type(tl.int32))
        dst = tl.load(piece + _DST).to(tl.pointer_type(tl.int32))
        here = tl.make_tensor_descriptor(src, [rows, row], [tl.load(piece + _SRC_PITCH), 1], [_HIGH, _WIDE])
        there = tl.make_tensor_descriptor(dst, [rows, row], [tl.load(piece + _DST_PITCH), 1], [_HIGH, _WIDE])
        for box in tl.range(turn, boxes, programs, num_stages=_STAGES):
            at = [box // across * _HIGH, box % across * _WIDE]
            there.store(at, here.load(at))
