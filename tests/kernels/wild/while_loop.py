"""Persistent GEMM whose scheduler is a `while`, as people write it before they learn of tl.range."""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm_while(
    A, B, C,
    M, N, K,
    lda, ldb, ldc,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """C = A @ B, one program takes every num_programs-th tile."""
    # @overlap.axis_count M block=BLOCK_M
    tiles_m = tl.cdiv(M, BLOCK_M)
    # @overlap.axis_count N block=BLOCK_N
    tiles_n = tl.cdiv(N, BLOCK_N)
    total = tiles_m * tiles_n
    # @overlap.tile_id persistent
    tile = tl.program_id(0)
    while tile < total:
        # @overlap.dispatch begin
        # @overlap.pid_map M=tm N=tn
        tm = tile // tiles_n
        tn = tile % tiles_n
        # @overlap.dispatch end
        rows = tm * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = tn * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k0 in range(0, K, BLOCK_K):
            ks = k0 + tl.arange(0, BLOCK_K)
            a = tl.load(A + rows[:, None] * lda + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0)
            b = tl.load(B + ks[:, None] * ldb + cols[None, :], mask=(ks[:, None] < K) & (cols[None, :] < N), other=0.0)
            acc += tl.dot(a, b)
        tl.store(C + rows[:, None] * ldc + cols[None, :], acc.to(C.type.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))
        tile += tl.num_programs(0)


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    progs = max(1, min(5, triton.cdiv(M, 32) * triton.cdiv(N, 32)))
    gemm_while[(progs,)](a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0), BLOCK_M=32, BLOCK_N=32, BLOCK_K=16)
    return c
