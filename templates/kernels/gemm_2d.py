"""C = A @ B on a 2-D grid: one program a tile, masked pointers."""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # @overlap.axis_count M block=BLOCK_M
    # @overlap.axis_count N block=BLOCK_N
    # @overlap.axis_count K=range
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    # @overlap.dispatch end
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_rows = a_ptr + offs_m[:, None].to(tl.int64) * stride_am
    b_cols = b_ptr + offs_n[None, :].to(tl.int64) * stride_bn
    in_m = offs_m[:, None] < M
    in_n = offs_n[None, :] < N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        # The last block of K is cut by the mask; rows and columns past the edge are never read.
        ks = k + offs_k
        a = tl.load(a_rows + ks[None, :].to(tl.int64) * stride_ak, mask=in_m & (ks[None, :] < K), other=0.0)
        b = tl.load(b_cols + ks[:, None].to(tl.int64) * stride_bk, mask=(ks[:, None] < K) & in_n, other=0.0)
        acc = tl.dot(a, b, acc)
    c_ptrs = c_ptr + offs_m[:, None].to(tl.int64) * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=in_m & in_n)


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    _, N = b.shape
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = lambda meta: (triton.cdiv(M, meta["BLOCK_M"]), triton.cdiv(N, meta["BLOCK_N"]))  # noqa: E731
    matmul_kernel[grid](
        a,
        b,
        c,
        M,
        N,
        K,
        a.stride(0),
        a.stride(1),
        b.stride(0),
        b.stride(1),
        c.stride(0),
        c.stride(1),
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=32,
        num_warps=4,
    )
    return c
