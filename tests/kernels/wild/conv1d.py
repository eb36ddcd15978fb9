"""Causal depthwise convolution of width 4 over [B, S, C]: reads a halo of rows before the tile."""
import torch
import triton
import triton.language as tl


@triton.jit
def conv(x_ptr, w_ptr, y_ptr, B, S, C, sxb, sxs, BS: tl.constexpr, BC: tl.constexpr, W: tl.constexpr):
    # @overlap.axis_count S block=BS
    # @overlap.axis_count C block=BC
    # @overlap.axis_count B block=1
    # @overlap.dispatch begin
    # @overlap.pid_map S=ps C=pc B=pb
    ps = tl.program_id(0)
    pc = tl.program_id(1)
    pb = tl.program_id(2)
    # @overlap.dispatch end
    s = ps * BS + tl.arange(0, BS)
    c = pc * BC + tl.arange(0, BC)
    acc = tl.zeros((BS, BC), dtype=tl.float32)
    for i in tl.static_range(W):
        row = s - (W - 1) + i
        x = tl.load(x_ptr + pb * sxb + row[:, None] * sxs + c[None, :], mask=(row[:, None] >= 0) & (row[:, None] < S) & (c[None, :] < C), other=0.0).to(tl.float32)
        w = tl.load(w_ptr + i * C + c, mask=c < C, other=0.0).to(tl.float32)
        acc += x * w[None, :]
    tl.store(y_ptr + pb * sxb + s[:, None] * sxs + c[None, :], acc.to(y_ptr.dtype.element_ty), mask=(s[:, None] < S) & (c[None, :] < C))


# @overlap.host_entry x[B,S,C] w[F,C] -> y[B,S,C]
def causal_conv(x, w):
    B, S, C = x.shape
    y = torch.empty_like(x)
    conv[(triton.cdiv(S, 16), triton.cdiv(C, 32), B)](x, w, y, B, S, C, x.stride(0), x.stride(1), BS=16, BC=32, W=w.shape[0])
    return y
