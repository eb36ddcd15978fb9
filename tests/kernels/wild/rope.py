"""Rotary embedding of [S, H, D]: a program a token and block of heads; half-split, cos and sin tables; in float32."""
import torch
import triton
import triton.language as tl


@triton.jit
def rotate(x1, x2, c, s):
    return x1 * c - x2 * s, x2 * c + x1 * s


@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, y_ptr, S, H, stride_xs, stride_xh, stride_cs, stride_ys, stride_yh, HALF: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr):
    # @overlap.axis_count S block=BLOCK_S
    # @overlap.axis_count H block=BLOCK_H
    # @overlap.dispatch begin
    # @overlap.pid_map S=ps H=ph
    ps = tl.program_id(0)
    ph = tl.program_id(1)
    # @overlap.dispatch end
    s = ps * BLOCK_S + tl.arange(0, BLOCK_S)
    h = ph * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, HALF)
    cos = tl.load(cos_ptr + s[:, None] * stride_cs + d[None, :], mask=(s < S)[:, None], other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + s[:, None] * stride_cs + d[None, :], mask=(s < S)[:, None], other=0.0).to(tl.float32)
    at = x_ptr + s[:, None, None] * stride_xs + h[None, :, None] * stride_xh + d[None, None, :]
    mask = (s < S)[:, None, None] & (h < H)[None, :, None]
    a = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    ra, rb = rotate(a, b, cos[:, None, :], sin[:, None, :])
    to = y_ptr + s[:, None, None] * stride_ys + h[None, :, None] * stride_yh + d[None, None, :]
    tl.store(to, ra.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(to + HALF, rb.to(y_ptr.dtype.element_ty), mask=mask)


# @overlap.host_entry x[S,H,D] cos[S,F] sin[S,F] -> y[S,H,D]
def rope(x, cos, sin):
    S, H, D = x.shape
    y = torch.empty_like(x)
    rope_kernel[(triton.cdiv(S, 8), triton.cdiv(H, 2))](x, cos, sin, y, S, H, x.stride(0), x.stride(1), cos.stride(0), y.stride(0), y.stride(1), HALF=D // 2, BLOCK_S=8, BLOCK_H=2)
    return y
