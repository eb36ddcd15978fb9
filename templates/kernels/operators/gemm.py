"""The kernels of the prebuilt operators: C = A @ B (+ bias). All run on one GPU as they stand.

    communicated   where TMA takes its rows                         any shape and stride
    A              `ag_gemm_tma`, B and C by TMA where they can     `ag_gemm_any`
                   `gemm_tail_tma` behind it, its last tiles
    C              `gemm_out_tma`, A and B by TMA where they can    `ag_gemm_any`

Which of the two runs depends on the communicated tensor alone, which all ranks share: a rank's own operands never change
the protocol. C is declared [M,B,N], B outermost in memory, so that its first dimension is the one worth cutting.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ag_gemm_tma(
    a_desc,
    b_desc,
    c_desc,
    b_ptr,
    c_ptr,
    bias_ptr,
    B,
    M,
    N,
    K,
    stride_bk,
    stride_bn,
    BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    NUM_PROGRAMS: tl.constexpr,
    B_BY: tl.constexpr,
    C_BY: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    LEFT_OUT: tl.constexpr = 0,
):
    """A[B,M,K], B[K,N], C[B,M,N] in rows; persistent, BLOCK_B is 1.

    ``B_BY``: ``rows`` or ``columns``, where B's memory runs along N or along K and ``b_desc`` is [K,N] or [N,K]; or
    ``pointers``, any strides. ``C_BY``: ``rows`` or ``pointers``. What is not used is None. The last ``LEFT_OUT`` tiles are
    left to `gemm_tail_tma`.
    """
    # @overlap.tensor a_desc[B,M,K] read
    # @overlap.axis_count B block=BLOCK_B
    num_pid_b = tl.cdiv(B, BLOCK_B)
    # @overlap.axis_count M block=BLOCK_M
    num_pid_m = tl.cdiv(M, BLOCK_M)
    # @overlap.axis_count N block=BLOCK_N
    num_pid_n = tl.cdiv(N, BLOCK_N)
    # @overlap.axis_count K=range
    k_tiles = tl.cdiv(K, BLOCK_K)
    num_in_matrix = num_pid_m * num_pid_n
    num_in_group = GROUP_M * num_pid_n
    # @overlap.tile_id persistent left=LEFT_OUT
    for tile in tl.range(tl.program_id(0), num_pid_b * num_in_matrix - LEFT_OUT, NUM_PROGRAMS, flatten=True):
        # @overlap.dispatch begin
        # @overlap.pid_map B=pid_b M=pid_m N=pid_n
        pid_b = tile // num_in_matrix
        in_matrix = tile % num_in_matrix
        group = in_matrix // num_in_group
        first_m = group * GROUP_M
        rows = min(num_pid_m - first_m, GROUP_M)
        pid_m = first_m + (in_matrix % num_in_group) % rows
        pid_n = (in_matrix % num_in_group) // rows
        # @overlap.dispatch end
        off_b = pid_b * BLOCK_B
        off_m = pid_m * BLOCK_M
        off_n = pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(k_tiles):
            a = a_desc.load([off_b, off_m, k * BLOCK_K]).reshape(BLOCK_M, BLOCK_K)
            if B_BY == "rows":
                b = b_desc.load([k * BLOCK_K, off_n])
            elif B_BY == "columns":
                b = b_desc.load([off_n, k * BLOCK_K]).T
            else:
                ks = k * BLOCK_K + tl.arange(0, BLOCK_K)
                ns = off_n + tl.arange(0, BLOCK_N)
                b_ptrs = b_ptr + ks[:, None].to(tl.int64) * stride_bk + ns[None, :].to(tl.int64) * stride_bn
                b = tl.load(b_ptrs, mask=(ks[:, None] < K) & (ns[None, :] < N), other=0.0)
            acc = tl.dot(a, b, acc)
        offs_n = off_n + tl.arange(0, BLOCK_N)
        if HAS_BIAS:
            acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
        if C_BY == "rows":
            c_desc.store([off_b, off_m, off_n], acc.to(c_desc.dtype).reshape(BLOCK_B, BLOCK_M, BLOCK_N))
        else:
            offs_m = off_m + tl.arange(0, BLOCK_M)
            c_rows = c_ptr + (off_b.to(tl.int64) * M + offs_m[:, None]) * N
            inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
            tl.store(c_rows + offs_n[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside)


_PLACES = ["first", "count_m", "count_n", "origin_b", "origin_m", "origin_n"]


@triton.jit(do_not_specialize=_PLACES)
def gemm_tail_tma(
    a_desc,
    b_desc,
    c_desc,
    bias_ptr,
    M,
    N,
    K,
    first,
    count_m,
    count_n,
    origin_b,
    origin_m,
    origin_n,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    B_BY: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """What `ag_gemm_tma` leaves out of a box of its tiles, those from position ``first`` on, in blocks that divide a tile.

    The box has ``count_m`` x ``count_n`` tiles of TILE_M x TILE_N a matrix and begins at tile (``origin_b``, ``origin_m``,
    ``origin_n``); positions in it are `ag_gemm_tma`'s. One program a block.
    """
    blocks_n: tl.constexpr = TILE_N // BLOCK_N
    blocks: tl.constexpr = TILE_M // BLOCK_M * blocks_n
    tile = first + tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    num_in_matrix = count_m * count_n
    num_in_group = GROUP_M * count_n
    in_matrix = tile % num_in_matrix
    first_m = in_matrix // num_in_group * GROUP_M
    rows = min(count_m - first_m, GROUP_M)
    pid_m = first_m + (in_matrix % num_in_group) % rows
    pid_n = (in_matrix % num_in_group) // rows
    off_b = origin_b + tile // num_in_matrix
    off_m = (origin_m + pid_m) * TILE_M + block // blocks_n * BLOCK_M
    off_n = (origin_n + pid_n) * TILE_N + block % blocks_n * BLOCK_N
    if (off_m < M) & (off_n < N):
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([off_b, off_m, k * BLOCK_K]).reshape(BLOCK_M, BLOCK_K)
            if B_BY == "rows":
                b = b_desc.load([k * BLOCK_K, off_n])
            else:
                b = b_desc.load([off_n, k * BLOCK_K]).T
            acc = tl.dot(a, b, acc)
        if HAS_BIAS:
            offs_n = off_n + tl.arange(0, BLOCK_N)
            acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
        c_desc.store([off_b, off_m, off_n], acc.to(c_desc.dtype).reshape(1, BLOCK_M, BLOCK_N))


@triton.jit
def gemm_out_tma(
    a_desc,
    b_desc,
    c_desc,
    a_ptr,
    b_ptr,
    bias_ptr,
    B,
    M,
    N,
    K,
    stride_ab,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    NUM_PROGRAMS: tl.constexpr,
    A_BY: tl.constexpr,
    B_BY: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """A[B,M,K], B[K,N], C[M,B,N]; persistent, BLOCK_B is 1.

    ``A_BY``: ``rows``, where ``a_desc`` is [B,M,K], or ``pointers``. ``B_BY``: ``rows`` or ``columns``, where the memory
    of B runs along N or along K and ``b_desc`` is [K,N] or [N,K]; or ``pointers``. Pointers take any strides. What is not
    used is None.
    """
    # @overlap.tensor c_desc[M,B,N] write
    # @overlap.axis_count B block=BLOCK_B
    num_pid_b = tl.cdiv(B, BLOCK_B)
    # @overlap.axis_count M block=BLOCK_M
    num_pid_m = tl.cdiv(M, BLOCK_M)
    # @overlap.axis_count N block=BLOCK_N
    num_pid_n = tl.cdiv(N, BLOCK_N)
    # @overlap.axis_count K=range
    k_tiles = tl.cdiv(K, BLOCK_K)
    num_in_matrix = num_pid_m * num_pid_n
    num_in_group = GROUP_M * num_pid_n
    # @overlap.tile_id persistent
    for tile in tl.range(tl.program_id(0), num_pid_b * num_in_matrix, NUM_PROGRAMS, flatten=True):
        # @overlap.dispatch begin
        # @overlap.pid_map B=pid_b M=pid_m N=pid_n
        pid_b = tile // num_in_matrix
        in_matrix = tile % num_in_matrix
        group = in_matrix // num_in_group
        first_m = group * GROUP_M
        rows = min(num_pid_m - first_m, GROUP_M)
        pid_m = first_m + (in_matrix % num_in_group) % rows
        pid_n = (in_matrix % num_in_group) // rows
        # @overlap.dispatch end
        off_b = pid_b * BLOCK_B
        off_m = pid_m * BLOCK_M
        off_n = pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(k_tiles):
            if A_BY == "rows":
                a = a_desc.load([off_b, off_m, k * BLOCK_K]).reshape(BLOCK_M, BLOCK_K)
            else:
                ms = off_m + tl.arange(0, BLOCK_M)
                ks = k * BLOCK_K + tl.arange(0, BLOCK_K)
                a_rows = a_ptr + off_b.to(tl.int64) * stride_ab + ms[:, None].to(tl.int64) * stride_am
                a_mask = (ms[:, None] < M) & (ks[None, :] < K)
                a = tl.load(a_rows + ks[None, :].to(tl.int64) * stride_ak, mask=a_mask, other=0.0)
            if B_BY == "rows":
                b = b_desc.load([k * BLOCK_K, off_n])
            elif B_BY == "columns":
                b = b_desc.load([off_n, k * BLOCK_K]).T
            else:
                ks = k * BLOCK_K + tl.arange(0, BLOCK_K)
                ns = off_n + tl.arange(0, BLOCK_N)
                b_ptrs = b_ptr + ks[:, None].to(tl.int64) * stride_bk + ns[None, :].to(tl.int64) * stride_bn
                b = tl.load(b_ptrs, mask=(ks[:, None] < K) & (ns[None, :] < N), other=0.0)
            acc = tl.dot(a, b, acc)
        if HAS_BIAS:
            offs_n = off_n + tl.arange(0, BLOCK_N)
            acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
        c_desc.store([off_m, off_b, off_n], acc.to(c_desc.dtype).reshape(BLOCK_M, BLOCK_B, BLOCK_N))


@triton.jit
def ag_gemm_any(
    a_ptr,
    b_ptr,
    c_ptr,
    bias_ptr,
    B,
    M,
    N,
    K,
    stride_ab,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cb,
    stride_cm,
    stride_cn,
    BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A[B,M,K], B[K,N], C[M,B,N] through masked pointers; one program a tile, BLOCK_B is 1."""
    # @overlap.tensor a_ptr[B,M,K] read
    # @overlap.tensor c_ptr[M,B,N] write
    # @overlap.axis_count K=range
    # @overlap.tile_id
    pid = tl.program_id(0)
    # @overlap.axis_count B block=BLOCK_B
    # @overlap.axis_count M block=BLOCK_M
    num_pid_m = tl.cdiv(M, BLOCK_M)
    # @overlap.axis_count N block=BLOCK_N
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_in_matrix = num_pid_m * num_pid_n
    num_in_group = GROUP_M * num_pid_n
    # @overlap.dispatch begin
    # @overlap.pid_map B=pid_b M=pid_m N=pid_n
    pid_b = pid // num_in_matrix
    in_matrix = pid % num_in_matrix
    group = in_matrix // num_in_group
    first_m = group * GROUP_M
    rows = min(num_pid_m - first_m, GROUP_M)
    pid_m = first_m + (in_matrix % num_in_group) % rows
    pid_n = (in_matrix % num_in_group) // rows
    # @overlap.dispatch end
    off_b = pid_b * BLOCK_B
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    in_m = offs_m[:, None] < M
    in_n = offs_n[None, :] < N
    a_rows = a_ptr + off_b.to(tl.int64) * stride_ab + offs_m[:, None].to(tl.int64) * stride_am
    b_cols = b_ptr + offs_n[None, :].to(tl.int64) * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        ks = k + offs_k
        a = tl.load(a_rows + ks[None, :].to(tl.int64) * stride_ak, mask=in_m & (ks[None, :] < K), other=0.0)
        b = tl.load(b_cols + ks[:, None].to(tl.int64) * stride_bk, mask=(ks[:, None] < K) & in_n, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    c_rows = c_ptr + off_b.to(tl.int64) * stride_cb + offs_m[:, None].to(tl.int64) * stride_cm
    tl.store(c_rows + offs_n[None, :].to(tl.int64) * stride_cn, acc.to(c_ptr.dtype.element_ty), mask=in_m & in_n)


@triton.jit
def copy_flat(src_ptr, dst_ptr, count, BLOCK: tl.constexpr):
    """``count`` elements, both sides dense and in one order."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(dst_ptr + offsets, tl.load(src_ptr + offsets, mask=inside), mask=inside)
