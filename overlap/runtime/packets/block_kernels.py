"""The kernels of collectives by blocks, for messages so long that a flag behind each block costs less than one in every word.

    exchange_blocks   every rank's piece for every other, as it is          all-gather, all-to-all
    sum_blocks        the same, and what arrives is added in rank order     all-reduce, reduce-scatter
    two_step_blocks   each rank adds a part, and sends the sums to all      all-reduce

    program    send its blocks | wait for a block, take it -> result, block by block | epoch + 1
    two steps  send its blocks | wait for a block of all, add, send the sum, block by block | wait for a sum, take it

No program waits before it has sent all that others wait for in that step, and all are resident at once; a first step waits for
nothing but what was sent ahead of every wait, and a second one for nothing but first steps. So none waits for ever.

Arguments of all: ``src``/``out``, boxes of them in units as `block_parts` says; ``slots``: this rank's memory, ``peers``: the
addresses of every rank's; ``calls``: the epoch of the last call, a word a program; ``capacity``: bytes of a slot, ``places``: its
flags.
"""

from __future__ import annotations

import triton
import triton.language as tl

from overlap.language.awaits import await_stream

from .block_parts import (
    addresses_of,
    await_all,
    await_block,
    blocks_of,
    box_part,
    end_call,
    peer_at,
    push_blocks,
    quotient,
    send_to_all,
    sum_block,
    taken_block,
)
from .lines import width_of

UNSPECIALISED = [
    "rank", "world", "programs", "capacity", "places", "rows", "chunk", "total", "to_rows", "to_chunk", "to_total",
]  # fmt: skip


@triton.jit(do_not_specialize=UNSPECIALISED)
def exchange_blocks_kernel(src, out, slots, peers, calls, state, rank, world, programs, capacity, places,
                           rows, chunk, total, to_rows, to_chunk, to_total, FLAT: tl.constexpr, TO_FLAT: tl.constexpr,
                           PARTS: tl.constexpr, VEC: tl.constexpr, UNITS: tl.constexpr, BYTES: tl.constexpr,
                           RANKS: tl.constexpr, LANES: tl.constexpr, EARLY: tl.constexpr = False):  # fmt: skip
    """Every rank's piece for every other; boxes of ``out`` are always by rank."""
    if EARLY:
        await_stream()
    pid = tl.program_id(0)
    epoch = push_blocks(src, peers, calls, pid, rank, world, programs, capacity, places, rows, chunk, total,
                        FLAT, PARTS, VEC, UNITS, BYTES, RANKS)  # fmt: skip
    own = slots.to(tl.int64)
    late = tl.zeros((LANES,), tl.int32)
    for pair in range(pid, blocks_of(to_rows * tl.minimum(to_chunk, to_total), UNITS) * world, programs):
        block = quotient(pair, world)
        sender = peer_at(pair - block * world, rank, world)
        if block < blocks_of(to_rows * width_of(sender, to_chunk, to_total), UNITS):
            to, inside = box_part(out, block, sender, to_rows, to_chunk, to_total, TO_FLAT, VEC, UNITS)
            if sender == rank:
                part, _ = box_part(src, block, rank if PARTS else 0, rows, chunk, total, FLAT, VEC, UNITS)
                data = tl.load(part, mask=inside)
            else:
                here, late = await_block(own, epoch, state, sender, world, capacity, places, block, late, LANES)
                data = taken_block(
                    own, here, epoch, sender, inside, world, capacity, block, src.dtype.element_ty, VEC, UNITS, BYTES
                )
            tl.store(to, data, mask=inside)
    end_call(own, calls, state, epoch, pid, programs, world, capacity, places, late)


