"""Names that others use for other things."""
import torch
import triton
import triton.language as tl


@triton.jit
def wait(x, flag):
    return x + flag * 0


@triton.jit
def kernel(input, weight, output, M, N, K, rank, world, ol_table, max, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    # @overlap.tile_id
    id = tl.program_id(0)
    # @overlap.axis_count M block=BLOCK_M
    rows = tl.cdiv(M, BLOCK_M)
    # @overlap.axis_count N block=BLOCK_N
    ol = tl.cdiv(N, BLOCK_N)
    # @overlap.dispatch begin
    # @overlap.pid_map M=ol_run N=epoch
    ol_run = id // ol
    epoch = id % ol
    # @overlap.dispatch end
    ol_state = ol_run * BLOCK_M + tl.arange(0, BLOCK_M)
    ol_seen = epoch * BLOCK_N + tl.arange(0, BLOCK_N)
    sum = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for range_ in range(0, K, BLOCK_K):
        ol_epoch = range_ + tl.arange(0, BLOCK_K)
        x = tl.load(input + ol_state[:, None] * K + ol_epoch[None, :], mask=(ol_state[:, None] < M) & (ol_epoch[None, :] < K), other=0.0)
        y = tl.load(weight + ol_epoch[:, None] * N + ol_seen[None, :], mask=(ol_epoch[:, None] < K) & (ol_seen[None, :] < N), other=0.0)
        sum = wait(tl.dot(x, y, sum), rank)
    sum = sum * max + ol_table
    tl.store(output + ol_state[:, None] * N + ol_seen[None, :], sum.to(output.dtype.element_ty), mask=(ol_state[:, None] < M) & (ol_seen[None, :] < N))


# @overlap.host_entry input[M,K] weight[K,N] -> output[M,N]
def run(input, weight, rank=3, world=7, flags=1):
    M, K = input.shape
    N = weight.shape[1]
    output = torch.empty((M, N), device=input.device, dtype=input.dtype)
    group_ = (triton.cdiv(M, 32) * triton.cdiv(N, 32),)
    kernel[group_](input, weight, output, M=M, N=N, K=K, rank=rank, world=world, ol_table=flags, max=2, BLOCK_M=32, BLOCK_N=32, BLOCK_K=16)
    return output
