"""C = A @ B, persistent: one program an SM walks over the tiles; TMA descriptors made in the kernel."""

import torch
import triton
import triton.language as tl


@triton.jit
def tile_coordinates(tile, num_pid_m, num_pid_n, GROUP_M: tl.constexpr):
    """Tile number to (row, column) of tiles, in groups of GROUP_M rows that share columns of B in cache."""
    num_pid_in_group = GROUP_M * num_pid_n
    group_id = tile // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    in_group = tile % num_pid_in_group
    return first_pid_m + in_group % group_size_m, in_group // group_size_m


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_bk,
    stride_cm,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    NUM_SMS: tl.constexpr,
):
    # Rows are contiguous: a descriptor's last stride is 1.
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[stride_am, 1], block_shape=[BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[K, N], strides=[stride_bk, 1], block_shape=[BLOCK_K, BLOCK_N])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[stride_cm, 1], block_shape=[BLOCK_M, BLOCK_N])
    start_pid = tl.program_id(0)
    # @overlap.axis_count M block=BLOCK_M
    num_pid_m = tl.cdiv(M, BLOCK_M)
    # @overlap.axis_count N block=BLOCK_N
    num_pid_n = tl.cdiv(N, BLOCK_N)
    # @overlap.axis_count K=range
    k_tiles = tl.cdiv(K, BLOCK_K)
    # @overlap.num_tiles
    num_tiles = num_pid_m * num_pid_n
    # @overlap.tile_id persistent
    for tile in tl.range(start_pid, num_tiles, NUM_SMS, flatten=True):
        # @overlap.dispatch begin
        # @overlap.pid_map M=pid_m N=pid_n
        pid_m, pid_n = tile_coordinates(tile, num_pid_m, num_pid_n, GROUP_M)
        # @overlap.dispatch end
        off_m = pid_m * BLOCK_M
        off_n = pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(k_tiles):
            a = a_desc.load([off_m, k * BLOCK_K])
            b = b_desc.load([k * BLOCK_K, off_n])
            acc = tl.dot(a, b, acc)
        c_desc.store([off_m, off_n], acc.to(c_ptr.dtype.element_ty))


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    _, N = b.shape
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    num_sms = torch.cuda.get_device_properties(a.device).multi_processor_count
    grid = lambda meta: (min(num_sms, triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"])),)  # noqa: E731
    # Descriptors made in a kernel need scratch memory.
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device=a.device, dtype=torch.int8))
    matmul_kernel[grid](
        a,
        b,
        c,
        M,
        N,
        K,
        a.stride(0),
        b.stride(0),
        c.stride(0),
        BLOCK_M=64,
        BLOCK_N=64,
        BLOCK_K=32,
        GROUP_M=8,
        NUM_SMS=num_sms,
        num_warps=4,
    )
    return c
