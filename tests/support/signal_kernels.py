"""Kernels made of the public words, run on simulated ranks and on GPUs."""

from __future__ import annotations

import triton
import triton.language as tl

import overlap.language as ol


@triton.jit(do_not_specialize=["launch"])
def exchange(x_ptr, out_ptr, box_ptr, h, n, launch, BLOCK: tl.constexpr, PULL: tl.constexpr):
    """Adds up what all ranks have, by puts into the peers' boxes or gets from the peers' own."""
    me, world = ol.rank(h), ol.num_ranks(h)
    at = tl.arange(0, BLOCK)
    total = tl.load(x_ptr + at, mask=at < n, other=0)
    if PULL:
        tl.store(box_ptr + me * n + at, total, mask=at < n)
        for peer in range(world):
            ol.notify(h, me, peer, launch)
        for peer in range(world):
            if peer != me:
                total += ol.get(h, box_ptr + peer * n + at, peer, peer, launch, mask=at < n, other=0)
    else:
        for peer in range(world):
            if peer != me:
                ol.put(h, box_ptr + me * n + at, total, peer, me, launch, mask=at < n)
        for peer in range(world):
            if peer != me:
                seen = ol.wait(h, peer, launch)
                total += tl.load(ol.after(box_ptr, seen) + peer * n + at, mask=at < n, other=0)
    tl.store(out_ptr + at, total, mask=at < n)
    # Nobody goes on before everybody has read.
    for peer in range(world):
        ol.notify(h, world, peer, 1, "add")
    ol.wait(h, world, launch * world)


@triton.jit(do_not_specialize=["launch"])
def through_tma(x_ptr, out_ptr, box_ptr, h, launch, SIDE: tl.constexpr, FENCED: tl.constexpr, LANDED: tl.constexpr):
    """Moves a square to the right neighbour, stored and loaded there through descriptors."""
    me, world = ol.rank(h), ol.num_ranks(h)
    right, left = (me + 1) % world, (me + world - 1) % world
    i = tl.arange(0, SIDE)
    at = i[:, None] * SIDE + i[None, :]
    taken = ol.wait(h, 1, launch - 1)
    there = tl.make_tensor_descriptor(ol.symm_at(h, box_ptr, right), [SIDE, SIDE], [SIDE, 1], [SIDE, SIDE])
    there.store([ol.after_async(tl.program_id(0), taken), 0], tl.load(x_ptr + at))
    if LANDED:
        ol.notify_async(h, 0, right, launch)
    else:
        ol.notify(h, 0, right, launch)
    seen = ol.wait(h, 0, launch)
    row = ol.after_async(tl.program_id(0), seen) if FENCED else ol.after(tl.program_id(0), seen)
    mine = tl.make_tensor_descriptor(box_ptr, [SIDE, SIDE], [SIDE, 1], [SIDE, SIDE])
    tl.store(out_ptr + at, mine.load([row, 0]))
    ol.notify(h, 1, left, launch)
