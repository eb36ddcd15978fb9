"""Expert GEMM as in serving engines: rows by a sorted token table, the expert of a block from a table."""
import torch
import triton
import triton.language as tl


@triton.jit
def fused_moe(a_ptr, b_ptr, c_ptr, sorted_ptr, expert_ptr, T, S, E, N, K,
              stride_am, stride_ak, stride_be, stride_bk, stride_bn, stride_cm, stride_cn,
              BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr):
    # @overlap.tile_id
    pid = tl.program_id(axis=0)
    # @overlap.axis_count S block=BLOCK_SIZE_M
    num_pid_m = tl.cdiv(S, BLOCK_SIZE_M)
    # @overlap.axis_count N block=BLOCK_SIZE_N
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    # @overlap.dispatch begin
    # @overlap.pid_map S=pid_m N=pid_n
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    # @overlap.dispatch end
    offs_slot = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    token = tl.load(sorted_ptr + offs_slot, mask=offs_slot < S, other=0).to(tl.int32)
    token = (token + 8) % T
    expert = tl.load(expert_ptr + pid_m).to(tl.int32)
    expert = (expert + 8) % E
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (token[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + expert * stride_be + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=(offs_slot < S)[:, None] & (offs_k[None, :] < K - k * BLOCK_SIZE_K), other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator += tl.dot(a, b)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_slot[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), mask=(offs_slot < S)[:, None] & (offs_cn[None, :] < N))


# @overlap.host_entry a[T,K] w[E,K,N] sorted_ids[S] experts[P] -> c[S,N]
def moe(a, w, sorted_ids, experts):
    T, K = a.shape
    E, _, N = w.shape
    S = sorted_ids.numel()
    c = torch.empty((S, N), device=a.device, dtype=a.dtype)
    grid = lambda META: (triton.cdiv(S, META['BLOCK_SIZE_M']) * triton.cdiv(N, META['BLOCK_SIZE_N']),)
    fused_moe[grid](a, w, c, sorted_ids, experts, T, S, E, N, K, a.stride(0), a.stride(1), w.stride(0), w.stride(1), w.stride(2), c.stride(0), c.stride(1),
                    BLOCK_SIZE_M=16, BLOCK_SIZE_N=32, BLOCK_SIZE_K=16, GROUP_SIZE_M=4)
    return c
