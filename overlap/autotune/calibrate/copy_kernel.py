"""A copy by load/store, by as many programs as are launched: what the multiprocessors reach over a link."""

from __future__ import annotations

import triton
import triton.language as tl

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
def nothing(word_ptr):
    """An empty kernel that is not optimised away."""
    tl.store(word_ptr, 0)
