"""Copies by load/store and by TMA, by as many programs as are launched: what the multiprocessors reach over a link."""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.language.boxes import copy_boxes
from overlap.language.flags import landed
from overlap.schedule.moves import BOX_ROWS, BOX_WORDS, BOXES, STAGES

_BOX_ROWS: tl.constexpr = tl.constexpr(BOX_ROWS)
_STAGES: tl.constexpr = tl.constexpr(STAGES)
WORDS = 8192
"""int32 words that a program moves in one step."""


@triton.jit
def copy_words(dst_ptr, src_ptr, count, WORDS: tl.constexpr):
    """``count`` int32 words, a multiple of WORDS, from one address to another."""
    # The bytes of a step are whole vectors at aligned addresses, which the compiler cannot know of a peer's memory.
    for block in tl.range(tl.program_id(0), count // WORDS, tl.num_programs(0), num_stages=4):
        at = block.to(tl.int64) * WORDS + tl.max_contiguous(tl.arange(0, WORDS), WORDS)
        tl.store(dst_ptr + at, tl.load(src_ptr + at))


@triton.jit
def copy_piece(piece_ptr):
    """A piece of kind `BOXES` (`overlap.schedule.moves`), as moving programs copy it."""
    copy_boxes(piece_ptr, tl.program_id(0), tl.num_programs(0), _BOX_ROWS, _STAGES)
    landed(tl.zeros((), tl.int32))


def piece_of(dst: int, src: int, nbytes: int) -> list[int]:
    """The record of a contiguous copy between two addresses; ``nbytes`` a multiple of a box's row."""
    row = 4 * BOX_WORDS
    return [BOXES, src, dst, nbytes // row, BOX_WORDS, BOX_WORDS, BOX_WORDS]


@triton.jit
def nothing(word_ptr):
    """An empty kernel that is not optimised away."""
    tl.store(word_ptr, 0)
