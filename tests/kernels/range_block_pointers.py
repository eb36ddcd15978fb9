"""Block pointers that the K loop moves on with `tl.advance`."""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm_blocks(a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    # @overlap.axis_count M block=BM
    # @overlap.axis_count N block=BN
    # @overlap.axis_count K=range
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    # @overlap.dispatch end
    a_blocks = tl.make_block_ptr(a_ptr, (M, K), (sam, sak), (pid_m * BM, 0), (BM, BK), (1, 0))
    b_blocks = tl.make_block_ptr(b_ptr, (K, N), (sbk, sbn), (0, pid_n * BN), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in tl.range(0, K, BK, num_stages=3):
        a = tl.load(a_blocks, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_blocks, boundary_check=(0, 1), padding_option="zero")
        acc = tl.dot(a, b, acc=acc)
        a_blocks = tl.advance(a_blocks, (0, BK))
        b_blocks = tl.advance(b_blocks, [BK, 0])
    c_blocks = tl.make_block_ptr(c_ptr, (M, N), (scm, scn), (pid_m * BM, pid_n * BN), (BM, BN), (1, 0))
    tl.store(c_blocks, acc.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
    gemm_blocks[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), BM=32, BN=32, BK=32)
    return c