@triton.jit(do_not_specialize=UNSPECIALISED)
def sum_blocks_kernel(src, out, slots, peers, calls, state, rank, world, programs, capacity, places, rows, chunk, total,
                      FLAT: tl.constexpr, PARTS: tl.constexpr, ACCUMULATOR: tl.constexpr, SENDERS: tl.constexpr,
                      VEC: tl.constexpr, UNITS: tl.constexpr, BYTES: tl.constexpr, RANKS: tl.constexpr,
                      LANES: tl.constexpr, EARLY: tl.constexpr = False):  # fmt: skip
    """The sum of every rank's piece for this rank, added in rank order in ``ACCUMULATOR`` and rounded once, to ``out``, dense.

    Where all ranks get the same ``out`` may be ``src``: of a block, a program sends all and then stores the sum.
    """
    if EARLY:
        await_stream()
    pid = tl.program_id(0)
    epoch = push_blocks(src, peers, calls, pid, rank, world, programs, capacity, places, rows, chunk, total,
                        FLAT, PARTS, VEC, UNITS, BYTES, RANKS)  # fmt: skip
    own = slots.to(tl.int64)
    late = tl.zeros((LANES,), tl.int32)
    mine = rank if PARTS else 0
    units = rows * width_of(mine, chunk, total)
    for block in range(pid, blocks_of(units, UNITS), programs):
        part, inside = box_part(src, block, mine, rows, chunk, total, FLAT, VEC, UNITS)
        kept = tl.load(part, mask=inside)
        here, late = await_all(own, epoch, state, rank, world, capacity, places, block, late, RANKS, LANES)
        added = sum_block(
            own, here, kept, epoch, inside, rank, world, capacity, block, ACCUMULATOR, SENDERS, VEC, UNITS, BYTES
        )
        to, _ = box_part(out, block, 0, 1, units, units, True, VEC, UNITS)
        tl.store(to, added.to(out.dtype.element_ty), mask=inside)
    end_call(own, calls, state, epoch, pid, programs, world, capacity, places, late)


@triton.jit(do_not_specialize=UNSPECIALISED)
def two_step_blocks_kernel(src, out, slots, peers, calls, state, rank, world, programs, capacity, places, chunk, total,
                           ACCUMULATOR: tl.constexpr, SENDERS: tl.constexpr, VEC: tl.constexpr, UNITS: tl.constexpr,
                           BYTES: tl.constexpr, RANKS: tl.constexpr, LANES: tl.constexpr,
                           EARLY: tl.constexpr = False):  # fmt: skip
    """An all-reduce of fewer bytes: every rank adds ``chunk`` of the ``total`` units, and sends the sums to all.

    A slot holds a sender's blocks of both steps, one behind the other. ``out`` may be ``src``: a sum comes behind its flag, which
    is behind those of all blocks that were added, which are behind what this rank has read to send them.
    """
    if EARLY:
        await_stream()
    pid = tl.program_id(0)
    epoch = push_blocks(src, peers, calls, pid, rank, world, programs, capacity, places, 1, chunk, total,
                        True, True, VEC, UNITS, BYTES, RANKS)  # fmt: skip
    own = slots.to(tl.int64)
    late = tl.zeros((LANES,), tl.int32)
    longest = blocks_of(tl.minimum(chunk, total), UNITS)
    for block in range(pid, blocks_of(width_of(rank, chunk, total), UNITS), programs):
        part, inside = box_part(src, block, rank, 1, chunk, total, True, VEC, UNITS)
        kept = tl.load(part, mask=inside)
        addresses = addresses_of(peers, rank, world, RANKS)
        here, late = await_all(own, epoch, state, rank, world, capacity, places, block, late, RANKS, LANES)
        added = sum_block(
            own, here, kept, epoch, inside, rank, world, capacity, block, ACCUMULATOR, SENDERS, VEC, UNITS, BYTES
        ).to(src.dtype.element_ty)
        send_to_all(added, inside, addresses, peers, epoch, rank, world, capacity, places, longest + block,
                    VEC, UNITS, BYTES, RANKS)  # fmt: skip
        to, _ = box_part(out, block, rank, 1, chunk, total, True, VEC, UNITS)
        tl.store(to, added, mask=inside)
    others = tl.maximum(world - 1, 1)
    for pair in range(pid, longest * (world - 1), programs):
        block = quotient(pair, others)
        owner = peer_at(1 + pair - block * others, rank, world)
        if block < blocks_of(width_of(owner, chunk, total), UNITS):
            to, inside = box_part(out, block, owner, 1, chunk, total, True, VEC, UNITS)
            here, late = await_block(own, epoch, state, owner, world, capacity, places, longest + block, late, LANES)
            data = taken_block(
                own,
                here,
                epoch,
                owner,
                inside,
                world,
                capacity,
                longest + block,
                src.dtype.element_ty,
                VEC,
                UNITS,
                BYTES,
            )
            tl.store(to, data, mask=inside)
    end_call(own, calls, state, epoch, pid, programs, world, capacity, places, late)
