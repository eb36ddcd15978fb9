"""Batched product, the batch on the grid's last axis, int64 batch offsets, pointers advanced in place."""
import torch
import triton
import triton.language as tl


@triton.jit
def bmm_kernel(
    x_ptr, y_ptr, o_ptr,
    B, M, N, K,
    stride_xb, stride_xm, stride_xk,
    stride_yb, stride_yk, stride_yn,
    stride_ob, stride_om, stride_on,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, 
):
    # @overlap.axis_count B block=1
    # @overlap.axis_count M block=TILE_M
    # @overlap.axis_count N block=TILE_N
    # @overlap.dispatch begin
    # @overlap.pid_map B=batch M=pid_m N=pid_n
    pid_n = tl.program_id(0)
    pid_m = tl.program_id(1)
    batch = tl.program_id(2)
    # @overlap.dispatch end
    x_ptr += batch.to(tl.int64) * stride_xb
    y_ptr += batch.to(tl.int64) * stride_yb
    o_ptr += batch.to(tl.int64) * stride_ob
    m = pid_m * TILE_M + tl.arange(0, TILE_M)
    n = pid_n * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    xs = x_ptr + m[:, None] * stride_xm + k[None, :] * stride_xk
    ys = y_ptr + k[:, None] * stride_yk + n[None, :] * stride_yn
    acc = tl.zeros((TILE_M, TILE_N), tl.float32)
    for step in range(tl.cdiv(K, TILE_K)):
        keep = k < K - step * TILE_K
        a = tl.load(xs, mask=(m < M)[:, None] & keep[None, :], other=0)
        b = tl.load(ys, mask=keep[:, None] & (n < N)[None, :], other=0)
        acc = tl.dot(a, b, acc=acc, allow_tf32=False)
        xs += TILE_K * stride_xk
        ys += TILE_K * stride_yk
    tl.store(o_ptr + m[:, None] * stride_om + n[None, :] * stride_on, acc.to(o_ptr.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


# @overlap.host_entry x[B,M,K] y[B,K,N] -> out[B,M,N]
def bmm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    B, M, K = x.shape
    N = y.shape[-1]
    out = x.new_empty((B, M, N))
    grid = (triton.cdiv(N, 32), triton.cdiv(M, 16), B)
    bmm_kernel[grid](x, y, out, B, M, N, K, *x.stride(), *y.stride(), *out.stride(), TILE_M=16, TILE_N=32, TILE_K=16)
    return out
