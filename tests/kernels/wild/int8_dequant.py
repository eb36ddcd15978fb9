"""Weight-only int8 with group scales along K, dequantised in the loop; zero points as well."""
import torch
import triton
import triton.language as tl


@triton.jit
def _dequant(q, s, z):
    return (q.to(tl.float32) - z) * s


@triton.jit
def w8a16(x_ptr, qw_ptr, scales_ptr, zeros_ptr, y_ptr, M, N, K, G,
          sxm, sqk, ssg, sym,
          GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr):
    # @overlap.tile_id
    pid = tl.program_id(0)
    # @overlap.axis_count M block=BM
    npm = tl.cdiv(M, BM)
    # @overlap.axis_count N block=BN
    npn = tl.cdiv(N, BN)
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    in_group = GROUP_M * npn
    gid = pid // in_group
    first = gid * GROUP_M
    size = min(npm - first, GROUP_M)
    pid_m = first + ((pid % in_group) % size)
    pid_n = (pid % in_group) // size
    # @overlap.dispatch end
    om = pid_m * BM + tl.arange(0, BM)
    on = pid_n * BN + tl.arange(0, BN)
    mm = om < M
    mn = on < N
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in tl.range(0, K, BK, num_stages=2):
        ok = k + tl.arange(0, BK)
        mk = ok < K
        x = tl.load(x_ptr + om[:, None] * sxm + ok[None, :], mask=mm[:, None] & mk[None, :], other=0.0)
        q = tl.load(qw_ptr + ok[:, None] * sqk + on[None, :], mask=mk[:, None] & mn[None, :], other=0)
        g = k // GROUP
        s = tl.load(scales_ptr + g * ssg + on, mask=mn, other=0.0).to(tl.float32)
        z = tl.load(zeros_ptr + g * ssg + on, mask=mn, other=0.0).to(tl.float32)
        w = _dequant(q, s[None, :], z[None, :])
        acc = tl.dot(x, w.to(x.dtype), acc)
    tl.store(y_ptr + om[:, None] * sym + on[None, :], acc.to(y_ptr.dtype.element_ty), mask=mm[:, None] & mn[None, :])


# @overlap.host_entry x[M,K] qw[K,N] scales[G,N] zeros[G,N] -> y[M,N]
def linear(x, qw, scales, zeros):
    M, K = x.shape
    N = qw.shape[1]
    G = scales.shape[0]
    y = torch.empty((M, N), device=x.device, dtype=x.dtype)
    grid = lambda m: (triton.cdiv(M, m["BM"]) * triton.cdiv(N, m["BN"]),)
    w8a16[grid](x, qw, scales, zeros, y, M, N, K, G, x.stride(0), qw.stride(0), scales.stride(0), y.stride(0), GROUP=32, BM=32, BN=32, BK=16, GROUP_M=8)
    return y
