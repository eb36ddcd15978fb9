"""Parts of the kernels of collectives by blocks: where blocks and their flags lie, sending them, waiting for them, adding them.

    sender      plain stores of a block into the receiver's slot | CTA barrier | its flag, release at system scope
    receiver    its flag, acquire at system scope | CTA barrier | plain loads

What a rank sends to rank p is a box of a dense tensor (`lines`), its bytes in row-major order, cut into blocks of ``BYTES``. A
unit is ``VEC`` neighbouring elements, up to 16 bytes, as wide as a rank's own tensors allow: others see bytes alone.

``slots`` of a rank: [2 sides][rank that sends][capacity] bytes, then [2 sides][rank that sends][places] flags, int64 words that
hold the last call which sent the block, each in a sector of its own. Which side a call uses is its epoch's last bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

import overlap.language as ol
from overlap.language.awaits import await_flags, behind_barrier
from overlap.language.packets import MOST_PROGRAMS, record_late

from .lines import spot_of, width_of

SIDES = 2
FLAG_BYTES = 32
TOGETHER = 4
"""Blocks that a program sends before it raises their flags."""

_SIDES: tl.constexpr = tl.constexpr(SIDES)
_FLAG: tl.constexpr = tl.constexpr(FLAG_BYTES)
_TOGETHER: tl.constexpr = tl.constexpr(TOGETHER)
_MOST: tl.constexpr = tl.constexpr(MOST_PROGRAMS)


@triton.jit
def slot_at(side, sender, world, capacity, block, BYTES: tl.constexpr):
    """Bytes (int64) from the beginning of a rank's slots to a block of a sender's."""
    return (side * world + sender) * tl.cast(capacity, tl.int64) + block * BYTES


@triton.jit
def flag_at(side, sender, world, capacity, places, block):
    """Bytes (int64) from the beginning of a rank's slots to the flag of a sender's block."""
    behind = _SIDES * world * tl.cast(capacity, tl.int64)
    return behind + ((side * world + sender) * tl.cast(places, tl.int64) + block) * _FLAG


@triton.jit
def as_block(address, DTYPE: tl.constexpr):
    """A pointer to a block by its address (int64); slots and blocks are multiples of 16 bytes."""
    return tl.multiple_of(address.to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def as_flag(address):
    """A pointer to a flag by its address (int64), or pointers."""
    return address.to(tl.pointer_type(tl.int64))


@triton.jit
def blocks_of(units, UNITS: tl.constexpr):
    """Blocks of so many units; one at least, so that every rank hears of every other in each call."""
    return tl.maximum((units + UNITS - 1) // UNITS, 1)


@triton.jit
def peer_at(turn, rank, world):
    """The rank that is ``turn`` places behind ``rank``; at least that of the last one. No division, which takes long."""
    peer = rank + tl.minimum(turn, world - 1)
    return tl.where(peer < world, peer, peer - world)


@triton.jit
def quotient(number, divisor):
    """The quotient (int32) of a number that is not negative by one that is positive, which takes half as long as any two's."""
    return (number.to(tl.uint32) // divisor.to(tl.uint32)).to(tl.int32)


@triton.jit
def within_block(UNITS: tl.constexpr, VEC: tl.constexpr):
    """Elements of a block by unit, [units, ``VEC``]."""
    return (tl.arange(0, UNITS) * VEC)[:, None] + tl.arange(0, VEC)[None, :]


@triton.jit
def box_part(base, block, rank, rows, chunk, total, FLAT: tl.constexpr, VEC: tl.constexpr, UNITS: tl.constexpr):
    """Pointers [units, ``VEC``] to a block of a rank's box, and which are inside of it [units, 1]."""
    width = width_of(rank, chunk, total)
    unit = block * UNITS + tl.arange(0, UNITS)
    spot = spot_of(unit, rank, width, chunk, total, FLAT)
    return base + ((spot * VEC)[:, None] + tl.arange(0, VEC)[None, :]), (unit < rows * width)[:, None]


@triton.jit
def addresses_of(peers, rank, world, RANKS: tl.constexpr):
    """Where the slots of all other ranks are: of all of them, [``RANKS``], and of the first four behind ``rank``.

    To be read ahead of a wait, which nobody then waits for, and not behind it, when the cache is empty.
    """
    bases = tl.load(peers + peer_at(1 + tl.arange(0, RANKS), rank, world))
    base0, base1, base2, base3 = _four(peers, 1, rank, world, RANKS)
    return bases, base0, base1, base2, base3


@triton.jit
def _four(peers, turn, rank, world, RANKS: tl.constexpr):
    base0 = tl.load(peers + peer_at(turn, rank, world))
    base1, base2, base3 = base0, base0, base0
    if RANKS > 2:
        base1 = tl.load(peers + peer_at(turn + 1, rank, world))
        base2 = tl.load(peers + peer_at(turn + 2, rank, world))
    if RANKS > 4:
        base3 = tl.load(peers + peer_at(turn + 3, rank, world))
    return base0, base1, base2, base3


@triton.jit
def send_to_all(data, inside, addresses, peers, epoch, rank, world, capacity, places, block,
                VEC: tl.constexpr, UNITS: tl.constexpr, BYTES: tl.constexpr, RANKS: tl.constexpr):  # fmt: skip
    """Stores a block into this rank's slot of every other rank, and then raises all its flags in one instruction."""
    side = epoch & 1
    place = slot_at(side, rank, world, capacity, block, BYTES)
    bases, base0, base1, base2, base3 = addresses
    for turn in range(1, world, 4):
        if turn > 1:
            base0, base1, base2, base3 = _four(peers, turn, rank, world, RANKS)
        _store_block(data, inside, base0 + place, VEC, UNITS)
        if RANKS > 2:
            _store_block(data, inside & (turn + 1 < world), base1 + place, VEC, UNITS)
            _store_block(data, inside & (turn + 2 < world), base2 + place, VEC, UNITS)
        if RANKS > 4:
            _store_block(data, inside & (turn + 3 < world), base3 + place, VEC, UNITS)
    flags = as_flag(bases + flag_at(side, rank, world, capacity, places, block))
    ol.raise_flags(flags, 1 + tl.arange(0, RANKS) < world, epoch)


@triton.jit
def _store_block(data, inside, place, VEC: tl.constexpr, UNITS: tl.constexpr):
    tl.store(as_block(place, data.dtype) + within_block(UNITS, VEC), data, mask=inside)


@triton.jit
def push_blocks(src, peers, calls, pid, rank, world, programs, capacity, places, rows, chunk, total,
                FLAT: tl.constexpr, PARTS: tl.constexpr, VEC: tl.constexpr, UNITS: tl.constexpr, BYTES: tl.constexpr,
                RANKS: tl.constexpr):  # fmt: skip
    """Sends this rank's blocks to all others, peers in turn from rank + 1 on, the first blocks of all first.

    Flags of `TOGETHER` blocks are raised at a time: a release waits until everything stored has arrived, and the next block with
    it.
    Returns the epoch of this call. It is read behind the data each time, or the compiler would wait for it ahead of the data.
    """
    count = blocks_of(rows * tl.minimum(chunk, total), UNITS)
    if PARTS:
        others = tl.maximum(world - 1, 1)
        pairs = count * (world - 1)
        for first in range(pid, pairs, programs * _TOGETHER):
            for number in range(first, tl.minimum(first + programs * _TOGETHER, pairs), programs):
                block = quotient(number, others)
                peer = peer_at(1 + number - block * others, rank, world)
                if block < blocks_of(rows * width_of(peer, chunk, total), UNITS):
                    part, inside = box_part(src, block, peer, rows, chunk, total, FLAT, VEC, UNITS)
                    data = tl.load(part, mask=inside)
                    base = tl.load(peers + peer)
                    place = slot_at(epoch_of(calls, pid) & 1, rank, world, capacity, block, BYTES)
                    _store_block(data, inside, base + place, VEC, UNITS)
            epoch = epoch_of(calls, pid)
            numbers = first + programs * tl.arange(0, _TOGETHER)
            blocks = quotient(numbers, others)
            receivers = peer_at(1 + numbers - blocks * others, rank, world)
            there = blocks < blocks_of(rows * width_of(receivers, chunk, total), UNITS)
            bases = tl.load(peers + receivers)
            flags = as_flag(bases + flag_at(epoch & 1, rank, world, capacity, places, blocks))
            ol.raise_flags(flags, there, epoch)
    else:
        for block in range(pid, count, programs):
            part, inside = box_part(src, block, 0, rows, chunk, total, FLAT, VEC, UNITS)
            data = tl.load(part, mask=inside)
            addresses = addresses_of(peers, rank, world, RANKS)
            epoch = epoch_of(calls, pid)
            send_to_all(data, inside, addresses, peers, epoch, rank, world, capacity, places, block,
                        VEC, UNITS, BYTES, RANKS)  # fmt: skip
    return epoch_of(calls, pid)


@triton.jit
def epoch_of(calls, pid):
    """The number (int64) of this call, from 1 on, as a program counts."""
    return tl.load(calls + pid) + 1


@triton.jit
def await_block(own, epoch, state, sender, world, capacity, places, block, late, LANES: tl.constexpr):
    """Waits for the flag of a sender's block in this rank's slots at ``own`` (int64), until it says this call.

    Returns whether it came before the deadline, and ``late`` (int32, [``LANES``]): flags in vain by their number from 1 on, or 0.
    """
    senders = sender + tl.zeros((LANES,), tl.int32)
    return _await(own, epoch, state, senders, senders >= 0, world, capacity, places, block, late)


@triton.jit
def await_all(own, epoch, state, rank, world, capacity, places, block, late, RANKS: tl.constexpr, LANES: tl.constexpr):
    """As `await_block`, of all other ranks' blocks of a number, side by side."""
    senders = tl.arange(0, LANES) % RANKS
    there = (senders < world) & (senders != rank)
    return _await(own, epoch, state, senders, there, world, capacity, places, block, late)


@triton.jit
def _await(own, epoch, state, senders, there, world, capacity, places, block, late):
    flags = own + flag_at(epoch & 1, senders, world, capacity, places, block)
    vain = await_flags(flags, there, epoch, state) < epoch
    late = tl.where(vain & (late == 0), senders * places + block + 1, late)
    return tl.max(vain.to(tl.int32), 0) == 0, late


@triton.jit
def taken_block(own, here, epoch, sender, inside, world, capacity, block,
                DTYPE: tl.constexpr, VEC: tl.constexpr, UNITS: tl.constexpr, BYTES: tl.constexpr):  # fmt: skip
    """What a sender has sent, [units, ``VEC``], if its flag is ``here``; zeros if that was waited for in vain.

    The load depends on the flag, or the compiler might issue it first.
    """
    place = as_block(own + slot_at(epoch & 1, sender, world, capacity, block, BYTES), DTYPE)
    return tl.load(place + within_block(UNITS, VEC), mask=inside & here, other=0)


@triton.jit
def sum_block(own, here, kept, epoch, inside, rank, world, capacity, block,
              ACCUMULATOR: tl.constexpr, SENDERS: tl.constexpr, VEC: tl.constexpr, UNITS: tl.constexpr,
              BYTES: tl.constexpr):  # fmt: skip
    """All ranks' blocks of a number added in rank order, from rank 0's on; ``kept``: the own.

    ``SENDERS`` ranks' blocks, two or four, are on their way together.
    """
    side = epoch & 1
    there = inside & here
    total = tl.zeros(kept.shape, ACCUMULATOR)
    for begin in range(0, world, SENDERS):
        got0 = _summand(own, kept, there, side, begin, rank, world, capacity, block, VEC, UNITS, BYTES)
        got1 = _summand(own, kept, there, side, begin + 1, rank, world, capacity, block, VEC, UNITS, BYTES)
        if SENDERS > 2:
            got2 = _summand(own, kept, there, side, begin + 2, rank, world, capacity, block, VEC, UNITS, BYTES)
            got3 = _summand(own, kept, there, side, begin + 3, rank, world, capacity, block, VEC, UNITS, BYTES)
        first = got0.to(ACCUMULATOR)
        total = tl.where(behind_barrier(begin) == 0, first, total + first)
        total = tl.where(begin + 1 < world, total + got1.to(ACCUMULATOR), total)
        if SENDERS > 2:
            total = tl.where(begin + 2 < world, total + got2.to(ACCUMULATOR), total)
            total = tl.where(begin + 3 < world, total + got3.to(ACCUMULATOR), total)
    return total


@triton.jit
def _summand(own, kept, there, side, sender, rank, world, capacity, block,
             VEC: tl.constexpr, UNITS: tl.constexpr, BYTES: tl.constexpr):  # fmt: skip
    """A rank's block, as far as it is ``there``; the own is ``kept``."""
    place = as_block(own + slot_at(side, sender, world, capacity, block, BYTES), kept.dtype)
    return tl.load(place + within_block(UNITS, VEC), mask=there & (sender != rank) & (sender < world), other=kept)


@triton.jit
def end_call(own, calls, state, epoch, pid, programs, world, capacity, places, late):
    """The record of a wait in vain; then the next call's epoch, once every thread has read this one's.

    Also of programs that this launch has not: a later one may.
    """
    flags = own + flag_at(epoch & 1, 0, world, capacity, places, late - 1)
    record_late(state, tl.where(late != 0, flags, 0), epoch, late * 0, 0)
    tl.debug_barrier()
    tl.store(calls + pid, epoch)
    if pid == 0:
        others = tl.arange(0, _MOST)
        tl.store(calls + others, epoch, mask=others >= programs)
