"""Block sizes as module constants, an assert, a walrus, parentheses and a line continuation; BLOCK is a literal."""
import torch
import triton
import triton.language as tl

BLOCK_M: tl.constexpr = tl.constexpr(32)
BLOCK_N: tl.constexpr = tl.constexpr(32)
BLOCK_K: tl.constexpr = tl.constexpr(16)
GROUP = tl.constexpr(4)


@triton.jit
def gemm(a_ptr, b_ptr, c_ptr, M, N, K):
    # @overlap.axis_count M block=32
    # @overlap.axis_count N block=32
    # @overlap.tile_id
    pid = tl.program_id(0)
    grid_m = (M + BLOCK_M - 1) // BLOCK_M
    grid_n = tl.cdiv(N, BLOCK_N)
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    width = GROUP * grid_n
    group_id = pid // width
    group_size = min(grid_m - group_id * GROUP, GROUP)
    pid_m = group_id * GROUP + (pid % group_size)
    pid_n = (pid % width) // (group_size)
    # @overlap.dispatch end
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        rk = k + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :],
                    mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        b = tl.load(
            b_ptr + rk[:, None] * N + rn[None, :],  # row-major
            mask=(rk[:, None] < K) & (rn[None, :] < N),
            other=0.0,
        )
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(c_ptr.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    gemm[(triton.cdiv(M, 32) * triton.cdiv(N, 32),)](a, b, c, M, N, K)
    return c
