"""Kernels of one program that read the device's timer: rounds of all ranks, and stamps."""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.language import notify, wait
from overlap.language.record import timer


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
