"""out = x.T, tile by tile."""
import torch
import triton
import triton.language as tl


@triton.jit
def transpose_kernel(x_ptr, o_ptr, M, N, stride_xm, stride_xn, stride_om, stride_on, BLOCK: tl.constexpr):
    # @overlap.axis_count M block=BLOCK
    # @overlap.axis_count N block=BLOCK
    # @overlap.dispatch begin
    # @overlap.pid_map M=pm N=pn
    pm, pn = tl.program_id(0), tl.program_id(1)
    # @overlap.dispatch end
    rm = pm * BLOCK + tl.arange(0, BLOCK)
    rn = pn * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + rm[:, None] * stride_xm + rn[None, :] * stride_xn, mask=(rm[:, None] < M) & (rn[None, :] < N))
    tl.store(o_ptr + rn[:, None] * stride_om + rm[None, :] * stride_on, tl.trans(x), mask=(rn[:, None] < N) & (rm[None, :] < M))


# @overlap.host_entry x[M,N] -> out[N,M]
def transpose(x):
    M, N = x.shape
    out = torch.empty(N, M, dtype=x.dtype, device=x.device)
    transpose_kernel[(triton.cdiv(M, 16), triton.cdiv(N, 16))](x, out, M, N, x.stride(0), x.stride(1), out.stride(0), out.stride(1), BLOCK=16)
    return out
