"""Reduce-scatters whose own tiles add what other ranks have sent, on real ranks: against fp32, and the same bits every time."""

from __future__ import annotations

import contextlib
import time

import pytest
import torch
import torch.distributed as dist

from overlap.errors import DeadlineError
from overlap.ops import gemm_rs
from overlap.runtime.launch import launch
from overlap.runtime.workspace import check, release

from .conftest import WORLD

pytestmark = pytest.mark.usefixtures("one_folder")
SHAPES = {
    "short": ((8192, 8192, 2048), 2),
    "whole": ((2048 * WORLD, 1024, 1024), 1),
    "three parts": ((768 * WORLD, 264, 512), 3),
    "a last block cut short": ((512 * WORLD - 1, 512, 384), 1),
}
"""M, N and a rank's K; parts of a rank's piece."""


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    monkeypatch.setenv("OVERLAP_TILE_SUMS", "1")


@pytest.fixture
def finished(monkeypatch):
    """For each launch that is looked up, whether tiles add what has come."""
    found = []
    made = launch.finish_table

    def watched(*given):
        table, finish = made(*given)
        found.append(bool(finish.pieces))
        return table, finish

    monkeypatch.setattr(launch, "finish_table", watched)
    return found


def operands(shape, seed, dtype=torch.bfloat16):
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(1000 * seed + dist.get_rank())
    x = torch.randn(m, k, device="cuda", generator=generator).to(dtype)
    return x, torch.randn(k, n, device="cuda", generator=generator).to(dtype)


def call(name, inputs, **how):
    return gemm_rs(*inputs, backend="copy_engine", split=SHAPES[name][1], **how)


def exact(inputs):
    """This rank's piece in fp32, of partial results that are rounded as they travel."""
    x, w = inputs
    partial = (x.float() @ w.float()).to(x.dtype).float()
    dist.all_reduce(partial)
    return partial.chunk(WORLD)[dist.get_rank()]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", SHAPES)
def test_right_and_the_same_bits_every_time(name, finished):
    """First calls, calls that repeat them and are graphs of the library's own by then, results given and made, a late rank now
    and then, and replays of a graph of the caller."""
    inputs = [operands(SHAPES[name][0], seed) for seed in range(3)]
    wanted = [call(name, each) for each in inputs]
    assert finished and all(finished), "added by a sum kernel"
    for each, y in zip(inputs, wanted, strict=True):
        reference = exact(each)
        assert (y.float() - reference).abs().max() <= 2e-2 * reference.abs().max()
    different = []
    for round in range(20):
        for each, y in zip(inputs, wanted, strict=True):
            out = torch.full_like(y, float("nan"))
            if dist.get_rank() == round % WORLD:
                torch.cuda._sleep(1_000_000)
            different += [(call(name, each, out=out) != y).any(), (call(name, each) != y).any()]
    assert not torch.stack(different).any()
    x, w = (each.clone() for each in inputs[0])
    out = torch.full_like(wanted[0], float("nan"))
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call(name, (x, w), out=out)
    for each, y in zip(inputs, wanted, strict=True):
        x.copy_(each[0])
        w.copy_(each[1])
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, y)
    torch.cuda.synchronize()


@pytest.mark.ranks(2)
def test_a_rank_that_comes_too_late_is_named(monkeypatch, finished):
    """Tiles that wait in vain end, and the next call says which chunk did not come."""
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "3")
    release(None)  # memory that was made before has another deadline
    inputs = operands(SHAPES["whole"][0], 9)
    wanted = call("whole", inputs)
    call("whole", inputs)
    torch.cuda.synchronize()
    dist.barrier()
    late = WORLD - 1
    if dist.get_rank() == late:
        time.sleep(9)
    else:
        call("whole", inputs)
        with pytest.raises(DeadlineError, match=rf"from rank {late} \(flag \d+ of rank \d+; rank {late} operation"):
            check(None)
    with contextlib.suppress(DeadlineError):
        if dist.get_rank() == late:
            call("whole", inputs)
            check(None)
    monkeypatch.setenv("OVERLAP_DEADLINE_S", "60")
    release(None)
    assert torch.equal(call("whole", inputs), wanted) and all(finished)
