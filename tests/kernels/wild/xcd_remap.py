"""A remap of program ids to chiplets before grouping, as on MI300; dot in fp16 out; 64-bit program id; tl.swizzle2d."""
import torch
import triton
import triton.language as tl


@triton.jit
def remap_xcd(pid, grid, NUM_XCDS: tl.constexpr = 4):
    pids_per_xcd = (grid + NUM_XCDS - 1) // NUM_XCDS
    tall = grid % NUM_XCDS
    tall = NUM_XCDS if tall == 0 else tall
    xcd = pid % NUM_XCDS
    local = pid // NUM_XCDS
    if xcd < tall:
        pid = xcd * pids_per_xcd + local
    else:
        pid = tall * pids_per_xcd + (xcd - tall) * (pids_per_xcd - 1) + local
    return pid


@triton.jit
def gemm(a_ptr, b_ptr, c_ptr, M, N, K, stride_am: tl.int64, stride_bk: tl.int64, stride_cm: tl.int64, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GM: tl.constexpr):
    # @overlap.tile_id
    pid = tl.program_id(0)
    # @overlap.axis_count M block=BM
    nm = tl.cdiv(M, BM)
    # @overlap.axis_count N block=BN
    nn = tl.cdiv(N, BN)
    # @overlap.dispatch begin
    # @overlap.pid_map M=i N=j
    p = remap_xcd(pid, nm * nn)
    i = p // nn
    j = p % nn
    i, j = tl.swizzle2d(i, j, nm, nn, GM)
    # @overlap.dispatch end
    m = i.to(tl.int64) * BM + tl.arange(0, BM)
    n = j.to(tl.int64) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        kk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + m[:, None] * stride_am + kk[None, :], mask=(m[:, None] < M) & (kk[None, :] < K), other=0.0)
        b = tl.load(b_ptr + kk[:, None] * stride_bk + n[None, :], mask=(kk[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * stride_cm + n[None, :], acc.to(c_ptr.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    gemm[(triton.cdiv(M, 32) * triton.cdiv(N, 32),)](a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0), BM=32, BN=32, BK=16, GM=2)
    return c
