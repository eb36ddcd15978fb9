"""Scales by blocks of K, a row of them `cdiv(K, BLOCK_K)` apart, the pointer moved on by one; wrapped rows; extents as constexpr."""
import torch
import triton
import triton.language as tl


@triton.jit
def block_scaled_gemm(a_ptr, b_ptr, c_ptr, a_s_ptr, b_s_ptr, M, N: tl.constexpr, K: tl.constexpr,
                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    # @overlap.axis_count M block=BLOCK_M
    # @overlap.axis_count N block=BLOCK_N
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    pid_m = tl.program_id(axis=0)
    pid_n = tl.program_id(axis=1)
    # @overlap.dispatch end
    k = tl.cdiv(K, BLOCK_K)
    offs_m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_n[None, :] * K + offs_k[:, None]
    a_s_ptrs = a_s_ptr + offs_m * k
    b_s_ptrs = b_s_ptr + (offs_n // BLOCK_K) * k
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for i in range(k):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - i * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - i * BLOCK_K, other=0.0)
        acc += tl.dot(a, b) * tl.load(a_s_ptrs)[:, None] * tl.load(b_s_ptrs)[None, :]
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
        a_s_ptrs += 1
        b_s_ptrs += 1
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


# @overlap.host_entry a[M,K] a_s[M,G] b[N,K] b_s[NB,G] -> c[M,N]
def scaled_mm(a, a_s, b, b_s):
    (M, K), N = a.shape, b.size(0)
    c = a.new_empty(M, N, dtype=torch.float32)
    grid = lambda META: (triton.cdiv(M, META["BLOCK_M"]), triton.cdiv(N, META["BLOCK_N"]))
    block_scaled_gemm[grid](a, b, c, a_s, b_s, M, N, K, BLOCK_M=16, BLOCK_N=32, BLOCK_K=16)
    return c
