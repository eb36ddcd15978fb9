"""Copies by TMA: boxes of a piece from one address to another, a peer's memory included (sm_90).

    program p of n   box p -> shared memory -> there | box p + n | box p + 2 n ...     `STAGES` on the way at a time

Programs that do nothing else make descriptors where they use them, once a piece: what is moved is known from a table. A store is
done when `overlap.language.flags.landed` has returned; Triton waits only until its source was read (3.6 and 3.7).

Between two tiles a program copies small boxes without descriptors, each row by a thread of its first warp and by itself, or rows
that follow each other all by the first thread:

    thread t   row t of a box -> its 256 bytes of `box_memory` -> there | row t of the next box ...

What Triton sees of that is one instruction a box: it cannot pipeline a tile loop around descriptors that are made in a ``while``
(3.6 to 3.9). The memory is not Triton's, which lays out its own by what it sees: static shared memory, ahead of the dynamic one
that Triton's buffers are in, of a size that leaves those where they were modulo 1024 (swizzled TMA and wgmma need that).
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
_ROW_BYTES = 4 * _table.BOX_WORDS
MEMORY = "ol_boxes"
"""Name in assembly of what small boxes are copied through."""


def memory_assembly() -> str:
    """Static shared memory for a small box and its barriers; gives its address."""
    return f"{{ .shared .align 1024 .b8 {MEMORY}[{_table.BETWEEN_BYTES}]; mov.u32 $0, {MEMORY}; }}"


def copy_assembly() -> str:
    """Rows of a small box through that memory, each by a thread that has a barrier of its own behind the rows.

    What a thread has waited for there its next bulk copy reads, in the same proxy; its last wait is for what its next box will
    overwrite. The copies out have landed when `overlap.language.flags.landed` has returned.
    """
    return f"""
    {{
    .reg .pred done;
    .reg .b32 row, data, barrier;
    .reg .b64 steps, from, to;
    mov.b32 $0, 0;
    mov.u32 row, %tid.x;
    setp.ge.u32 done, row, $6;
    @done bra END;
    mad.lo.u32 data, row, {_ROW_BYTES}, $1;
    mad.lo.u32 barrier, row, 8, $1;
    add.u32 barrier, barrier, {_table.SMALL_BOX_ROWS * _ROW_BYTES};
    cvt.u64.u32 steps, row;
    mad.lo.s64 from, steps, $4, $2;
    mad.lo.s64 to, steps, $5, $3;
    mbarrier.init.shared::cta.b64 [barrier], 1;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], $7;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [data], [from], $7, [barrier];
    AGAIN:
    mbarrier.try_wait.parity.shared::cta.b64 done, [barrier], 0;
    @!done bra AGAIN;
    mbarrier.inval.shared::cta.b64 [barrier];
    cp.async.bulk.global.shared::cta.bulk_group [to], [data], $7;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    END:
    }}
    """


_MEMORY: tl.constexpr = tl.constexpr(memory_assembly())
_COPY: tl.constexpr = tl.constexpr(copy_assembly())


@triton.jit
def copy_boxes(piece, turn, programs, HIGH: tl.constexpr, STAGES: tl.constexpr):
    """Every ``programs``-th box of a piece of kind `BOXES`, from box ``turn`` on.

    What stands beyond the piece's edge in a box is neither read nor written.

    Args:
        HIGH: rows of a box.
        STAGES: boxes on the way at a time.
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
        for box in tl.range(turn, boxes, programs, num_stages=STAGES):
            at = [box // across * HIGH, box % across * _WIDE]
            there.store(at, here.load(at))


@triton.jit
def box_memory():
    """Address in shared memory of what `copy_small_boxes` copies through; once a kernel, each call takes memory of its own."""
    return tl.inline_asm_elementwise(_MEMORY, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def copy_small_boxes(piece, turn, programs, memory):
    """Every ``programs``-th small box of a piece of kind `BOXES`, from box ``turn`` on, one at a time through ``memory``."""
    rows = tl.load(piece + _ROWS).to(tl.int32)
    row = tl.load(piece + _ROW).to(tl.int32)
    src, src_pitch = tl.load(piece + _SRC), tl.load(piece + _SRC_PITCH) * 4
    dst, dst_pitch = tl.load(piece + _DST), tl.load(piece + _DST_PITCH) * 4
    across = tl.cdiv(row, _WIDE)
    boxes = tl.cdiv(rows, _SMALL) * across
    # Rows that follow each other at both ends go as one, by one thread.
    flat = (src_pitch == _WIDE * 4) & (dst_pitch == _WIDE * 4)
    box = turn
    # A `while`: with a second `for` in it a tile loop would not be flattened.
    while box < boxes:
        first, word = box // across * _SMALL, box % across * _WIDE
        here, there = src + first * src_pitch + word * 4, dst + first * dst_pitch + word * 4
        high, size = tl.minimum(rows - first, _SMALL), tl.minimum(row - word, _WIDE) * 4
        _copy_box(memory, here, there, src_pitch, dst_pitch, tl.where(flat, 1, high), tl.where(flat, high * size, size))
        box += programs


@triton.jit
def _copy_box(memory, here, there, src_pitch, dst_pitch, rows, size):
    """``rows`` rows of ``size`` bytes, which the memory holds: addresses and pitches in bytes, all of them multiples of 16."""
    tl.inline_asm_elementwise(
        _COPY,
        "=r,r,l,l,l,l,r,r",
        [memory, here, there, src_pitch, dst_pitch, rows, size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
