"""Non-persistent GEMM in column-major order, grid size made of a lambda, B stored as [N, K]."""
import torch, triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({'BM': 32, 'BN': 32, 'BK': 32}, num_stages=4, num_warps=4),
        triton.Config({'BM': 16, 'BN': 64, 'BK': 32}, num_stages=3, num_warps=4),
    ],
    key=['M', 'N', 'K'],
)
@triton.heuristics({'EVEN_K': lambda args: args['K'] % args['BK'] == 0})
@triton.jit
def linear_kernel(x, w, bias, y, M, N, K, stride_xm, stride_xk, stride_wn, stride_wk, stride_ym, stride_yn,
                  BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN_K: tl.constexpr, HAS_BIAS: tl.constexpr = True):
    # @overlap.tile_id
    pid = tl.program_id(axis=0)
    grid_m = tl.cdiv(M, BM)   # @overlap.axis_count M block=BM
    # @overlap.axis_count N block=BN
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    pid_n = pid // grid_m
    pid_m = pid - pid_n * grid_m
    # @overlap.dispatch end
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    X = x + (rm[:, None] * stride_xm + rk[None, :] * stride_xk)
    W = w + (rk[:, None] * stride_wk + rn[None, :] * stride_wn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(K, 0, -BK):
        if EVEN_K:
            a = tl.load(X, mask=rm[:, None] < M, other=0.)
            b = tl.load(W, mask=rn[None, :] < N, other=0.)
        else:
            a = tl.load(X, mask=(rk[None, :] < k) & (rm[:, None] < M), other=0.)
            b = tl.load(W, mask=(rk[:, None] < k) & (rn[None, :] < N), other=0.)
        acc += tl.dot(a, b)
        X += BK * stride_xk; W += BK * stride_wk
    if HAS_BIAS:
        acc += tl.load(bias + rn, mask=rn < N, other=0.0).to(tl.float32)[None, :]
    tl.store(y + stride_ym * rm[:, None] + stride_yn * rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


# @overlap.host_entry x[M,K] w[N,K] bias[N] -> y[M,N]
def linear(x, w, bias):
    M, K = x.shape
    N, _ = w.shape
    y = torch.empty((M, N), device=x.device, dtype=x.dtype)
    grid = lambda META: (triton.cdiv(M, META['BM']) * triton.cdiv(N, META['BN']),)
    linear_kernel[grid](x, w, bias, y, M, N, K, x.stride(0), x.stride(1), w.stride(0), w.stride(1), y.stride(0), y.stride(1))
    return y
