"""Persistent with descriptors and an epilogue of two halves (reshape, permute, split), flatten and num_stages by constexpr."""
import torch
import triton
import triton.language as tl


@triton.jit
def _compute_pid(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M, NUM_SMS):
    group_id = tile_id // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + (tile_id % group_size_m)
    pid_n = (tile_id % num_pid_in_group) // group_size_m
    return pid_m, pid_n


@triton.jit
def matmul_tma(x_ptr, w_ptr, out_ptr, M, N, K, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
               GROUP_SIZE_M: tl.constexpr, NUM_SMS: tl.constexpr, STAGES: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr = True):
    dtype = out_ptr.dtype.element_ty
    start_pid = tl.program_id(axis=0)
    # @overlap.axis_count M block=BLOCK_SIZE_M
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    # @overlap.axis_count N block=BLOCK_SIZE_N
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    k_tiles = tl.cdiv(K, BLOCK_SIZE_K)
    num_tiles = num_pid_m * num_pid_n
    x_desc = tl.make_tensor_descriptor(x_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_K])
    w_desc = tl.make_tensor_descriptor(w_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_SIZE_N, BLOCK_SIZE_K])
    out_desc = tl.make_tensor_descriptor(out_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_SIZE_M, BLOCK_SIZE_N if not EPILOGUE_SUBTILE else BLOCK_SIZE_N // 2])
    # @overlap.tile_id persistent
    tile_id_c = start_pid - NUM_SMS
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    # @overlap.tile_id persistent
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS, flatten=True):
        # @overlap.dispatch begin
        # @overlap.pid_map M=pid_m N=pid_n
        pid_m, pid_n = _compute_pid(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M, NUM_SMS)
        # @overlap.dispatch end
        offs_am = pid_m * BLOCK_SIZE_M
        offs_bn = pid_n * BLOCK_SIZE_N
        accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
        for ki in tl.range(k_tiles, num_stages=STAGES):
            offs_k = ki * BLOCK_SIZE_K
            a = x_desc.load([offs_am, offs_k])
            b = w_desc.load([offs_bn, offs_k])
            accumulator = tl.dot(a, b.T, accumulator)
        tile_id_c += NUM_SMS
        # @overlap.dispatch begin
        # @overlap.pid_map M=pid_m N=pid_n
        pid_m, pid_n = _compute_pid(tile_id_c, num_pid_in_group, num_pid_m, GROUP_SIZE_M, NUM_SMS)
        # @overlap.dispatch end
        offs_cm = pid_m * BLOCK_SIZE_M
        offs_cn = pid_n * BLOCK_SIZE_N
        if EPILOGUE_SUBTILE:
            acc = tl.reshape(accumulator, (BLOCK_SIZE_M, 2, BLOCK_SIZE_N // 2))
            acc = tl.permute(acc, (0, 2, 1))
            acc0, acc1 = tl.split(acc)
            out_desc.store([offs_cm, offs_cn], acc0.to(dtype))
            out_desc.store([offs_cm, offs_cn + BLOCK_SIZE_N // 2], acc1.to(dtype))
        else:
            out_desc.store([offs_cm, offs_cn], accumulator.to(dtype))


# @overlap.host_entry x[M,K] w[N,K] -> out[M,N]
def linear(x, w):
    M, K = x.shape
    N, K = w.shape
    out = torch.empty((M, N), device=x.device, dtype=x.dtype)
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device=x.device, dtype=torch.int8))
    NUM_SMS = 5
    grid = lambda META: (min(NUM_SMS, triton.cdiv(M, META["BLOCK_SIZE_M"]) * triton.cdiv(N, META["BLOCK_SIZE_N"])),)
    matmul_tma[grid](x, w, out, M, N, K, BLOCK_SIZE_M=16, BLOCK_SIZE_N=32, BLOCK_SIZE_K=16, GROUP_SIZE_M=2, NUM_SMS=NUM_SMS, STAGES=3)
    return out
