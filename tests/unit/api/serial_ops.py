"""Run by test_ops_serial.py as each of several real ranks over gloo, on the CPU: rank, world, a file for the store."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from overlap.chunkplan.region import shard_interval
from overlap.ops import a2a_gemm, ag_gemm_k, gemm_a2a, gemm_ar, gemm_rs, last_plan
from overlap.runtime.group.collectives import all_reduce, all_to_all, reduce_scatter

DTYPES = (torch.float64, torch.bfloat16)
EPSILON = {torch.float64: 2**-50, torch.float32: 2**-22, torch.bfloat16: 2**-7}


class Ranks:
    """This rank of a group, and data that every rank can make for all of them."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.generator = torch.Generator().manual_seed(5)

    def random(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(dtype)

    def piece(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        low, high = shard_interval(whole.shape[dim], self.world, self.rank)
        return whole.narrow(dim, low, high - low)


def near(got: torch.Tensor, wanted: torch.Tensor, scale: torch.Tensor, rounded: torch.dtype) -> None:
    """Asserts that a result is off by no more than the rounding of its summands and its own."""
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    allowed = EPSILON[rounded] * (scale + 1) + EPSILON[got.dtype] * wanted.abs()
    assert bool(((got.double() - wanted).abs() <= allowed).all())  # NaN fails too


def check_collectives(ranks: Ranks) -> None:
    """Any dimension, even and uneven, fewer elements than ranks, nothing at all; results of any strides and dtypes."""
    for shape in ((6, 4), (7, 4), (2, 5), (3, 7, 2), (0, 3)):
        whole = [ranks.random(*shape) for _ in range(ranks.world)]
        total = sum(w.double() for w in whole)
        for dim in range(len(shape)):
            wanted = ranks.piece(total, dim)
            out = torch.full([*wanted.shape][::-1], float("nan"), dtype=torch.float64).permute(*range(len(shape))[::-1])
            reduce_scatter(dist.group.WORLD, whole[ranks.rank], dim, out)
            torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
            for to in range(len(shape)):
                if to != dim:
                    wanted = ranks.piece(whole[0], to)
                    out = torch.full(wanted.shape, float("nan"))
                    all_to_all(dist.group.WORLD, ranks.piece(whole[0], dim), dim, to, out)
                    assert torch.equal(out, wanted)
        out = torch.full(shape, float("nan"))
        all_reduce(dist.group.WORLD, whole[ranks.rank].clone(), out)
        torch.testing.assert_close(out.double(), total, rtol=1e-5, atol=1e-5)


def check_payloads(ranks: Ranks) -> None:
    """What only moves arrives bit for bit."""
    odd = torch.tensor([-0.0, 0.0, 1e-45, -1e-40, float("inf"), -float("inf"), float("nan"), 1.5])
    whole = odd.repeat(ranks.world, 1)
    got = torch.empty_like(ranks.piece(whole, 1))
    all_to_all(dist.group.WORLD, ranks.piece(whole, 0), 0, 1, got)
    assert torch.equal(got.view(torch.int32), ranks.piece(whole, 1).contiguous().view(torch.int32))


def check_sums(ranks: Ranks) -> None:
    for dtype in DTYPES:
        for lead, bias in (((2, 7), True), ((4, 3, 5), False), ((0, 3), False), ((1,), True)):
            xs = [ranks.random(*lead, 9, dtype=dtype) for _ in range(ranks.world)]
            ws = [ranks.random(5, 9, dtype=dtype).t() for _ in range(ranks.world)]
            b = ranks.random(5, dtype=dtype) if bias else None
            total = sum(x.double() @ w.double() for x, w in zip(xs, ws, strict=True))
            scale = sum(x.double().abs() @ w.double().abs() for x, w in zip(xs, ws, strict=True))
            total = total + b.double() if b is not None else total
            mine = (xs[ranks.rank], ws[ranks.rank])
            widths = ((None, None), (torch.float32, None), (None, torch.float32), (torch.float32, dtype))
            for out_dtype, moved in widths if lead == (2, 7) else widths[:1]:
                how = {"bias": b, "out_dtype": out_dtype, "transport_dtype": moved}
                rounded = moved or out_dtype or dtype
                for dim in range(-1, len(lead)):
                    y = gemm_rs(*mine, scatter_dim=dim, **how)
                    assert y.dtype == (out_dtype or dtype)
                    near(y, ranks.piece(total, dim), ranks.piece(scale, dim), rounded)
                y = gemm_ar(*mine, **how)
                near(y, total, scale, rounded)
                told = [torch.empty_like(y) for _ in range(ranks.world)]
                if y.numel():
                    dist.all_gather(told, gemm_ar(*mine, **how, deterministic=True))
                    assert all(torch.equal(told[0], other) for other in told)
        said = [last_plan(name) for name in ("gemm_rs", "gemm_ar")]
        assert [p.kind for p in said] == ["reduce_scatter", "all_reduce"]
        assert {p.backend for p in said} == {"serial"} and {p.shape for p in said} == {(1, 5)}


def check_accuracy(ranks: Ranks) -> None:
    """At least as accurate as a collective that adds in the dtype that travels."""
    x, w = ranks.random(64, 32 * ranks.world), ranks.random(32 * ranks.world, 48)
    mine = (ranks.piece(x, 1).bfloat16(), ranks.piece(w, 0).bfloat16())
    total = x.bfloat16().double() @ w.bfloat16().double()
    summand = torch.mm(*mine)
    dist.all_reduce(summand)
    errors = [(y.double() - total).norm() for y in (gemm_ar(*mine), summand)]
    assert errors[0] <= errors[1], errors
    rows = gemm_rs(*mine)
    assert (rows.double() - ranks.piece(total, 0)).norm() <= (
        ranks.piece(summand, 0).double() - ranks.piece(total, 0)
    ).norm()


def check_exchanges(ranks: Ranks) -> None:
    for dtype in DTYPES:
        for lead, dims in (((2, 6), [0, -2]), ((3, 7, 2), [0, 1]), ((1,), [0])):
            for depth in (12, 1):
                x, w = ranks.random(*lead, depth, dtype=dtype), ranks.random(6, depth, dtype=dtype).t()
                b = ranks.random(6, dtype=dtype)
                wanted, scale = x.double() @ w.double() + b.double(), x.double().abs() @ w.double().abs()
                for dim in dims:
                    y = a2a_gemm(ranks.piece(x, -1), w, bias=b, scatter_dim=dim)
                    near(y, ranks.piece(wanted, dim), ranks.piece(scale, dim), dtype)
                    size = x.shape[dim]
                    y = gemm_a2a(
                        ranks.piece(x, dim), w, bias=b, gather_dim=dim, gather_size=size, out_dtype=torch.float32
                    )
                    assert y.dtype == torch.float32
                    near(y, ranks.piece(wanted, -1), ranks.piece(scale, -1), torch.promote_types(dtype, torch.float32))
                y = ag_gemm_k(ranks.piece(x, -1), w, bias=b)
                near(y, wanted, scale, dtype)
    assert [last_plan(name).kind for name in ("a2a_gemm", "gemm_a2a", "ag_gemm_k")] == ["all_to_all"] * 2 + ["gather"]


def check_nothing(ranks: Ranks) -> None:
    """Empty sums are the bias, where there is one."""
    b = ranks.random(4)
    assert torch.equal(gemm_ar(torch.empty(3, 0), torch.empty(0, 4), bias=b), b.expand(3, 4))
    assert torch.equal(a2a_gemm(torch.empty(3, 0), torch.empty(0, 4), bias=b), ranks.piece(b.expand(3, 4), 0))
    assert not ag_gemm_k(torch.empty(3, 0), torch.empty(0, 4)).any()
    assert gemm_rs(torch.empty(3, 2), torch.empty(2, 0)).shape == (len(ranks.piece(b.expand(3, 4), 0)), 0)
    assert gemm_a2a(torch.empty(0, 2), torch.empty(2, 4)).shape == (0, len(ranks.piece(b, 0)))


def main() -> None:
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    ranks = Ranks(rank, world)
    for check in (check_collectives, check_payloads, check_sums, check_accuracy, check_exchanges, check_nothing):
        check(ranks)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank}: ok")


if __name__ == "__main__":
    main()
