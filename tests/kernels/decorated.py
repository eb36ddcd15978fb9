"""A kernel under `overlap.compile`, autotune, heuristics and a decorator of nobody's; importing counts itself."""

import functools

import triton
import triton.language as tl

import overlap as fused

IMPORTS = []
IMPORTS.append("once")
BLOCKS = [triton.Config({"BM": 32, "BN": 32}, num_warps=4)]


class Named:
    """A decorator that wraps a kernel and hands its launches on."""

    def __init__(self, fn, label):
        self.fn = fn
        self.label = label
        self.arg_names = fn.arg_names

    def run(self, *args, **kwargs):
        return self.fn.run(*args, **kwargs)

    def __getitem__(self, grid):
        return functools.partial(self.run, grid=grid)


@triton.jit
def row_of(tile, cols):
    return tile // cols


def block_of_k(args):
    return 16 if args["K"] < 32 else 32


@fused.compile(plan="all_gather_1d", on="a[M]")
@triton.autotune(configs=BLOCKS, key=["M"])
@triton.heuristics({"BK": block_of_k})
@(lambda fn: Named(fn, label="mine"))
@triton.jit
def kernel(a, b, c, M, N, K, sam, sak, sbk, sbn, scm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    # @overlap.axis_count M block=BM
    # @overlap.axis_count N block=BN
    cols = tl.cdiv(N, BN)
    # @overlap.axis_count K=range
    # @overlap.tile_id
    tile = tl.program_id(0)
    # @overlap.dispatch begin
    # @overlap.pid_map M=i N=j
    i = row_of(tile, cols)
    j = tile % cols
    # @overlap.dispatch end
    m = i * BM + tl.arange(0, BM)
    n = j * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        ks = k + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * sam + ks[None, :] * sak, mask=(m[:, None] < M) & (ks[None, :] < K), other=0.0)
        y = tl.load(b + ks[:, None] * sbk + n[None, :] * sbn, mask=(ks[:, None] < K) & (n[None, :] < N), other=0.0)
        acc += tl.dot(x, y)
    tl.store(c + m[:, None] * scm + n[None, :], acc.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


def grid(meta):
    return (triton.cdiv(meta["M"], meta["BM"]) * triton.cdiv(meta["N"], meta["BN"]),)
