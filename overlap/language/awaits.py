"""Flags that every thread of a program looks at by itself until they are up, several in the time of one; and loads likewise.

`overlap.language.poll` looks at one flag by one thread, and tells the others through shared memory; it takes the flag, the limit
and the record of a late wait one behind the other. Here a thread has one flag of its own, whose look and the limit's are on their
way together, flags are waited for side by side, and nothing is recorded before the end of the program (`record_late`). The
assembly is NVIDIA's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.schedule import table as _layout

_SPIN_LIMIT: tl.constexpr = tl.constexpr(_layout.S_SPIN_LIMIT * _layout.SLOT_WORDS)


def await_assembly() -> str:
    """Looks until the flag is at least what is wanted, or the limit on looks is reached, which it then lowers to one.

    ``$0`` the value seen; operands: address, value wanted, whether there is anything to wait for, address of the limit (0: none).
    """
    return """{
    .reg .pred on;
    .reg .b64 seen, looks, most;
    mov.b64 seen, $2;
    mov.b64 looks, 0;
    setp.eq.b32 on, $3, 0;
    @on bra done;
    again:
    ld.relaxed.gpu.global.b64 most, [$4];
    ld.acquire.sys.global.b64 seen, [$1];
    setp.ge.s64 on, seen, $2;
    @on bra done;
    add.s64 looks, looks, 1;
    setp.eq.s64 on, most, 0;
    @on bra again;
    setp.lt.s64 on, looks, most;
    @on bra again;
    st.relaxed.gpu.global.b64 [$4], 1;
    done:
    mov.b64 $0, seen;
    }"""


_AWAIT: tl.constexpr = tl.constexpr(await_assembly())


@triton.jit
def await_flags(address, there, wanted, state):
    """The values (int64) of int64 flags at ``address`` (int64), as far as they are ``there``, once they are at least ``wanted``.

    Less where the spin limit in ``state`` was reached; ``wanted`` where there is none. All threads are behind what one has seen.

    Args:
        address: a block of them, one a thread or more.
    """
    seen = tl.inline_asm_elementwise(
        _AWAIT,
        "=l,l,l,r,l",
        [address, wanted + tl.zeros(address.shape, tl.int64), there.to(tl.int32), (state + _SPIN_LIMIT).to(tl.int64)],
        dtype=tl.int64,
        is_pure=False,
        pack=1,
    )
    tl.debug_barrier()
    return seen


STREAM = "griddepcontrol.wait; mov.b32 $0, 0;"
_STREAM: tl.constexpr = tl.constexpr(STREAM)


@triton.jit
def await_stream():
    """Waits until everything ahead on the stream has ended, in launches that may begin before (sm_90); in others it is so."""
    tl.inline_asm_elementwise(_STREAM, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


def barrier_assembly() -> str:
    """A CTA barrier that adds to ``$1`` whether it is the least of all numbers for any thread."""
    return """{
    .reg .pred least;
    .reg .b32 more;
    setp.eq.b32 least, $1, -2147483648;
    bar.red.or.pred least, 0, least;
    selp.b32 more, 1, 0, least;
    add.s32 $0, $1, more;
    }"""


_BARRIER: tl.constexpr = tl.constexpr(barrier_assembly())


@triton.jit
def behind_barrier(number):
    """``number`` (int32, not the least of all) behind a CTA barrier; that it stays as it is the assembler cannot know.

    Loads ahead of it are issued ahead of all that is computed from it. Of loads alone, whatever their order in the program, the
    assembler makes one after the other where that saves registers.
    """
    return tl.inline_asm_elementwise(_BARRIER, "=r,r", [number], dtype=tl.int32, is_pure=False, pack=1)
