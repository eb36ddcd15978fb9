"""Sums that are made while the kernel runs, on real ranks: bit for bit those that follow it."""

from __future__ import annotations

import contextlib
import time

import pytest
import torch
import torch.distributed as dist

from overlap.errors import DeadlineError
from overlap.ops import gemm_a2a, gemm_ar, gemm_rs
from overlap.runtime.instances import instances
from overlap.runtime.of_group import runtime_of
from overlap.runtime.workspace import check, release

from .conftest import WORLD

pytestmark = pytest.mark.usefixtures("one_folder")
CASES = [
    (gemm_ar, "all_reduce_two_shot", (8192, 4096, 14336), 4),
    (gemm_ar, "all_reduce_two_shot", (4091, 264, 1000), 3),
    (gemm_ar, "all_reduce_two_shot", (5, 64, 64), 4),
    (gemm_ar, "all_reduce_two_shot", (1027, 257, 384), 2),
    (gemm_ar, "all_reduce_one_shot", (2048, 1024, 1024), 2),
    (gemm_rs, "reduce_scatter_1d", (8192, 8192, 8192), 4),
    (gemm_rs, "reduce_scatter_1d", (1000, 136, 384), 2),
    (gemm_a2a, "all_to_all_1d", (1000, 64 * WORLD, 384), 2),
]


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch):
    """`gemm_rs` as well, whose tiles add otherwise."""
    monkeypatch.setenv("OVERLAP_TILE_SUMS", "0")


def operands(shape, seed, dtype=torch.bfloat16):
    """This rank's part of K."""
    rows, columns, depth = shape
    generator = torch.Generator("cuda").manual_seed(97 * seed + dist.get_rank())
    x = torch.randn(rows, max(8, depth // WORLD // 8 * 8), device="cuda", generator=generator).to(dtype)
    return x, torch.randn(x.shape[1], columns, device="cuda", generator=generator).to(dtype)


def was_early() -> bool:
    """Whether the instance called last makes sums while its kernel runs."""
    return next(reversed(instances(runtime_of(None)).values())).early


def call(case, monkeypatch, programs, inputs, out=None):
    operator, plan, _, split = case
    monkeypatch.setenv("OVERLAP_SUM_SMS", str(programs))
    how = {} if out is None else {"out": out}
    return operator(*inputs, backend="copy_engine", plan=plan, split=split, **how)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}-{case[1]}-{case[2][0]}-{case[3]}")
def test_the_same_bits_as_behind_the_kernel(case, monkeypatch):
    inputs = [operands(case[2], seed) for seed in range(3)]
    late = [call(case, monkeypatch, 0, each) for each in inputs]
    assert not was_early()
    for round in range(3):
        # A late rank now and then; calls repeat an earlier one from the second on.
        for each, wanted in zip(inputs, late, strict=True):
            out = torch.full_like(wanted, float("nan"))
            if dist.get_rank() == round % WORLD:
                torch.cuda._sleep(3_000_000)
            found = call(case, monkeypatch, 8, each, out)
            assert was_early()
            assert torch.equal(found, wanted), f"round {round}"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("graphs", ["", "LANE_GRAPHS", "CALL_GRAPHS"])
@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=["gemm_ar", "gemm_rs"])
def test_in_graphs_of_the_caller_and_of_our_own(case, graphs, monkeypatch):
    if graphs:
        monkeypatch.setenv(f"OVERLAP_{graphs}", "1")
    x, w = operands(case[2], 5)
    wanted = call(case, monkeypatch, 0, (x, w))
    y = torch.empty_like(wanted)
    for _ in range(5):
        call(case, monkeypatch, 4, (x, w), y)
        assert was_early() and torch.equal(y, wanted)
        y.fill_(float("nan"))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    dist.barrier()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call(case, monkeypatch, 4, (x, w), y)
    for round in range(5):
        y.fill_(float("nan"))
        if dist.get_rank() == round % WORLD:
            torch.cuda._sleep(3_000_000)
        graph.replay()
        assert torch.equal(y, wanted), f"replay {round}"
    x.neg_()
    wanted.neg_()
    graph.replay()
    assert torch.equal(y, wanted)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("programs", [0, 4])
@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: f"{case[2][0]}-{case[3]}")
def test_stored_where_they_go(case, programs, monkeypatch):
    """Sums that are sent on, beside the kernel and behind it, by calls and in a graph, with a late rank now and then."""
    inputs = [operands(case[2], seed) for seed in range(3)]
    monkeypatch.setenv("OVERLAP_STORE_SUMS", "0")
    copied = [call(case, monkeypatch, 0, each) for each in inputs]
    monkeypatch.setenv("OVERLAP_STORE_SUMS", "1")
    y = torch.empty_like(copied[0])
    for round in range(4):
        for each, wanted in zip(inputs, copied, strict=True):
            y.fill_(float("nan"))
            if dist.get_rank() == round % WORLD:
                torch.cuda._sleep(3_000_000)
            call(case, monkeypatch, programs, each, y)
            assert was_early() == bool(programs) and torch.equal(y, wanted), f"round {round}"
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    dist.barrier()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call(case, monkeypatch, programs, inputs[0], y)
    for round in range(20):
        y.fill_(float("nan"))
        if dist.get_rank() == round % WORLD:
            torch.cuda._sleep(300_000)
        graph.replay()
        assert torch.equal(y, copied[0]), f"replay {round}"


@pytest.mark.ranks(2)
def test_a_rank_that_comes_too_late_is_named(monkeypatch):
    """The warp that waits for summands gives up, what follows it drains, and the next call says which chunk did not come."""
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "3")
    release(None)  # memory that was made before has another deadline
    case = CASES[1]
    inputs = operands(case[2], 9)
    wanted = call(case, monkeypatch, 4, inputs)
    call(case, monkeypatch, 4, inputs)
    torch.cuda.synchronize()
    dist.barrier()
    late = WORLD - 1
    if dist.get_rank() == late:
        time.sleep(9)
    else:
        call(case, monkeypatch, 4, inputs)
        with pytest.raises(DeadlineError, match=rf"from rank {late} \(flag \d+ of rank \d+; rank {late} operation"):
            check(None)
    with contextlib.suppress(DeadlineError):
        if dist.get_rank() == late:
            call(case, monkeypatch, 4, inputs)
            check(None)
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "60")
    release(None)
    assert torch.equal(call(case, monkeypatch, 4, inputs), wanted) and was_early()
