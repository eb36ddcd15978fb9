"""make_block_ptr, order, boundary checks, a batch loop inside the kernel; helper in another module."""
import torch
import triton
import triton.language as tl

from shared_helpers import relu, tile_of


@triton.jit
def block_gemm(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr):
    # @overlap.tile_id
    pid = tl.program_id(0)
    # @overlap.axis_count M block=BM
    nm = tl.cdiv(M, BM)
    # @overlap.axis_count N block=BN
    nn = tl.cdiv(N, BN)
    # @overlap.dispatch begin
    # @overlap.pid_map M=i N=j
    i, j = tile_of(pid, nm, nn, G)
    # @overlap.dispatch end
    ap = tl.make_block_ptr(base=a_ptr, shape=(M, K), strides=(stride_am, stride_ak), offsets=(i * BM, 0), block_shape=(BM, BK), order=(1, 0))
    bp = tl.make_block_ptr(base=b_ptr, shape=(K, N), strides=(stride_bk, stride_bn), offsets=(0, j * BN), block_shape=(BK, BN), order=(1, 0))
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        a = tl.load(ap, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(bp, boundary_check=(0, 1), padding_option="zero")
        acc += tl.dot(a, b)
        ap = tl.advance(ap, (0, BK))
        bp = tl.advance(bp, (BK, 0))
    acc = relu(acc)
    cp = tl.make_block_ptr(base=c_ptr, shape=(M, N), strides=(stride_cm, stride_cn), offsets=(i * BM, j * BN), block_shape=(BM, BN), order=(1, 0))
    tl.store(cp, acc.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 32) * triton.cdiv(N, 32),)
    block_gemm[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(), BM=32, BN=32, BK=16, G=2)
    return c
