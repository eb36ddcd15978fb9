"""The entry kernel and the wait kernel: the launch protocol's own Triton code.

    entry:  wait done[p] >= n-1 of all peers | stage the own shard | epoch = n | ready[me] = n at all peers | wait ready[p] >= n

One launch does all of it: every program stages its part and counts itself in; the last one publishes.
"""

from __future__ import annotations

import triton
import triton.language as tl

import overlap.language as ol
from overlap.schedule import table as _layout

_SLOT_WORDS: tl.constexpr = tl.constexpr(_layout.SLOT_WORDS)
_EPOCH: tl.constexpr = tl.constexpr(_layout.S_EPOCH * _layout.SLOT_WORDS)
_COUNTER: tl.constexpr = tl.constexpr(_layout.S_COUNTER * _layout.SLOT_WORDS)
_READY: tl.constexpr = tl.constexpr(_layout.S_READY)


@triton.jit
def entry_kernel(
    src,
    dst,
    state,
    peers,
    rank,
    world,
    programs,
    n0,
    n1,
    n2,
    n3,
    s0,
    s1,
    s2,
    s3,
    d0,
    d1,
    d2,
    d3,
    STAGE: tl.constexpr,
    WAIT_DONE: tl.constexpr,
    READY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Opens launch n on this rank.

    ``src``/``dst``: the shard and its place in the symmetric tensor, extents ``n*``, strides ``s*``/``d*`` in elements;
    ``state``: this rank's int64 state words; ``peers``: int64 addresses of every rank's state words.
    """
    pid = tl.program_id(0)
    last = tl.load(state + _EPOCH)
    if WAIT_DONE:
        for p in range(world):
            if p != rank:
                ol.poll(state + (_READY + world + p) * _SLOT_WORDS, last, state)
    if STAGE:
        total = tl.cast(n0, tl.int64) * n1 * n2 * n3
        for start in range(pid * BLOCK, total, programs * BLOCK):
            i = start + tl.arange(0, BLOCK).to(tl.int64)
            inside = i < total
            i3 = i % n3
            i2 = (i // n3) % n2
            i1 = (i // n3 // n2) % n1
            i0 = i // n3 // n2 // n1
            value = tl.load(src + i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3, mask=inside)
            tl.store(dst + i0 * d0 + i1 * d1 + i2 * d2 + i3 * d3, value, mask=inside)
    tl.debug_barrier()
    arrived = tl.atomic_add(state + _COUNTER, 1, sem="acq_rel", scope="gpu")
    if arrived == programs - 1:
        tl.atomic_xchg(state + _COUNTER, 0, sem="relaxed", scope="gpu")
        tl.atomic_xchg(state + _EPOCH, last + 1, sem="release", scope="sys")
        if READY:
            for p in range(world):
                if p != rank:
                    peer = tl.load(peers + p).to(tl.pointer_type(tl.int64))
                    ol.notify(peer + (_READY + rank) * _SLOT_WORDS, last + 1)
            for p in range(world):
                if p != rank:
                    ol.poll(state + (_READY + p) * _SLOT_WORDS, last + 1, state)


@triton.jit
def wait_kernel(flag, state):
    """Holds a stream until ``flag`` (on this rank or a peer) reaches this rank's epoch."""
    ol.poll(flag, ol.now(state), state)
