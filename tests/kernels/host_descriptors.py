"""Descriptors made on the host, block sizes from an autotune configuration whose hook sets the descriptors' boxes."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


def set_boxes(args):
    args["a_desc"].block_shape = [args["BM"], args["BK"]]
    args["b_desc"].block_shape = [args["BK"], args["BN"]]
    args["c_desc"].block_shape = [args["BM"], args["BN"]]


@triton.autotune(configs=[triton.Config({"BM": 32, "BN": 32, "BK": 32}, num_stages=3, num_warps=4, pre_hook=set_boxes)], key=["M", "N", "K"])  # fmt: skip
@triton.jit
def gemm_tma(a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NUM_SMS: tl.constexpr, DTYPE: tl.constexpr):  # fmt: skip
    start = tl.program_id(0)
    # @overlap.axis_count M block=BM
    rows = tl.cdiv(M, BM)
    # @overlap.axis_count N block=BN
    cols = tl.cdiv(N, BN)
    # @overlap.tile_id persistent
    for tile in tl.range(start, rows * cols, NUM_SMS):
        # @overlap.dispatch begin
        # @overlap.pid_map M=pid_m N=pid_n
        pid_m = tile // cols
        pid_n = tile % cols
        # @overlap.dispatch end
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            a = a_desc.load([pid_m * BM, k])
            b = b_desc.load([k, pid_n * BN])
            acc = tl.dot(a, b, acc)
        c_desc.store([pid_m * BM, pid_n * BN], acc.to(DTYPE))


TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    box = [1, 1]
    a_desc = TensorDescriptor(a, a.shape, a.stride(), box)
    b_desc = TensorDescriptor(b, b.shape, b.stride(), box)
    c_desc = TensorDescriptor(c, c.shape, c.stride(), box)
    grid = lambda meta: (max(1, min(4, triton.cdiv(M, meta["BM"]) * triton.cdiv(N, meta["BN"]))),)  # noqa: E731
    gemm_tma[grid](a_desc, b_desc, c_desc, M, N, K, NUM_SMS=4, DTYPE=TYPES[a.dtype])
    return c
