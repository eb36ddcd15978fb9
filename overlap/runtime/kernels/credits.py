"""Credits by a kernel: peers are told this rank's epoch once all that they sent it has been read.

    behind everything    credits_kernel, of one warp
    behind a sum         every program: read, add, store | barrier | count out | the last one: barrier, raise `done` at peers

Programs count out with release and acquire at the device's scope, so what any of them read is behind the last one's release at
the system's, which peers' entries acquire; at the system's scope where they have stored in peers' memory, whose flags are then
raised with the credits. Any number of programs will do, whether or not they are resident together.
"""

from __future__ import annotations

import triton
import triton.language as tl

import overlap.language as ol
from overlap.schedule import table as _layout

_ENDED: tl.constexpr = tl.constexpr(_layout.SUMS_WORD)
_LANES: tl.constexpr = tl.constexpr(32)


@triton.jit
def give_credits(words, count, epoch):
    """Raises ``count`` state words of peers, whose int64 addresses stand at ``words``, to ``epoch``."""
    for begin in range(0, count, _LANES):
        lanes = begin + tl.arange(0, _LANES)
        addresses = tl.load(words + lanes, mask=lanes < count, other=0)
        ol.raise_flags(addresses.to(tl.pointer_type(tl.int64)), lanes < count, epoch)


@triton.jit(do_not_specialize=["count"])
def credits_kernel(words, count, state):
    """Tells ranks this rank's epoch; ``words``: int64 addresses of ``count`` state words of theirs, which pointers reach."""
    give_credits(words, count, ol.now(state))


@triton.jit
def last_to_end(state, programs, SYSTEM: tl.constexpr = False):
    """Whether this program is the last of ``programs`` to come here: all that they have read and written is behind it.

    The next launch counts from zero again, however many programs it has. ``SYSTEM``: they have written to peers' memory.
    """
    tl.debug_barrier()
    if SYSTEM:
        ended = tl.atomic_add(state + _ENDED, 1, sem="acq_rel", scope="sys")
    else:
        ended = tl.atomic_add(state + _ENDED, 1, sem="acq_rel", scope="gpu")
    last = ended == programs - 1
    tl.atomic_xchg(state + _ENDED, 0, mask=last, sem="relaxed", scope="gpu")
    return last
