"""Pushed inputs whose own part tiles read in the call's tensor, on real ranks: bit for bit what they were when it was staged."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.ops import a2a_gemm, ag_gemm, last_plan
from overlap.runtime.launch import in_place

from .conftest import WORLD

pytestmark = pytest.mark.usefixtures("one_folder")
CASES = {
    "gather, large": ("gather", (4096 * WORLD, 1024, 4096), {}, True),
    "gather, in parts": ("gather", (2048 * WORLD, 512, 2048), {"split": 2}, True),
    "gather, the last shard short": ("gather", (2048 * WORLD - 1, 512, 2048), {}, True),
    "gather, tiles of two ranks": ("gather", (2048 * WORLD + 72, 512, 2048), {}, False),
    "exchange, large": ("exchange", (4096, 1024, 4096 * WORLD), {}, True),
    "exchange, uneven rows": ("exchange", (2049, 512, 2048 * WORLD), {"split": 2}, True),
    "exchange, columns of two ranks": ("exchange", (2048, 512, 2080 * WORLD), {}, False),
}
"""An operator, global M, N and K, options, and whether tiles read the caller's tensor; shards are of 4 MiB and more."""


@pytest.fixture(autouse=True)
def read(monkeypatch):
    """For each launch that is looked up, whether tiles read the call's tensor."""
    monkeypatch.setenv("OVERLAP_TAIL", "never")
    found = []
    made = in_place._inputs_part

    def watched(*launch):
        own = made(*launch)
        found.append(own is not None)
        return own

    monkeypatch.setattr(in_place, "_inputs_part", watched)
    return found


def operands(name, seed):
    """This rank's piece of x, and the weight, which is the same on every rank."""
    kind, (m, n, k), *_ = CASES[name]
    own, all_ = (torch.Generator("cuda").manual_seed(1000 * seed + r) for r in (dist.get_rank(), 99))
    shape = [m, k]
    dim = int(kind == "exchange")
    shape[dim] = len(torch.arange(shape[dim]).chunk(WORLD)[dist.get_rank()])
    x = torch.randn(*shape, device="cuda", generator=own).bfloat16()
    return x, torch.randn(k, n, device="cuda", generator=all_).bfloat16()


def call(name, inputs, out=None):
    kind, (m, *_), options, _ = CASES[name]
    how = {"backend": "copy_engine", **options, **({} if out is None else {"out": out})}
    if kind == "exchange":
        return a2a_gemm(*inputs, **how)
    return ag_gemm(*inputs, plan="all_gather_1d_push", gather_size=m, **how)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_as_staged(name, read, monkeypatch):
    """First calls, calls that repeat them and are graphs of the library's own by then, each call's tensor overwritten behind it,
    and replays of a graph of the caller; with a late rank now and then."""
    inputs = [operands(name, seed) for seed in range(3)]
    monkeypatch.setenv("OVERLAP_IN_PLACE", "0")
    wanted = [call(name, each) for each in inputs]
    assert read and not any(read)
    read.clear()
    monkeypatch.setenv("OVERLAP_IN_PLACE", "1")
    different = []
    for round in range(14):
        for (x, w), y in zip(inputs, wanted, strict=True):
            mine, out = x.clone(), torch.full_like(y, float("nan"))
            if dist.get_rank() == round % WORLD:
                torch.cuda._sleep(1_000_000)
            call(name, (mine, w), out)
            mine.fill_(float("nan"))
            different.append((out != y).any())
    assert read and all(own == CASES[name][3] for own in read)
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


@pytest.mark.ranks(2)
def test_what_is_handed_out_is_whole(read):
    """The gathered tensor, and further products, which read it in symmetric memory."""
    name = "gather, in parts"
    x, w = operands(name, 5)
    how = {"plan": "all_gather_1d_push", "backend": "copy_engine"}
    alone = ag_gemm(x, w, **how)
    assert read == [True]
    y, whole = ag_gemm(x, w, return_gathered=True, **how)
    several = ag_gemm(x, [w, w[:, :256].contiguous()], **how)
    assert read == [True, False, False]
    parts = [torch.empty_like(x) for _ in range(WORLD)]
    dist.all_gather(parts, x)
    assert torch.equal(whole, torch.cat(parts)) and torch.equal(y, alone) and torch.equal(several[0], alone)
    torch.testing.assert_close(several[1], alone[:, :256], atol=1e-2, rtol=1e-2)
    overlap.check()


@pytest.mark.ranks(2)
def test_calls_that_name_no_plan_push_where_sizes_let_tiles_read_in_place(read):
    """One rank's rows begin where TMA cannot read: it stages them, and pushes as the others do. Other sizes are pulled."""
    for name, plan, taken in (
        ("gather, in parts", "all_gather_1d_push", True),
        ("gather, tiles of two ranks", "all_gather_1d", False),
    ):
        (x, w), rows = operands(name, 7), CASES[name][1][0]
        wanted = ag_gemm(x, w, plan="all_gather_1d_pull", gather_size=rows, backend="copy_engine")
        unaligned = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view_as(x)
        for number, mine in enumerate((x, unaligned.copy_(x) if dist.get_rank() else x)):
            read.clear()
            assert torch.equal(ag_gemm(mine, w, gather_size=rows, backend="copy_engine"), wanted)
            assert last_plan("ag_gemm").plan == plan and all(own == (taken and mine is x) for own in read)
            # A call that repeats an earlier one is looked up no more.
            assert read or number
    overlap.check()
