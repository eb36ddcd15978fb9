"""A persistent loop over pointers whose epilogue numbers tiles by a variable of its own, so two dispatch regions."""

import torch
import triton
import triton.language as tl
from triton import jit


@jit
def place(tile, per_group, rows, GROUP: tl.constexpr):
    group = tile // per_group
    first = group * GROUP
    size = min(rows - first, GROUP)
    return first + (tile % size), (tile % per_group) // size


@jit
def gemm_persistent(a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr):  # fmt: skip
    start = tl.program_id(0)
    # @overlap.axis_count M block=BM
    rows = tl.cdiv(M, BM)
    # @overlap.axis_count N block=BN
    cols = tl.cdiv(N, BN)
    k_tiles = tl.cdiv(K, BK)
    # @overlap.num_tiles
    total = rows * cols
    # @overlap.tile_id
    tile_c = start - PROGRAMS
    per_group = GROUP * cols
    # @overlap.tile_id persistent
    for tile in tl.range(start, total, PROGRAMS, flatten=False):
        # @overlap.dispatch begin
        # @overlap.pid_map M=pid_m N=pid_n
        pid_m, pid_n = place(tile, per_group, rows, GROUP)
        # @overlap.dispatch end
        rm = pid_m * BM + tl.arange(0, BM)
        rn = pid_n * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for ki in range(k_tiles):
            rk = ki * BK + tl.arange(0, BK)
            a = tl.load(
                a_ptr + rm[:, None] * sam + rk[None, :] * sak, mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0
            )
            b = tl.load(
                b_ptr + rk[:, None] * sbk + rn[None, :] * sbn, mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0
            )
            acc = tl.dot(a, b, acc)
        tile_c += PROGRAMS
        # @overlap.dispatch begin
        # @overlap.pid_map M=out_m N=out_n
        out_m, out_n = place(tile_c, per_group, rows, GROUP)
        # @overlap.dispatch end
        cm = out_m * BM + tl.arange(0, BM)
        cn = out_n * BN + tl.arange(0, BN)
        tl.store(c_ptr + cm[:, None] * scm + cn[None, :] * scn, acc.to(c_ptr.dtype.element_ty), mask=(cm[:, None] < M) & (cn[None, :] < N))  # fmt: skip


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    programs = min(3, triton.cdiv(M, 32) * triton.cdiv(N, 32)) or 1
    gemm_persistent[(programs,)](
        a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), c.stride(1),
        BM=32, BN=32, BK=32, GROUP=4, PROGRAMS=programs,
    )  # fmt: skip
    return c
