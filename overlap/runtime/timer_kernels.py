"""Kernels of one program that read the device's timer: rounds of all ranks, stamps, and what looks at flags."""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.language import notify, wait
from overlap.language.record import timer
from overlap.schedule.table import S_SPIN_LIMIT, SLOT_WORDS

_SLOT_WORDS: tl.constexpr = tl.constexpr(SLOT_WORDS)
_SPIN_LIMIT: tl.constexpr = tl.constexpr(S_SPIN_LIMIT * SLOT_WORDS)


@triton.jit(do_not_specialize=["rank", "first"])
def meet_kernel(h, times, rank, first, world, rounds):
    """``rounds`` rounds, for which signals go from ``first`` up; ``times``: int64, two a round."""
    for i in range(rounds):
        tl.store(times + 2 * i, timer())
        for p in range(world):
            notify(h, rank, p, first + i + tl.zeros((), tl.int64))
        for p in range(world):
            wait(h, p, first + i + tl.zeros((), tl.int64))
        tl.store(times + 2 * i + 1, timer())


@triton.jit
def stamp_kernel(times, reads):
    """The timer now, and the smallest step that so many reads of it show (0: none)."""
    last = timer()
    tl.store(times, last)
    step = last * 0
    for _ in range(reads):
        now = timer()
        further = now - last
        step = tl.where((further > 0) & ((step == 0) | (further < step)), further, step)
        last = now
    tl.store(times + 1, step)


@triton.jit(do_not_specialize=["wanted", "count"])
def watch_kernel(state, slots, times, wanted, count, LANES: tl.constexpr):
    """``slots``: of ``count`` words of ``state``; ``times``: int64, when each was first seen to be at least ``wanted``.

    Gives up with the spin limit of a launch's waits, as they do.
    """
    lanes = tl.arange(0, LANES)
    left = lanes < count
    words = state + tl.load(slots + lanes, mask=left, other=0) * _SLOT_WORDS
    none = tl.zeros((LANES,), tl.int64)
    limit = tl.load(state + _SPIN_LIMIT)
    spins = limit * 0
    pending = tl.sum(left.to(tl.int32))
    while (pending > 0) & ((limit == 0) | (spins < limit)):
        seen = tl.atomic_add(words, none, mask=left, sem="acquire", scope="sys")
        now = timer()
        came = left & (seen >= wanted)
        tl.store(times + lanes, now + none, mask=came)
        left = left & (seen < wanted)
        pending = tl.sum(left.to(tl.int32))
        spins += 1
