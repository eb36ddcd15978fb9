"""Quantisation by groups of a row: a result of bytes, and one of scales whose rows are `N // GROUP` apart."""
import torch
import triton
import triton.language as tl


@triton.jit
def quantize(y_ptr, y_q_ptr, y_s_ptr, y_stride, N, rows, eps, lo, hi, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    # @overlap.axis_count rows block=1
    # @overlap.axis_count N block=GROUP
    # @overlap.dispatch begin
    # @overlap.pid_map rows=row N=group
    row = tl.program_id(1).to(tl.int64)
    group = tl.program_id(0).to(tl.int64)
    # @overlap.dispatch end
    y_ptr += row * y_stride + group * GROUP
    y_q_ptr += row * N + group * GROUP
    y_s_ptr += row * (N // GROUP) + group
    cols = tl.arange(0, BLOCK)
    mask = cols < GROUP
    y = tl.load(y_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(y)), eps) / hi
    tl.store(y_q_ptr + cols, tl.clamp(y / scale, lo, hi).to(y_q_ptr.dtype.element_ty), mask=mask)
    tl.store(y_s_ptr, scale)


# @overlap.host_entry x[rows,N] -> x_q[rows,N] x_s[rows,groups]
def quant(x, group_size: int = 16, eps: float = 1e-10):
    rows, N = x.shape
    x_q = torch.empty_like(x, dtype=torch.int8)
    x_s = torch.empty((rows, N // group_size), device=x.device, dtype=torch.float32)
    grid = (N // group_size, rows)
    quantize[grid](x, x_q, x_s, x.stride(0), N, rows, eps, -127.0, 127.0, GROUP=group_size, BLOCK=triton.next_power_of_2(group_size))
    return x_q, x_s
