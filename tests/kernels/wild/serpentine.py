"""Rows of tiles run left to right and back; grid axes swapped; programs stride by num_programs in a range()."""
import torch
import triton
import triton.language as tl


@triton.jit
def snake(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # @overlap.axis_count N block=BN
    nn = tl.cdiv(N, BN)
    # @overlap.axis_count M block=BM
    nm = tl.cdiv(M, BM)
    # @overlap.tile_id persistent
    for t in range(tl.program_id(0), nm * nn, tl.num_programs(0)):
        # @overlap.dispatch begin
        # @overlap.pid_map N=tn M=tm
        tm = t // nn
        tn = t % nn
        if tm % 2 == 1:
            tn = nn - 1 - tn
        # @overlap.dispatch end
        m = tm * BM + tl.arange(0, BM)
        n = tn * BN + tl.arange(0, BN)
        # Rows past the end read row 0, as the persistent tutorial does.
        am = tl.where(m < M, m, 0)
        bn = tl.where(n < N, n, 0)
        am = tl.max_contiguous(tl.multiple_of(am, BM), BM)
        bn = tl.max_contiguous(tl.multiple_of(bn, BN), BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            kk = k * BK + tl.arange(0, BK)
            x = tl.load(a_ptr + am[:, None] * K + kk[None, :], mask=kk[None, :] < K, other=0.0)
            y = tl.load(b_ptr + kk[:, None] * N + bn[None, :], mask=kk[:, None] < K, other=0.0)
            acc = tl.dot(x, y, acc)
        tl.store(c_ptr + m[:, None] * N + n[None, :], acc.to(c_ptr.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    snake[(4,)](a, b, c, M, N, K, BM=32, BN=32, BK=16)
    return c
