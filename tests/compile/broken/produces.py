"""Kernels that count their tiles into chunks, right in `correct` and its like and wrong in one way in every other."""

import triton
import triton.language as tl

import overlap.language as ol


@triton.jit
def fill(c_ptr, tile, BLOCK: tl.constexpr):
    offsets = tile * BLOCK + tl.arange(0, BLOCK)
    tl.store(c_ptr + offsets, offsets.to(c_ptr.dtype.element_ty))


@triton.jit
def fill_by_tma(c_ptr, tile, N, BLOCK: tl.constexpr):
    desc = tl.make_tensor_descriptor(c_ptr, [N, N], [N, 1], [32, 32])
    desc.store([tile * 32, 0], tl.full((32, 32), 1, c_ptr.dtype.element_ty))


@triton.jit
def counters(ol_table, ol_state):
    return ol_state + tl.load(ol_table + ol._H_COUNTER_BASE)


@triton.jit
def correct(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    tile = tl.program_id(0)
    fill(c_ptr, tile, BLOCK)
    ol.produced(ol_table, ol.find_run(ol_table, tile), ol_state)


@triton.jit
def correct_in_a_loop(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    for tile in range(tl.program_id(0), N, tl.num_programs(0)):
        run = ol.find_run(ol_table, tile)
        if tile * BLOCK + BLOCK <= N:
            fill(c_ptr, tile, BLOCK)
        else:
            offsets = tile * BLOCK + tl.arange(0, BLOCK)
            tl.store(c_ptr + offsets, offsets.to(c_ptr.dtype.element_ty), mask=offsets < N)
        ol.produced(ol_table, run, ol_state)


@triton.jit
def correct_by_tma(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    tile = tl.program_id(0)
    fill_by_tma(c_ptr, tile, N, BLOCK)
    ol.produced_async(ol_table, ol.find_run(ol_table, tile), ol_state)


@triton.jit
def correct_once_a_run(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    desc = tl.make_tensor_descriptor(c_ptr, [N, N], [N, 1], [32, 32])
    for tile in range(tl.program_id(0), N, tl.num_programs(0)):
        desc.store([tile * 32, 0], tl.full((32, 32), 1, c_ptr.dtype.element_ty))
        ol.produced_once(ol_table, ol.find_run(ol_table, tile), ol_state, tile, tl.num_programs(0))


@triton.jit
def drained_for_some(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    """What is waited for now and then is behind no count that is always made."""
    tile = tl.program_id(0)
    fill_by_tma(c_ptr, tile, N, BLOCK)
    run = ol.landed_if(ol.find_run(ol_table, tile), (tile > 3).to(tl.int32))
    tl.atomic_add(counters(ol_table, ol_state) + run, tl.full((), 1, tl.int64), sem="release", scope="sys")


@triton.jit
def drained_for_fewer(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    """What is waited for under more than the count is made under."""
    tile = tl.program_id(0)
    fill_by_tma(c_ptr, tile, N, BLOCK)
    run = ol.landed_if(ol.find_run(ol_table, tile), ((tile > 3) & (N > 64)).to(tl.int32))
    tl.atomic_add(
        counters(ol_table, ol_state) + run, tl.full((), 1, tl.int64), mask=tile > 3, sem="release", scope="sys"
    )


@triton.jit
def correct_by_atomics(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    tile = tl.program_id(0)
    offsets = tile * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(c_ptr + offsets, tl.full((BLOCK,), 1, c_ptr.dtype.element_ty))
    ol.produced(ol_table, ol.find_run(ol_table, tile), ol_state)


@triton.jit
def never_counted(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    fill(c_ptr, tl.program_id(0), BLOCK)


@triton.jit
def counted_before_the_store(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    tile = tl.program_id(0)
    ol.produced(ol_table, ol.find_run(ol_table, tile), ol_state)
    fill(c_ptr, tile, BLOCK)


@triton.jit
def counted_before_the_store_in_a_loop(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    for tile in range(tl.program_id(0), N, tl.num_programs(0)):
        ol.produced(ol_table, ol.find_run(ol_table, tile), ol_state)
        fill(c_ptr, tile, BLOCK)


@triton.jit
def counted_on_one_path(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    tile = tl.program_id(0)
    fill(c_ptr, tile, BLOCK)
    if tile < N:
        ol.produced(ol_table, ol.find_run(ol_table, tile), ol_state)


@triton.jit
def no_barrier(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    fill(c_ptr, tl.program_id(0), BLOCK)
    tl.atomic_add(counters(ol_table, ol_state), 1, sem="release", scope="sys")


@triton.jit
def no_barrier_behind_atomics(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(c_ptr + offsets, tl.full((BLOCK,), 1, c_ptr.dtype.element_ty), sem="relaxed")
    tl.atomic_add(counters(ol_table, ol_state), 1, sem="release", scope="sys")


@triton.jit
def undrained(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    tile = tl.program_id(0)
    fill_by_tma(c_ptr, tile, N, BLOCK)
    ol.produced(ol_table, ol.find_run(ol_table, tile), ol_state)


@triton.jit
def relaxed(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    fill(c_ptr, tl.program_id(0), BLOCK)
    tl.debug_barrier()
    tl.atomic_add(counters(ol_table, ol_state), 1, sem="relaxed", scope="sys")


@triton.jit
def device_scope(c_ptr, N, BLOCK: tl.constexpr, ol_table, ol_state):
    fill(c_ptr, tl.program_id(0), BLOCK)
    tl.debug_barrier()
    tl.atomic_add(counters(ol_table, ol_state), 1, sem="release", scope="gpu")
