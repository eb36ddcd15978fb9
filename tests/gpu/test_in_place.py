"""Results whose own piece tiles store in the call's result, on a group of one rank, whose piece is all of it."""

import pytest
import torch

import overlap
from overlap.runtime.launch import in_place
from tests.support.operands import poisoned, random

SIZES = [(256, 512, 128), (515, 264, 200), (4096, 2048, 1024)]
RESULTS = ["gemm_rs", "gemm_a2a"]
REPEATED = 40
"""Calls of one shape: more than it takes to make them a graph of the library's own."""


@pytest.fixture
def group(process_group):
    made = torch.distributed.new_group([0], backend="cpu:gloo,cuda:nccl")
    yield made
    overlap.release(made)


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


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("operator", RESULTS)
def test_the_same_bits_as_by_the_partial(group, operator, size, placed, monkeypatch):
    """By calls, calls that repeat them with results of their own, and a graph of the caller."""
    m, n, k = size
    call = getattr(overlap.ops, operator)
    operands = [(random((m, k), seed, torch.bfloat16), random((k, n), 9 + seed, torch.bfloat16)) for seed in range(3)]
    options = {"group": group, "backend": "copy_engine"}
    monkeypatch.setenv("OVERLAP_IN_PLACE", "0")
    wanted = [call(*each, **options) for each in operands]
    assert placed and not any(placed)
    placed.clear()
    monkeypatch.setenv("OVERLAP_IN_PLACE", "1")
    out = poisoned((m, n), torch.bfloat16)
    for i in range(REPEATED):
        assert torch.equal(call(*operands[i % 3], **options), wanted[i % 3]), f"call {i}"
        call(*operands[i % 3], out=out.fill_(float("nan")), **options)
        assert torch.equal(out, wanted[i % 3]), f"call {i}, with a result"
    assert placed and all(placed)
    x, w = (each.clone() for each in operands[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(x, w, out=out, **options)
    for each, y in zip(operands, wanted, strict=True):
        x.copy_(each[0]), w.copy_(each[1]), out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, y)
    overlap.check(group)


def test_a_result_that_tma_cannot_store_goes_by_the_partial(group, placed):
    x, w = random((256, 128), 1, torch.bfloat16), random((128, 256), 2, torch.bfloat16)
    wanted = overlap.ops.gemm_rs(x, w, group=group, backend="copy_engine")
    assert placed == [True]
    unaligned = poisoned((256 * 256 + 1,), torch.bfloat16)[1:].view(256, 256)
    overlap.ops.gemm_rs(x, w, group=group, backend="copy_engine", out=unaligned)
    assert placed == [True, False] and torch.equal(unaligned, wanted)
    overlap.check(group)
