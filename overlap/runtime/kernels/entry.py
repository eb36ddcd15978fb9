"""The entry kernel, the wait kernel and the moving kernel: the launch protocol's own Triton code.

    entry:  wait done[p] >= n-1 of all peers | stage the own shard | counters = 0 | epoch = n | ready[me] = n at all peers
            | wait ready[p] >= n

One launch does all of it: every program stages its part and counts itself in; the last one publishes. Where several
tensors are staged each has a launch: the first waits, the last publishes.
"""

from __future__ import annotations

import triton
import triton.language as tl

import overlap.language as ol
from overlap.language.far import carry_chunk
from overlap.language.nvshmem import quiet, raise_far
from overlap.schedule import table as _layout

from ..faults import faults as _faults

UNSPECIALISED = [
    "rank", "world", "programs", "instance", "first_counter", "counters",
    "n0", "n1", "n2", "n3", "s0", "s1", "s2", "s3", "d0", "d1", "d2", "d3",
]  # fmt: skip
"""A rank or an extent that equals 1 would be another kernel, on some ranks only."""

_SLOT_WORDS: tl.constexpr = tl.constexpr(_layout.SLOT_WORDS)
_EPOCH: tl.constexpr = tl.constexpr(_layout.S_EPOCH * _layout.SLOT_WORDS)
_COUNTER: tl.constexpr = tl.constexpr(_layout.S_COUNTER * _layout.SLOT_WORDS)
_INSTANCE: tl.constexpr = tl.constexpr(_faults.INSTANCE_WORD)
_READY: tl.constexpr = tl.constexpr(_layout.S_READY)
_LANES: tl.constexpr = tl.constexpr(32)


