"""A kernel and its host function inside another function, under import aliases, with heuristics and a swizzled 2-D grid."""

import torch
import triton as tr
import triton.language as L


def make(block=32, ol=3, group_rows=2):
    @tr.heuristics({"EVEN_K": lambda args: args["K"] % args["BK"] == 0})
    @tr.jit
    def kernel(x, w, y, M, N, K, sxm, sxk, swk, swn, sym, syn, BM: L.constexpr, BN: L.constexpr, BK: L.constexpr, G: L.constexpr, EVEN_K: L.constexpr = False):  # fmt: skip
        # @sy.axis_count M block=BM
        # @sy.axis_count N block=BN
        # @sy.dispatch begin
        # @sy.pid_map M=i N=j
        i = L.program_id(0)
        j = L.program_id(1)
        i, j = L.swizzle2d(i, j, L.num_programs(0), L.num_programs(1), G)
        # @sy.dispatch end
        m = i * BM + L.arange(0, BM)
        n = j * BN + L.arange(0, BN)
        acc = L.zeros((BM, BN), dtype=L.float32)
        for k in range(0, K, BK):
            ks = k + L.arange(0, BK)
            if EVEN_K:
                xs = L.load(x + m[:, None] * sxm + ks[None, :] * sxk, mask=m[:, None] < M, other=0.0)
                ws = L.load(w + ks[:, None] * swk + n[None, :] * swn, mask=n[None, :] < N, other=0.0)
            else:
                xs = L.load(
                    x + m[:, None] * sxm + ks[None, :] * sxk, mask=(m[:, None] < M) & (ks[None, :] < K), other=0.0
                )
                ws = L.load(
                    w + ks[:, None] * swk + n[None, :] * swn, mask=(ks[:, None] < K) & (n[None, :] < N), other=0.0
                )
            acc += L.dot(xs, ws)
        L.store(y + m[:, None] * sym + n[None, :] * syn, acc.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))  # fmt: skip

    # @sy.host_entry x[M,K] w[K,N] -> y[M,N]
    def linear(x, w, *, bias=None):
        M, K = x.shape
        N = w.shape[1]
        y = torch.empty((M, N), device=x.device, dtype=x.dtype)
        grid = (tr.cdiv(M, block), tr.cdiv(N, block))
        kernel[grid](x, w, y, M, N, K, x.stride(0), x.stride(1), w.stride(0), w.stride(1), y.stride(0), y.stride(1), BM=block, BN=block, BK=32, G=group_rows)  # fmt: skip
        return y

    return linear
