"""C = A, tile by tile: a kernel that only moves values, so that every bit must arrive."""

import torch
import triton
import triton.language as tl


@triton.jit
def copy_kernel(a_ptr, c_ptr, M, N, stride_am, stride_an, stride_cm, stride_cn, BLOCK: tl.constexpr):
    # @overlap.axis_count M block=BLOCK
    # @overlap.axis_count N block=BLOCK
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    # @overlap.dispatch end
    offs_m = pid_m * BLOCK + tl.arange(0, BLOCK)
    offs_n = pid_n * BLOCK + tl.arange(0, BLOCK)
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    a = tl.load(a_ptr + offs_m[:, None] * stride_am + offs_n[None, :] * stride_an, mask=inside, other=0.0)
    tl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, a, mask=inside)


# @overlap.host_entry a[M,N] -> c[M,N]
def copied(a):
    M, N = a.shape
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = lambda meta: (triton.cdiv(M, meta["BLOCK"]), triton.cdiv(N, meta["BLOCK"]))  # noqa: E731
    copy_kernel[grid](a, c, M, N, a.stride(0), a.stride(1), c.stride(0), c.stride(1), BLOCK=16)
    return c
