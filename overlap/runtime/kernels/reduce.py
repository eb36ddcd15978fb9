"""The sum kernel: adds what ranks have made of a piece, in one fixed order, as each piece's flags are raised.

    table   per piece   words, extents[4], summands, first summand, first block | result: offset, strides[4] | kept: the same
                        stores, first of them
            per summand offset, strides[4], flag, and per store the same without a flag

            credits, behind all pieces: the last program to end tells peers that this rank has read all that they sent, and
            that what it stored in their memory has come

Offsets and strides are in elements: of the result in the result, of all else from where this rank's symmetric memory of the
tensor begins, though stores lie in other ranks'. A word is ``VEC`` neighbouring elements, moved by one access of up to 16 bytes.
Flags are int64 words of the state, -1 where there is nothing to wait for.
"""

from __future__ import annotations

import triton
import triton.language as tl

import overlap.language as ol
from overlap.language.awaits import behind_barrier

from .credits import give_credits, last_to_end

UNSPECIALISED = ["pieces", "programs", "credits"]

DIMS = 4
P_WORDS, P_EXTENTS, P_SUMMANDS, P_FIRST, P_BLOCK, P_OUT, P_KEPT, P_STORES, P_STORED = 0, 1, 5, 6, 7, 8, 13, 18, 19
PIECE_WORDS = 20
S_OFFSET, S_FLAG = 0, 5
SUMMAND_WORDS = 6

_PIECE: tl.constexpr = tl.constexpr(PIECE_WORDS)
_EXTENTS: tl.constexpr = tl.constexpr(P_EXTENTS)
_SUMMANDS: tl.constexpr = tl.constexpr(P_SUMMANDS)
_FIRST: tl.constexpr = tl.constexpr(P_FIRST)
_BLOCK: tl.constexpr = tl.constexpr(P_BLOCK)
_OUT: tl.constexpr = tl.constexpr(P_OUT)
_KEPT: tl.constexpr = tl.constexpr(P_KEPT)
_STORES: tl.constexpr = tl.constexpr(P_STORES)
_STORED: tl.constexpr = tl.constexpr(P_STORED)
_SUMMAND: tl.constexpr = tl.constexpr(SUMMAND_WORDS)
_FLAG: tl.constexpr = tl.constexpr(S_FLAG)
_LANES: tl.constexpr = tl.constexpr(32)


@triton.jit
def _offsets(at, i0, i1, i2, i3, DIMS: tl.constexpr, VEC: tl.constexpr):
    """Offset of the first element of each word, by the offset and the strides that stand at ``at``."""
    found = tl.load(at) + i3 * tl.load(at + 4)
    if DIMS > 1:
        found += i2 * tl.load(at + 3)
    if DIMS > 2:
        found += i1 * tl.load(at + 2)
    if DIMS > 3:
        found += i0 * tl.load(at + 1)
    # Every term is a multiple of the word, which the compiler cannot see in a table.
    return tl.multiple_of(found, VEC)


@triton.jit
def _summand(data, first, j, count, i0, i1, i2, i3, inside, DIMS: tl.constexpr, VEC: tl.constexpr):
    """Words of a summand of ``count``; zeros behind the last one."""
    at = _offsets(first + tl.minimum(j, count - 1) * _SUMMAND, i0, i1, i2, i3, DIMS, VEC)
    there = inside & (j < count)
    return tl.load(data + at[:, None] + tl.arange(0, VEC)[None, :], mask=there, other=0.0)


@triton.jit
def _store_at_peers(data, value, first, stores, i0, i1, i2, i3, inside, DIMS: tl.constexpr, VEC: tl.constexpr):
    """Stores words of a piece in all ``stores`` places that stand from ``first`` on."""
    lanes = tl.arange(0, VEC)
    for j in range(stores):
        to = _offsets(first + j * _SUMMAND, i0, i1, i2, i3, DIMS, VEC)[:, None] + lanes[None, :]
        tl.store(data + to, value, mask=inside)


