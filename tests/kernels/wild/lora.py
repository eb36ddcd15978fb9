"""x @ W + scale * (x @ A) @ B with a small rank, all in one tile; two loads of W-like operands and a nested product."""
import torch
import triton
import triton.language as tl


@triton.jit
def lora(x, w, la, lb, y, M, N, K, sxm, swk, sak, sbr, sym, scale, R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # @overlap.axis_count M block=BM
    # @overlap.axis_count N block=BN
    # @overlap.dispatch begin
    # @overlap.pid_map M=pm N=pn
    pn = tl.program_id(0)
    pm = tl.program_id(1)
    # @overlap.dispatch end
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    ranks = tl.arange(0, R)
    base = tl.zeros((BM, BN), dtype=tl.float32)
    low = tl.zeros((BM, R), dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        xk = tl.load(x + rows[:, None] * sxm + ks[None, :], mask=(rows[:, None] < M) & (ks[None, :] < K), other=0.0)
        base = tl.dot(xk, tl.load(w + ks[:, None] * swk + cols[None, :], mask=(ks[:, None] < K) & (cols[None, :] < N), other=0.0), base)
        low = tl.dot(xk, tl.load(la + ks[:, None] * sak + ranks[None, :], mask=ks[:, None] < K, other=0.0), low)
    up = tl.load(lb + ranks[:, None] * sbr + cols[None, :], mask=cols[None, :] < N, other=0.0)
    base += scale * tl.dot(low.to(up.dtype), up)
    tl.store(y + rows[:, None] * sym + cols[None, :], base.to(y.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))


# @overlap.host_entry x[M,K] w[K,N] a[K,R] b[R,N] -> y[M,N]
def lora_linear(x, w, a, b, scale: float = 0.25):
    M, K = x.shape
    N = w.shape[1]
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(N, 32), triton.cdiv(M, 32), 1)
    lora[grid](x, w, a, b, y, M, N, K, x.stride(0), w.stride(0), a.stride(0), b.stride(0), y.stride(0), scale, R=b.shape[0], BM=32, BN=32, BK=16)
    return y
