"""Weights of four bits packed in int32 along K, with zeros and scales by groups of K (GPTQ)."""
import torch
import triton
import triton.language as tl


@triton.jit
def quant_matmul_248(a_ptr, b_ptr, c_ptr, scales_ptr, zeros_ptr, M, N, K, groupsize: tl.constexpr,
                     stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_scales, stride_zeros,
                     BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr = 8):
    infearure_per_bits = 8
    # @overlap.tile_id
    pid = tl.program_id(axis=0)
    # @overlap.axis_count M block=BLOCK_SIZE_M
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    # @overlap.axis_count N block=BLOCK_SIZE_N
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_k = tl.cdiv(K, BLOCK_SIZE_K)
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + (pid % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    # @overlap.dispatch end
    offs_am = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_bn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    a_mask = (offs_am[:, None] < M)
    b_ptrs = b_ptr + ((offs_k[:, None] // infearure_per_bits) * stride_bk + offs_bn[None, :] * stride_bn)
    shifter = (offs_k % infearure_per_bits) * 4
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, num_pid_k):
        g_idx = (k * BLOCK_SIZE_K + offs_k) // groupsize
        n_mask = offs_bn[None, :] < N
        scales = tl.load(scales_ptr + g_idx[:, None] * stride_scales + offs_bn[None, :], mask=n_mask, other=0.0)
        zeros = tl.load(zeros_ptr + g_idx[:, None] * stride_zeros + offs_bn[None, :], mask=n_mask, other=0.0)
        a = tl.load(a_ptrs, mask=a_mask, other=0.)
        b = tl.load(b_ptrs, mask=n_mask, other=0)
        b = (b >> shifter[:, None]) & 0xF
        b = ((b - zeros) * scales).to(a.dtype)
        accumulator += tl.dot(a, b)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += (BLOCK_SIZE_K // infearure_per_bits) * stride_bk
    c_ptrs = c_ptr + stride_cm * offs_am[:, None] + stride_cn * offs_bn[None, :]
    c_mask = (offs_am[:, None] < M) & (offs_bn[None, :] < N)
    tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), mask=c_mask)


# @overlap.host_entry input[M,K] qweight[P,N] scales[G,N] zeros[G,N] -> output[M,N]
def matmul248(input, qweight, scales, zeros):
    M, K = input.shape
    N = qweight.shape[1]
    output = torch.empty((M, N), device=input.device, dtype=scales.dtype)
    grid = lambda META: (triton.cdiv(M, META["BLOCK_SIZE_M"]) * triton.cdiv(N, META["BLOCK_SIZE_N"]),)
    quant_matmul_248[grid](input, qweight, output, scales, zeros, M, N, K, K // scales.shape[0],
                           input.stride(0), input.stride(1), qweight.stride(0), qweight.stride(1), output.stride(0), output.stride(1),
                           scales.stride(0), zeros.stride(0), BLOCK_SIZE_M=16, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32)
    return output
