"""C = (A * v) @ B: a vector along K beside the matrices, and indices that the K loop moves on itself."""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm_scaled(a_ptr, v_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    # @overlap.tile_id
    tile = tl.program_id(0)
    # @overlap.axis_count M block=BM
    rows = tl.cdiv(M, BM)
    # @overlap.axis_count N block=BN
    # @overlap.axis_count K=range
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    pid_m = tile % rows
    pid_n = tile // rows
    # @overlap.dispatch end
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    b_ptrs = b_ptr + ks[:, None] * sbk + rn[None, :] * sbn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    largest = tl.zeros((BM,), dtype=tl.float32)
    for _ in range((K + BK - 1) // BK):
        a = tl.load(
            a_ptr + rm[:, None] * sam + ks[None, :] * sak, mask=(rm[:, None] < M) & (ks[None, :] < K), other=0.0
        )
        v = tl.load(v_ptr + ks, mask=ks < K, other=0.0)
        b = tl.load(b_ptrs, mask=(ks[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc += tl.dot((a * v[None, :]).to(b.dtype), b)
        largest = tl.maximum(largest, tl.max(a, axis=1).to(tl.float32))
        ks += BK
        b_ptrs = b_ptrs + BK * sbk
    acc += largest[:, None]
    c_ptrs = c_ptr + rm[:, None] * scm + rn[None, :] * scn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


# @overlap.host_entry a[M,K] v[K] b[K,N] -> c[M,N]
def matmul(a, v, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 32) * triton.cdiv(N, 32),)
    gemm_scaled[grid](a, v, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), BM=32, BN=32, BK=32)
    return c
