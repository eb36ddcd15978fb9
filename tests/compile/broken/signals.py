"""Users' kernels with the public words, right, and wrong in one way each where the name says so."""

import triton
import triton.language as tl

import overlap.language as ol


@triton.jit
def puts(x_ptr, out_ptr, box_ptr, h, launch, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    right = (ol.rank(h) + 1) % ol.num_ranks(h)
    ol.put(h, box_ptr + at, tl.load(x_ptr + at), right, 0, launch)
    seen = ol.wait(h, 0, launch)
    tl.store(out_ptr + at, tl.load(ol.after(box_ptr, seen) + at))


@triton.jit
def adds(x_ptr, out_ptr, box_ptr, h, launch, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(ol.symm_at(h, box_ptr, 0) + at, tl.load(x_ptr + at))
    ol.notify(h, 0, 0, 1, "add")
    seen = ol.wait(h, 0, tl.num_programs(0))
    tl.store(out_ptr + at, tl.load(box_ptr + ol.after(at, seen)))


@triton.jit
def gets(x_ptr, out_ptr, box_ptr, h, launch, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, ol.get(h, box_ptr + at, 1, 0, launch))


@triton.jit
def waits_and_forgets(x_ptr, out_ptr, box_ptr, h, launch, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ol.wait(h, 0, launch)
    tl.store(out_ptr + at, tl.load(box_ptr + at))


@triton.jit
def bare_flag(x_ptr, out_ptr, box_ptr, h, launch, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(ol.symm_at(h, box_ptr, 1) + at, tl.load(x_ptr + at))
    tl.atomic_xchg(h + 16, launch, sem="release", scope="sys")


@triton.jit
def device_scope(x_ptr, out_ptr, box_ptr, h, launch, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(ol.symm_at(h, box_ptr, 1) + at, tl.load(x_ptr + at))
    tl.debug_barrier()
    tl.atomic_xchg(h + 16, launch, sem="release", scope="gpu")


@triton.jit
def box(box_ptr, BLOCK: tl.constexpr):
    return tl.make_tensor_descriptor(box_ptr, [BLOCK, BLOCK], [BLOCK, 1], [32, 32])


@triton.jit
def loads_by_tma(x_ptr, out_ptr, box_ptr, h, launch, BLOCK: tl.constexpr):
    seen = ol.wait(h, 0, launch)
    tile = box(box_ptr, BLOCK).load([ol.after_async(tl.program_id(0), seen), 0])
    tl.store(out_ptr + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :], tile)


@triton.jit
def loads_by_tma_without_fence(x_ptr, out_ptr, box_ptr, h, launch, BLOCK: tl.constexpr):
    seen = ol.wait(h, 0, launch)
    tile = box(box_ptr, BLOCK).load([ol.after(tl.program_id(0), seen), 0])
    tl.store(out_ptr + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :], tile)


@triton.jit
def stores_by_tma(x_ptr, out_ptr, box_ptr, h, launch, BLOCK: tl.constexpr):
    box(ol.symm_at(h, box_ptr, 1), BLOCK).store([0, 0], tl.full((32, 32), 1, tl.float32))
    ol.notify_async(h, 0, 1, launch)


@triton.jit
def stores_by_tma_not_landed(x_ptr, out_ptr, box_ptr, h, launch, BLOCK: tl.constexpr):
    box(ol.symm_at(h, box_ptr, 1), BLOCK).store([0, 0], tl.full((32, 32), 1, tl.float32))
    ol.notify(h, 0, 1, launch)
