"""Tiles that read the rank's own part of an input in the call's tensor, and store its own piece of a result in the call's result,
on a group of one rank, whose part is all of it."""

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
    """For each launch that is looked up, whether tiles store what stays of the result; nobody adds to it here."""
    monkeypatch.setenv("OVERLAP_TILE_SUMS", "0")
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


INPUTS = ["ag_gemm", "a2a_gemm"]


@pytest.fixture
def read(monkeypatch):
    """For each launch that is looked up, whether tiles read the call's tensor."""
    found = []
    made = in_place._inputs_part

    def watched(*launch):
        own = made(*launch)
        found.append(own is not None)
        return own

    monkeypatch.setattr(in_place, "_inputs_part", watched)
    return found


def same_bits(group, operator, operands, read, monkeypatch, layout=torch.clone):
    """By calls whose tensor is overwritten right behind them, calls that repeat them, and a graph of the caller. Each call's
    tensor, of a layout, is somewhere else."""
    call, options = getattr(overlap.ops, operator), {"group": group, "backend": "copy_engine"}
    monkeypatch.setenv("OVERLAP_IN_PLACE", "0")
    wanted = [call(layout(x), w, **options) for x, w in operands]
    assert read and not any(read)
    read.clear()
    monkeypatch.setenv("OVERLAP_IN_PLACE", "1")
    for i in range(REPEATED):
        x, w = operands[i % 3]
        mine = layout(x)
        y = call(mine, w, **options)
        mine.fill_(float("nan"))
        assert torch.equal(y, wanted[i % 3]), f"call {i}"
    assert read and all(read)
    x, w, out = layout(operands[0][0]), operands[0][1].clone(), torch.empty_like(wanted[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(x, w, out=out, **options)
    for each, y in zip(operands, wanted, strict=True):
        x.copy_(each[0]), w.copy_(each[1]), out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, y)
    overlap.check(group)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("operator", INPUTS)
def test_the_same_bits_as_staged(group, operator, size, read, monkeypatch):
    m, n, k = size
    operands = [(random((m, k), seed, torch.bfloat16), random((k, n), 9 + seed, torch.bfloat16)) for seed in range(3)]
    same_bits(group, operator, operands, read, monkeypatch)


def apart(x):
    """Rows 16 elements apart, in memory where there are others behind them."""
    wider = poisoned((x.shape[0], x.shape[1] + 16), x.dtype)
    wider[:, : x.shape[1]] = x
    return wider[:, : x.shape[1]]


@pytest.mark.parametrize("operator", INPUTS)
def test_rows_that_lie_apart_are_read_where_they_lie(group, operator, read, monkeypatch):
    operands = [(random((515, 200), seed, torch.bfloat16), random((200, 264), 9, torch.bfloat16)) for seed in range(3)]
    same_bits(group, operator, operands, read, monkeypatch, apart)


def test_a_tensor_that_tma_cannot_read_is_staged(group, read):
    x, w = random((256, 128), 1, torch.bfloat16), random((128, 256), 2, torch.bfloat16)
    wanted = overlap.ops.ag_gemm(x, w, group=group, backend="copy_engine")
    assert read == [True]
    unaligned = poisoned((256 * 128 + 1,), torch.bfloat16)[1:].view(256, 128)
    unaligned.copy_(x)
    assert torch.equal(overlap.ops.ag_gemm(unaligned, w, group=group, backend="copy_engine"), wanted)
    y, whole = overlap.ops.ag_gemm(x, w, group=group, backend="copy_engine", return_gathered=True)
    assert torch.equal(y, wanted) and torch.equal(whole, x)
    assert read == [True, False, False]
    overlap.check(group)
