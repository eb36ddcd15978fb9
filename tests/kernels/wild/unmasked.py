"""EVEN shapes known by heuristics: unmasked loads where everything divides; two nested ifs; residual read in place of c (beta * c)."""
import torch
import triton
import triton.language as tl


@triton.heuristics({
    "EVEN_M": lambda a: a["M"] % a["BM"] == 0,
    "EVEN_N": lambda a: a["N"] % a["BN"] == 0,
})
@triton.jit
def axpby(x, y, out, alpha, beta, M, N, BM: tl.constexpr, BN: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr):
    # @overlap.axis_count M block=BM
    # @overlap.axis_count N block=BN
    # @overlap.tile_id
    pid = tl.program_id(0)
    # @overlap.dispatch begin
    # @overlap.pid_map M=im N=jn
    cols = tl.cdiv(N, BN)
    im = pid // cols
    jn = pid - im * cols
    # @overlap.dispatch end
    rows = im * BM + tl.arange(0, BM)[:, None]
    columns = jn * BN + tl.arange(0, BN)[None, :]
    at = rows * N + columns
    if EVEN_M:
        if EVEN_N:
            a = tl.load(x + at)
            b = tl.load(y + at)
        else:
            a = tl.load(x + at, mask=columns < N)
            b = tl.load(y + at, mask=columns < N)
    else:
        a = tl.load(x + at, mask=(rows < M) & (columns < N))
        b = tl.load(y + at, mask=(rows < M) & (columns < N))
    r = alpha * a + beta * b
    if EVEN_M and EVEN_N:
        tl.store(out + at, r)
    else:
        tl.store(out + at, r, mask=(rows < M) & (columns < N))


# @overlap.host_entry x[M,N] y[M,N] -> out[M,N]
def scaled_add(x, y, alpha=1.5, beta=-0.5):
    M, N = x.shape
    out = torch.empty_like(x)
    axpby[lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(N, meta["BN"]),)](x, y, out, alpha, beta, M, N, BM=16, BN=32)
    return out
