"""The GEMM kernel whose result leaves by plain stores (``backend="ldst_inline"``): operands by TMA, C by pointers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gemm_out_stored(
    a_desc,
    b_desc,
    c_ptr,
    a_ptr,
    b_ptr,
    bias_ptr,
    B,
    M,
    N,
    K,
    stride_ab,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cb,
    stride_cm,
    stride_cn,
    BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    NUM_PROGRAMS: tl.constexpr,
    A_BY: tl.constexpr,
    B_BY: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """A[B,M,K], B[K,N], C[M,B,N]; persistent, BLOCK_B is 1. Arguments as those of `gemm_out_tma` beside it."""
    # @overlap.tensor c_ptr[M,B,N] write
    # @overlap.axis_count B block=BLOCK_B
    num_pid_b = tl.cdiv(B, BLOCK_B)
    # @overlap.axis_count M block=BLOCK_M
    num_pid_m = tl.cdiv(M, BLOCK_M)
    # @overlap.axis_count N block=BLOCK_N
    num_pid_n = tl.cdiv(N, BLOCK_N)
    # @overlap.axis_count K=range
    k_tiles = tl.cdiv(K, BLOCK_K)
    num_in_matrix = num_pid_m * num_pid_n
    num_in_group = GROUP_M * num_pid_n
    # @overlap.tile_id persistent
    for tile in tl.range(tl.program_id(0), num_pid_b * num_in_matrix, NUM_PROGRAMS):
        # @overlap.dispatch begin
        # @overlap.pid_map B=pid_b M=pid_m N=pid_n
        pid_b = tile // num_in_matrix
        in_matrix = tile % num_in_matrix
        group = in_matrix // num_in_group
        first_m = group * GROUP_M
        rows = min(num_pid_m - first_m, GROUP_M)
        pid_m = first_m + (in_matrix % num_in_group) % rows
        pid_n = (in_matrix % num_in_group) // rows
        # @overlap.dispatch end
        off_b = pid_b * BLOCK_B
        off_m = pid_m * BLOCK_M
        off_n = pid_n * BLOCK_N
        offs_m = off_m + tl.arange(0, BLOCK_M)
        offs_n = off_n + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(k_tiles):
            ks = k * BLOCK_K + tl.arange(0, BLOCK_K)
            if A_BY == "rows":
                a = a_desc.load([off_b, off_m, k * BLOCK_K]).reshape(BLOCK_M, BLOCK_K)
            else:
                a_rows = a_ptr + off_b.to(tl.int64) * stride_ab + offs_m[:, None].to(tl.int64) * stride_am
                a_mask = (offs_m[:, None] < M) & (ks[None, :] < K)
                a = tl.load(a_rows + ks[None, :].to(tl.int64) * stride_ak, mask=a_mask, other=0.0)
            if B_BY == "rows":
                b = b_desc.load([k * BLOCK_K, off_n])
            elif B_BY == "columns":
                b = b_desc.load([off_n, k * BLOCK_K]).T
            else:
                b_ptrs = b_ptr + ks[:, None].to(tl.int64) * stride_bk + offs_n[None, :].to(tl.int64) * stride_bn
                b = tl.load(b_ptrs, mask=(ks[:, None] < K) & (offs_n[None, :] < N), other=0.0)
            acc = tl.dot(a, b, acc)
        if HAS_BIAS:
            acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
        c_rows = c_ptr + off_b.to(tl.int64) * stride_cb + offs_m[:, None].to(tl.int64) * stride_cm
        inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
        tl.store(c_rows + offs_n[None, :].to(tl.int64) * stride_cn, acc.to(c_ptr.dtype.element_ty), mask=inside)
