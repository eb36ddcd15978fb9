"""C = A @ B with the K dimension split over programs, which add their partial tiles into C."""

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
    BLOCK_SPLIT: tl.constexpr,
):
    # @overlap.tile_id
    pid = tl.program_id(0)
    # @overlap.axis_count M block=BLOCK_M
    # @overlap.axis_count N block=BLOCK_N
    num_pid_n = tl.cdiv(N, BLOCK_N)
    # @overlap.axis_count K block=BLOCK_SPLIT
    num_parts = tl.cdiv(K, BLOCK_SPLIT)
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n K=part
    part = pid % num_parts
    pid_n = (pid // num_parts) % num_pid_n
    pid_m = pid // (num_parts * num_pid_n)
    # @overlap.dispatch end
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    in_m = offs_m[:, None] < M
    in_n = offs_n[None, :] < N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, BLOCK_SPLIT, BLOCK_K):
        offs_k = part * BLOCK_SPLIT + k + tl.arange(0, BLOCK_K)
        in_k = offs_k < K
        a_ptrs = a_ptr + offs_m[:, None].to(tl.int64) * stride_am + offs_k[None, :] * stride_ak
        b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :].to(tl.int64) * stride_bn
        a = tl.load(a_ptrs, mask=in_m & in_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=in_k[:, None] & in_n, other=0.0)
        acc = tl.dot(a, b, acc)
    c_ptrs = c_ptr + offs_m[:, None].to(tl.int64) * stride_cm + offs_n[None, :] * stride_cn
    tl.atomic_add(c_ptrs, acc, mask=in_m & in_n)


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    _, N = b.shape
    c = torch.zeros((M, N), device=a.device, dtype=torch.float32)
    grid = lambda meta: (  # noqa: E731
        triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]) * triton.cdiv(K, meta["BLOCK_SPLIT"]),
    )
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
        BLOCK_M=32,
        BLOCK_N=32,
        BLOCK_K=16,
        BLOCK_SPLIT=32,
        num_warps=4,
    )
    return c