@triton.jit(do_not_specialize=UNSPECIALISED)
def entry_kernel(
    src,
    dst,
    state,
    peers,
    rank,
    world,
    programs,
    instance,
    first_counter,
    counters,
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
    DIMS: tl.constexpr,
    WIDE: tl.constexpr,
    WAIT_DONE: tl.constexpr,
    PUBLISH: tl.constexpr,
    READY: tl.constexpr,
    COUNTERS: tl.constexpr,
    BLOCK: tl.constexpr,
    FLAT: tl.constexpr = False,
    ROW: tl.constexpr = 0,
    FAR: tl.constexpr = False,
):
    """Opens launch n on this rank.

    ``src``/``dst``: the shard and its place in the symmetric tensor, extents ``n*``, strides ``s*``/``d*`` in words, of
    which the last ``DIMS`` count (0: nothing to stage); ``WIDE``: more words than 32 bits index; ``FLAT``: they lie one behind
    the other on both sides; ``ROW``: not all, but those of each block of a row, as many words as divide ``n3`` and ``BLOCK``, of
    which each begins at an even word;
    ``state``: this rank's int64 state words; ``peers``: int64 addresses of every rank's state words, with ``FAR`` or the
    complement of NVSHMEM's number of a rank that no pointer reaches;
    ``instance``: the number that a fault record names this launch by; ``first_counter``, ``counters``: slot of the first
    counter of tiles, and their number, which are reset with ``COUNTERS``; without ``PUBLISH`` it only waits and stages.
    """
    pid = tl.program_id(0)
    last = tl.load(state + _EPOCH)
    if WAIT_DONE:
        await_peers(_READY + world, last, rank, world, state)
    if DIMS > 0:
        total = tl.cast(n0, tl.int64) * n1 * n2 * n3
        step = tl.cast(programs, tl.int64) * BLOCK
        if not WIDE:
            total = total.to(tl.int32)
            step = step.to(tl.int32)
        first = pid * BLOCK
        if FLAT:
            # Whole blocks need no mask and no arithmetic, so that each instruction moves 16 bytes.
            whole = total // BLOCK * BLOCK
            for start in range(first, whole, step):
                i = start + tl.arange(0, BLOCK)
                tl.store(dst + i, tl.load(src + i))
            # The rest is the next program's in turn.
            first = tl.where(whole // BLOCK % programs == pid, whole, total)
        if ROW > 0:
            # Only a block's place takes arithmetic, not each word's, so that each instruction moves 16 bytes.
            column = tl.arange(0, ROW)[None, :]
            for start in range(first // ROW, total // ROW, step // ROW):
                block = start + tl.arange(0, BLOCK // ROW)
                inside = (block < total // ROW)[:, None]
                row = block // (n3 // ROW)
                i3 = (block % (n3 // ROW)).to(tl.int64) * ROW
                at = tl.multiple_of(row_at(row, n1, n2, s0, s1, s2, DIMS) + i3, 2)
                to = tl.multiple_of(row_at(row, n1, n2, d0, d1, d2, DIMS) + i3, 2)
                tl.store(dst + (to[:, None] + column), tl.load(src + (at[:, None] + column), mask=inside), mask=inside)
        else:
            for start in range(first, total, step):
                i = start + tl.arange(0, BLOCK)
                inside = i < total
                i3 = i
                if DIMS > 1:
                    i3 = i % n3
                at = i3.to(tl.int64) * s3
                to = i3.to(tl.int64) * d3
                if DIMS > 1:
                    at += row_at(i // n3, n1, n2, s0, s1, s2, DIMS)
                    to += row_at(i // n3, n1, n2, d0, d1, d2, DIMS)
                tl.store(dst + to, tl.load(src + at, mask=inside), mask=inside)
    if PUBLISH:
        tl.debug_barrier()
        arrived = tl.atomic_add(state + _COUNTER, 1, sem="acq_rel", scope="gpu")
        if arrived == programs - 1:
            tl.atomic_xchg(state + _COUNTER, 0, sem="relaxed", scope="gpu")
            tl.store(state + _INSTANCE, instance)
            if COUNTERS:
                # As every write of a word that someone waits for; there are few.
                tl.debug_barrier()
                for begin in range(0, counters, _LANES):
                    lanes = begin + tl.arange(0, _LANES)
                    words = state + (first_counter + lanes) * _SLOT_WORDS
                    zeros = tl.zeros((_LANES,), tl.int64)
                    tl.atomic_xchg(words, zeros, mask=lanes < counters, sem="release", scope="sys")
            tl.debug_barrier()
            tl.atomic_xchg(state + _EPOCH, last + 1, sem="release", scope="sys")
            if READY:
                slot = (_READY + rank) * _SLOT_WORDS
                if FAR:
                    for p in range(world):
                        if p != rank:
                            raise_word(state, tl.load(peers + p), slot, last + 1)
                    # They have landed when the kernel ends, so that no later launch's is overtaken.
                    quiet()
                else:
                    for begin in range(0, world, _LANES):
                        lanes = begin + tl.arange(0, _LANES)
                        others = (lanes < world) & (lanes != rank)
                        words = tl.load(peers + lanes, mask=others, other=0).to(tl.pointer_type(tl.int64)) + slot
                        ol.raise_flags(words, others, last + 1)
                await_peers(_READY, last + 1, rank, world, state)


@triton.jit
def row_at(row, n1, n2, a0, a1, a2, DIMS: tl.constexpr):
    """Where rows of words begin, which are counted over the dimensions outside of them; extents ``n*``, strides ``a*``."""
    at = tl.zeros_like(row).to(tl.int64)
    if DIMS > 2:
        outer = row // n2
        row = row % n2
        if DIMS > 3:
            at += (outer // n1).to(tl.int64) * a0
            outer = outer % n1
        at += outer.to(tl.int64) * a1
    return at + row.to(tl.int64) * a2


@triton.jit
def await_peers(slot, wanted, rank, world, state):
    """Waits until the words of all peers, from ``slot`` on, are at least ``wanted``.

    Of several they are looked at together, and one after the other only where one is not there yet.
    """
    least = wanted - 1
    if world > 2:
        least = wanted
        for begin in range(0, world, _LANES):
            lanes = begin + tl.arange(0, _LANES)
            others = (lanes < world) & (lanes != rank)
            least = tl.minimum(least, ol.look(state + (slot + lanes) * _SLOT_WORDS, others, wanted))
    if least < wanted:
        for p in range(world):
            if p != rank:
                ol.poll(state + (slot + p) * _SLOT_WORDS, wanted, state)


@triton.jit
def raise_word(state, peer, slot, value):
    """Raises word ``slot`` of a rank's state: through NVSHMEM where ``peer`` is the complement of its number, else an address."""
    if peer < 0:
        raise_far(state, (state + slot).to(tl.int64), value, (-1 - peer).to(tl.int32))
    else:
        ol.raise_flag(peer.to(tl.pointer_type(tl.int64)) + slot, value)


@triton.jit
def credit_kernel(state, words):
    """Tells a rank this rank's epoch; ``words``: its entry in the table of peers, and which of its state words."""
    raise_word(state, tl.load(words), tl.load(words + 1), ol.now(state))
    quiet()


@triton.jit
def wait_kernel(flag, state):
    """Holds a stream until ``flag`` (on this rank or a peer) reaches this rank's epoch."""
    ol.poll(flag, ol.now(state), state)


@triton.jit(do_not_specialize=["count"])
def gather_kernel(words, count, state):
    """Holds a stream until ``count`` flags of this rank have reached its epoch; ``words``: which of its state words they are."""
    epoch = ol.now(state)
    for i in range(count):
        ol.poll(state + tl.load(words + i), epoch, state)


@triton.jit(do_not_specialize=["run"])
def run_kernel(table, run, state):
    """Holds a stream until the chunks of a run are here, whose tiles another launch makes; ``run``: its place in the table."""
    ol.wait_run(table, run, state, ol.now(state))


@triton.jit
def move_kernel(moves, state):
    """Programs that move chunks (`overlap.language.move_chunks`) where a rank has no tile, so that no user's kernel runs."""
    ol.move_chunks(moves, state, ol.now(state))


@triton.jit
def box_move_kernel(moves, state):
    """As `move_kernel`, by TMA."""
    ol.move_chunks_async(moves, state, ol.now(state))


@triton.jit
def far_move_kernel(moves, state):
    """As `move_kernel`, to ranks that no pointer reaches too."""
    ol.move_chunks_far(moves, state, ol.now(state))


@triton.jit
def word_sums_kernel(
    slots, words, state, made, out, UNIT: tl.constexpr, LANES: tl.constexpr, ACCUMULATOR: tl.constexpr
):
    """Programs that add up what comes in words (`overlap.language.sum_words`) where a rank has no tile."""
    ol.sum_words(slots, words, state, made, out, UNIT, LANES, ACCUMULATOR)


@triton.jit
def carry_kernel(words, state):
    """An operation between nodes, in the place of a copy and its flag (`overlap.language.far.carry_chunk`)."""
    carry_chunk(words, state, ol.now(state))


MOVE_KERNELS = {"load/store": move_kernel, "tma store": box_move_kernel, "nvshmem put": far_move_kernel}
"""By who writes."""
