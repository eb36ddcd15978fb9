"""Flags and what must stand around them: the words that every other word is made of.

A flag is an int64 word in symmetric memory that only grows. Each word obeys a row of
`overlap.backends.memory_rules`:

* a poll is ``tl.atomic_add(flag, 0, sem="acquire", scope="sys")``; a plain load in a loop is deleted by LLVM;
* what is loaded behind a poll has an index that depends on what the poll returned (`after`), or the compiler issues
  the load first in a pipelined loop;
* before a flag is raised all threads of the program have stored: a CTA barrier, and TMA stores have landed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import table as _layout

_SPIN_LIMIT: tl.constexpr = tl.constexpr(_layout.S_SPIN_LIMIT * _layout.SLOT_WORDS)
_FAULT: tl.constexpr = tl.constexpr(_layout.S_FAULT * _layout.SLOT_WORDS)


@triton.jit
def poll(flag, wanted, state):
    """Polls an int64 ``flag`` until it is at least ``wanted``; returns the value seen.

    With a spin limit in ``state`` (0: none) it gives up after that many polls and returns what it saw, so that the
    grid drains. The first poll of a launch to give up writes the record that ``state`` points to (layout:
    `overlap.runtime.faults.faults`) and lowers the limit to one, so that no later poll waits as long again.
    """
    seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    limit = tl.atomic_add(state + _SPIN_LIMIT, 0, sem="relaxed", scope="gpu")
    spins = limit * 0
    while (seen < wanted) & ((limit == 0) | (spins < limit)):
        seen = tl.atomic_add(flag, 0, sem="acquire", scope="sys")
        spins += 1
    late = seen < wanted
    earlier = tl.atomic_xchg(state + _FAULT, 1, mask=late, sem="relaxed", scope="gpu")
    first = late & (earlier == 0)
    record = tl.load(state + _FAULT + 1).to(tl.pointer_type(tl.int64))
    launched = tl.load(state + _FAULT + 2)
    tl.store(record, 1, mask=first)
    tl.store(record + 1, flag.to(tl.int64), mask=first)
    tl.store(record + 2, wanted, mask=first)
    tl.store(record + 3, seen, mask=first)
    tl.store(record + 4, launched, mask=first)
    tl.atomic_xchg(state + _SPIN_LIMIT, 1, mask=late, sem="relaxed", scope="gpu")
    return seen


@triton.jit
def after(index, seen):
    """``index``, a number or pointers, computed from ``seen``: flags are never negative, which no compiler can know.

    What is added is a multiple of anything, and the compiler is told so, or pointers would lose their alignment.
    """
    return index + tl.multiple_of(tl.minimum(seen, 0).to(tl.int32), 16)


@triton.jit
def after_async(index, seen):
    """An int32 ``index``, dependent on ``seen``, with the proxy fence that TMA loads need behind an acquire (sm_90)."""
    return tl.inline_asm_elementwise(
        "fence.proxy.async.global; mov.b32 $0, $1;",
        "=r,r,l",
        [index + 0, seen + tl.zeros((), tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def landed(value):
    """An int32 ``value``, behind a CTA barrier that TMA stores have reached landed, not only read (sm_90).

    ``tl.debug_barrier`` at the tail of a flattened loop drops its pipeline to one stage (Triton 3.6 to 3.9); this does not.
    """
    return tl.inline_asm_elementwise(
        "cp.async.bulk.wait_group 0; bar.sync 0; mov.b32 $0, $1;",
        "=r,r",
        [value],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def landed_if(value, there):
    """As `landed` where the int32 ``there``, the same for all threads, is not 0; else nothing is waited for.

    By a predicate, since a branch at the tail of a flattened loop is more than Triton 3.6 takes.
    """
    return tl.inline_asm_elementwise(
        """{
            .reg .pred there;
            setp.ne.b32 there, $2, 0;
            @there cp.async.bulk.wait_group 0;
            @there bar.sync 0;
            mov.b32 $0, $1;
        }""",
        "=r,r,r",
        [value, there],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def raise_flag(flag, value):
    """Raises an int64 ``flag``, local or a peer's, to ``value`` after all stores of this program.

    The barrier is written out: Triton 3.6 to 3.8 put none between a store and a release atomic.
    """
    tl.debug_barrier()
    tl.atomic_xchg(flag, value, sem="release", scope="sys")


@triton.jit
def raise_flags(flags, there, value):
    """Raises int64 flags, a block of pointers as far as they are ``there``, to ``value``, after all stores of this program.

    In one instruction: of several releases, one behind the other, each would wait for the one before it.
    """
    tl.debug_barrier()
    tl.atomic_xchg(flags, value + tl.zeros(flags.shape, tl.int64), mask=there, sem="release", scope="sys")


@triton.jit
def look(flags, there, wanted):
    """The least that int64 flags, a block of pointers as far as they are ``there``, have come to; ``wanted`` at most.

    Each look takes the way to the memory and back, and of several, one behind the other, none begins before the one ahead has
    come. All threads are behind what one has seen. Flags that are not there yet are `poll`'s, which knows of deadlines.
    """
    seen = tl.atomic_add(flags, tl.zeros(flags.shape, tl.int64), mask=there, sem="acquire", scope="sys")
    least = tl.min(tl.where(there, tl.minimum(seen, wanted), wanted))
    tl.debug_barrier()
    return least