@triton.jit(do_not_specialize=UNSPECIALISED)
def sum_kernel(
    data,
    out,
    table,
    state,
    pieces,
    programs,
    peers,
    credits,
    DIMS: tl.constexpr,
    WIDE: tl.constexpr,
    VEC: tl.constexpr,
    SUMMANDS: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
    BLOCK: tl.constexpr,
    CREDITS: tl.constexpr = False,
    STORES: tl.constexpr = False,
):
    """Adds pieces of one tensor.

    ``data``: this rank's symmetric memory of it; ``out``: its result; ``table``: int64 words, see above; ``state``: state words;
    ``peers``, ``credits``: words that are raised when all is read and stored, as `give_credits` takes them, with ``CREDITS``;
    ``STORES``: some of it is stored in other ranks' memory;
    ``DIMS``: loops that a piece takes at most; ``WIDE``: more words than 32 bits index; ``SUMMANDS``: loaded together, 2 or 4.
    """
    pid = tl.program_id(0)
    epoch = ol.now(state)
    lanes = tl.arange(0, VEC)
    for number in range(pieces):
        piece = table + number * _PIECE
        words = tl.load(piece)
        if not WIDE:
            words = words.to(tl.int32)
        count = tl.load(piece + _SUMMANDS).to(tl.int32)
        first = table + tl.load(piece + _FIRST)
        # Pieces are dealt out one behind the other, so that small ones do not all fall to the same programs.
        turn = (pid - tl.load(piece + _BLOCK).to(tl.int32) % programs + programs) % programs
        begin = tl.cast(turn, words.dtype) * BLOCK
        if begin < words:
            seen = epoch - 1
            if count > 2:
                # All flags at once, and one after the other only where one is not up yet.
                seen = epoch
                for j0 in range(0, count, _LANES):
                    js = j0 + tl.arange(0, _LANES)
                    flags = tl.load(first + js * _SUMMAND + _FLAG, mask=js < count, other=-1)
                    seen = tl.minimum(seen, ol.look(state + flags, flags >= 0, epoch))
            if seen < epoch:
                seen = epoch
                for j in range(count):
                    flag = tl.load(first + j * _SUMMAND + _FLAG)
                    if flag >= 0:
                        seen = tl.minimum(seen, ol.poll(state + flag, epoch, state))
            begin = begin + tl.minimum(seen, 0).to(words.dtype)
            n1 = tl.load(piece + _EXTENTS + 1).to(words.dtype)
            n2 = tl.load(piece + _EXTENTS + 2).to(words.dtype)
            n3 = tl.load(piece + _EXTENTS + 3).to(words.dtype)
            result = tl.load(piece + _OUT)
            kept = tl.load(piece + _KEPT)
            stores = 0
            if STORES:
                stores = tl.load(piece + _STORES).to(tl.int32)
            for start in range(begin, words, tl.cast(programs, words.dtype) * BLOCK):
                i = start + tl.arange(0, BLOCK)
                inside = (i < words)[:, None]
                i0 = i
                i1 = i
                i2 = i
                i3 = i
                if DIMS > 1:
                    i2 = i // n3
                    i3 = i % n3
                if DIMS > 2:
                    i1 = i2 // n2
                    i2 = i2 % n2
                if DIMS > 3:
                    i0 = i1 // n1
                    i1 = i1 % n1
                i0 = i0.to(tl.int64)
                i1 = i1.to(tl.int64)
                i2 = i2.to(tl.int64)
                i3 = i3.to(tl.int64)
                to = _offsets(piece + _OUT, i0, i1, i2, i3, DIMS, VEC)[:, None] + lanes[None, :]
                keep = _offsets(piece + _KEPT, i0, i1, i2, i3, DIMS, VEC)[:, None] + lanes[None, :]
                if count == 1:
                    # Moved, not computed with: every bit arrives.
                    moved = _summand(data, first, 0, count, i0, i1, i2, i3, inside, DIMS, VEC)
                    if result >= 0:
                        tl.store(out + to, moved.to(out.dtype.element_ty), mask=inside)
                    if kept >= 0:
                        tl.store(data + keep, moved, mask=inside)
                    if STORES:
                        stored = table + tl.load(piece + _STORED)
                        _store_at_peers(data, moved, stored, stores, i0, i1, i2, i3, inside, DIMS, VEC)
                else:
                    total = tl.zeros([BLOCK, VEC], ACCUMULATOR)
                    for j in range(0, count, SUMMANDS):
                        # On their way together, and added in their order.
                        got0 = _summand(data, first, j, count, i0, i1, i2, i3, inside, DIMS, VEC)
                        got1 = _summand(data, first, j + 1, count, i0, i1, i2, i3, inside, DIMS, VEC)
                        if SUMMANDS > 2:
                            got2 = _summand(data, first, j + 2, count, i0, i1, i2, i3, inside, DIMS, VEC)
                            got3 = _summand(data, first, j + 3, count, i0, i1, i2, i3, inside, DIMS, VEC)
                        begun = got0.to(ACCUMULATOR)
                        total = tl.where(behind_barrier(j) == 0, begun, total + begun)
                        total = tl.where(j + 1 < count, total + got1.to(ACCUMULATOR), total)
                        if SUMMANDS > 2:
                            total = tl.where(j + 2 < count, total + got2.to(ACCUMULATOR), total)
                            total = tl.where(j + 3 < count, total + got3.to(ACCUMULATOR), total)
                    # A sum that is sent on is rounded as it travels, so that its owner has what the others get.
                    if STORES:
                        if stores > 0:
                            total = total.to(data.dtype.element_ty).to(ACCUMULATOR)
                            stored = table + tl.load(piece + _STORED)
                            sent = total.to(data.dtype.element_ty)
                            _store_at_peers(data, sent, stored, stores, i0, i1, i2, i3, inside, DIMS, VEC)
                    if kept >= 0:
                        total = total.to(data.dtype.element_ty).to(ACCUMULATOR)
                        tl.store(data + keep, total.to(data.dtype.element_ty), mask=inside)
                    if result >= 0:
                        tl.store(out + to, total.to(out.dtype.element_ty), mask=inside)
    if CREDITS:
        if last_to_end(state, programs, STORES):
            give_credits(peers, credits, epoch)
