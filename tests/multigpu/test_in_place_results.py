"""Exchanged results whose own piece tiles store in the call's result, on real ranks: bit for bit what they were."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.ops import gemm_a2a
from overlap.runtime.launch import in_place

from .conftest import WORLD

pytestmark = pytest.mark.usefixtures("one_folder")
SHAPES = {
    "large": ((8192, 4096, 4096), 2, 4),
    "one part": ((4096, 1024 * WORLD, 1024), 1, 0),
    "three parts": ((3000, 256 * WORLD, 512), 3, 0),
    "uneven rows": ((1001, 256 * WORLD, 512), 2, 4),
}
"""Global M, N and K; chunks of a piece; multiprocessors left to sums."""


@pytest.fixture
def placed(monkeypatch):
    """For each launch that is looked up, whether tiles store what stays of the result."""
    found = []
    made = in_place._results_part

    def watched(*launch):
        own = made(*launch)
        found.append(own is not None)
        return own

    monkeypatch.setattr(in_place, "_results_part", watched)
    return found


def operands(shape, seed):
    """This rank's rows, and the weight, which is the same on every rank."""
    m, n, k = shape
    own, all_ = (torch.Generator("cuda").manual_seed(1000 * seed + r) for r in (dist.get_rank(), 99))
    rows = len(torch.arange(m).chunk(WORLD)[dist.get_rank()])
    x = torch.randn(rows, k, device="cuda", generator=own).bfloat16()
    return x, torch.randn(k, n, device="cuda", generator=all_).bfloat16()


def call(name, inputs, out=None):
    (m, *_), split, _ = SHAPES[name]
    how = {} if out is None else {"out": out}
    return gemm_a2a(*inputs, gather_size=m, backend="copy_engine", split=split, **how)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", SHAPES)
def test_the_same_bits_as_by_the_partial(name, placed, monkeypatch):
    """First calls, calls that repeat them and are graphs of the library's own by then, with results given and made, and replays
    of a graph of the caller, with a late rank now and then."""
    monkeypatch.setenv("OVERLAP_SUM_SMS", str(SHAPES[name][2]))
    inputs = [operands(SHAPES[name][0], seed) for seed in range(3)]
    monkeypatch.setenv("OVERLAP_IN_PLACE", "0")
    wanted = [call(name, each) for each in inputs]
    assert placed and not any(placed)
    placed.clear()
    monkeypatch.setenv("OVERLAP_IN_PLACE", "1")
    different = []
    for round in range(20):
        for each, y in zip(inputs, wanted, strict=True):
            out = torch.full_like(y, float("nan"))
            if dist.get_rank() == round % WORLD:
                torch.cuda._sleep(1_000_000)
            different += [(call(name, each, out) != y).any(), (call(name, each) != y).any()]
    assert placed and all(placed), "stored by the partial"
    x, w = (each.clone() for each in inputs[0])
    out = torch.full_like(wanted[0], float("nan"))
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call(name, (x, w), out)
    for each, y in zip(inputs, wanted, strict=True):
        x.copy_(each[0]), w.copy_(each[1]), out.fill_(float("nan"))
        if dist.get_rank() == 0:
            torch.cuda._sleep(1_000_000)
        graph.replay()
        different.append((out != y).any())
    assert not torch.stack(different).any(), [number for number, each in enumerate(different) if each]
    overlap.check()
