"""A program stores a tile and raises a peer's flag, right in `correct` and wrong in one way in every other kernel."""

import triton
import triton.language as tl

import overlap.language as ol


@triton.jit
def fill(dst, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, at)


@triton.jit
def flag_of(peers, rank):
    return tl.load(peers + rank).to(tl.pointer_type(tl.int64)) + 16


@triton.jit
def correct(dst, peers, rank, BLOCK: tl.constexpr, ol_state):
    fill(dst, BLOCK)
    ol.raise_flag(flag_of(peers, rank), ol.now(ol_state))


@triton.jit
def correct_in_a_loop(dst, peers, rank, BLOCK: tl.constexpr, ol_state):
    epoch = ol.now(ol_state)
    for peer in range(rank):
        fill(dst, BLOCK)
        ol.raise_flag(flag_of(peers, peer), epoch)


@triton.jit
def no_barrier(dst, peers, rank, BLOCK: tl.constexpr, ol_state):
    fill(dst, BLOCK)
    tl.atomic_xchg(flag_of(peers, rank), ol.now(ol_state), sem="release", scope="sys")


@triton.jit
def barrier_before_the_store(dst, peers, rank, BLOCK: tl.constexpr, ol_state):
    tl.debug_barrier()
    fill(dst, BLOCK)
    tl.atomic_xchg(flag_of(peers, rank), ol.now(ol_state), sem="release", scope="sys")


@triton.jit
def barrier_on_one_path(dst, peers, rank, BLOCK: tl.constexpr, ol_state):
    fill(dst, BLOCK)
    if rank > 3:
        tl.debug_barrier()
    tl.atomic_xchg(flag_of(peers, rank), ol.now(ol_state), sem="release", scope="sys")


@triton.jit
def relaxed(dst, peers, rank, BLOCK: tl.constexpr, ol_state):
    fill(dst, BLOCK)
    tl.debug_barrier()
    tl.atomic_xchg(flag_of(peers, rank), ol.now(ol_state), sem="relaxed", scope="sys")


@triton.jit
def device_scope(dst, peers, rank, BLOCK: tl.constexpr, ol_state):
    fill(dst, BLOCK)
    tl.debug_barrier()
    tl.atomic_xchg(flag_of(peers, rank), ol.now(ol_state), sem="release", scope="gpu")


@triton.jit
def plain_store(dst, peers, rank, BLOCK: tl.constexpr, ol_state):
    fill(dst, BLOCK)
    tl.debug_barrier()
    tl.store(ol_state + 16 + 4 * rank, ol.now(ol_state))


@triton.jit
def undrained_tma_store(dst, peers, rank, BLOCK: tl.constexpr, ol_state):
    desc = tl.make_tensor_descriptor(dst, [BLOCK, BLOCK], [BLOCK, 1], [32, 32])
    desc.store([0, 0], tl.full((32, 32), 1, tl.int32))
    ol.raise_flag(flag_of(peers, rank), ol.now(ol_state))
