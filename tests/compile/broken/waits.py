"""A GEMM that waits for its rows of a, right in `correct` and wrong in one way in every other kernel."""

import triton
import triton.language as tl

import overlap.language as ol

FLAGS = tl.constexpr(16)  # past the local words of the state tensor


@triton.jit
def product(a_ptr, b_ptr, c_ptr, pid_m, pid_n, N, K, BLOCK: tl.constexpr):
    rows = pid_m * BLOCK + tl.arange(0, BLOCK)
    cols = pid_n * BLOCK + tl.arange(0, BLOCK)
    ks = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + rows[:, None] * K + (k + ks)[None, :])
        b = tl.load(b_ptr + (k + ks)[:, None] * N + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(c_ptr.dtype.element_ty))


@triton.jit
def original(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr):
    product(a_ptr, b_ptr, c_ptr, tl.program_id(0), tl.program_id(1), N, K, BLOCK)


@triton.jit
def correct(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, ol_state):
    pid_m = tl.program_id(0)
    seen = ol.poll(ol_state + FLAGS + 4 * pid_m, ol.now(ol_state), ol_state)
    pid_m = ol.after(pid_m, seen)
    product(a_ptr, b_ptr, c_ptr, pid_m, tl.program_id(1), N, K, BLOCK)


@triton.jit
def no_wait(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, ol_state):
    product(a_ptr, b_ptr, c_ptr, tl.program_id(0), tl.program_id(1), N, K, BLOCK)


@triton.jit
def value_not_used(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, ol_state):
    pid_m = tl.program_id(0)
    ol.poll(ol_state + FLAGS + 4 * pid_m, ol.now(ol_state), ol_state)
    product(a_ptr, b_ptr, c_ptr, pid_m, tl.program_id(1), N, K, BLOCK)


@triton.jit
def feeds_the_wrong_operand(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, ol_state):
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    seen = ol.poll(ol_state + FLAGS + 4 * pid_m, ol.now(ol_state), ol_state)
    product(a_ptr, b_ptr, c_ptr, pid_m, ol.after(pid_n, seen), N, K, BLOCK)


@triton.jit
def waits_behind_a_condition(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, ol_state):
    pid_m = tl.program_id(0)
    seen = ol.poll(ol_state + FLAGS + 4 * pid_m, ol.now(ol_state), ol_state)
    if seen >= 0:
        product(a_ptr, b_ptr, c_ptr, pid_m, tl.program_id(1), N, K, BLOCK)


@triton.jit
def device_scope(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, ol_state):
    pid_m = tl.program_id(0)
    wanted = ol.now(ol_state)
    seen = tl.atomic_add(ol_state + FLAGS + 4 * pid_m, 0, sem="acquire", scope="gpu")
    while seen < wanted:
        seen = tl.atomic_add(ol_state + FLAGS + 4 * pid_m, 0, sem="acquire", scope="gpu")
    product(a_ptr, b_ptr, c_ptr, ol.after(pid_m, seen), tl.program_id(1), N, K, BLOCK)


@triton.jit
def relaxed_poll(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, ol_state):
    pid_m = tl.program_id(0)
    wanted = ol.now(ol_state)
    seen = tl.atomic_add(ol_state + FLAGS + 4 * pid_m, 0, sem="relaxed", scope="sys")
    while seen < wanted:
        seen = tl.atomic_add(ol_state + FLAGS + 4 * pid_m, 0, sem="relaxed", scope="sys")
    product(a_ptr, b_ptr, c_ptr, ol.after(pid_m, seen), tl.program_id(1), N, K, BLOCK)


@triton.jit
def plain_load_poll(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, ol_state):
    pid_m = tl.program_id(0)
    wanted = ol.now(ol_state)
    seen = tl.load(ol_state + FLAGS + 4 * pid_m)
    while seen < wanted:
        seen = tl.load(ol_state + FLAGS + 4 * pid_m)
    product(a_ptr, b_ptr, c_ptr, ol.after(pid_m, seen), tl.program_id(1), N, K, BLOCK)


@triton.jit
def full_precision(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, ol_state):
    """Waits rightly, but no longer uses the matrix units."""
    pid_m = tl.program_id(0)
    seen = ol.poll(ol_state + FLAGS + 4 * pid_m, ol.now(ol_state), ol_state)
    rows = ol.after(pid_m, seen) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ks = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + rows[:, None] * K + (k + ks)[None, :]).to(tl.float32)
        b = tl.load(b_ptr + (k + ks)[:, None] * N + cols[None, :]).to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(c_ptr.dtype.element_ty))


@triton.jit
def waits_at_chunk_edges(a_ptr, b_ptr, c_ptr, N, K, BLOCK: tl.constexpr, ol_state):
    """Triton issues the first loads of a pipelined loop ahead of it, and so ahead of this wait."""
    epoch = ol.now(ol_state)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ks = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        if k % 256 == 0:
            ol.poll(ol_state + FLAGS + 4 * (k // 256), epoch, ol_state)
        a = tl.load(a_ptr + rows[:, None] * K + (k + ks)[None, :])
        b = tl.load(b_ptr + (k + ks)[:, None] * N + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(c_ptr.dtype.element_ty))
