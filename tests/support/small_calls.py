"""Small collectives on simulated ranks, each checked to the bit against what one order of sums gives."""

from __future__ import annotations

import pytest
import torch

from overlap.chunkplan.region import shard_interval
from overlap.runtime.group.collectives import add_in_order
from overlap.runtime.packets import blocks, limits, transport, words
from overlap.runtime.packets.low_latency import low_latency_of
from overlap.sim import World

NAN = float("nan")


@pytest.fixture(autouse=True)
def few_lines(monkeypatch):
    """Programs of few lines, or bytes, so that small messages take several, and slots no larger than they must be; by words."""
    monkeypatch.setattr(words, "BLOCK", 8)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    monkeypatch.setattr(blocks, "HALVED_BYTES", 80)
    monkeypatch.setattr(blocks, "THREADS", 8)
    monkeypatch.setattr(transport, "A_MULTIPROCESSOR", 1)
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BELOW_BYTES", "6000")
    monkeypatch.setenv("OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES", "6000")


@pytest.fixture(params=["words", "blocks"])
def carried_by(request, monkeypatch, few_lines):
    """All calls go by the one, and then by the other."""
    if request.param == "blocks":
        monkeypatch.setenv("OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES", "0")
    return request.param


@pytest.fixture
def two_steps(monkeypatch):
    """All-reduces go in two steps whatever their size."""
    monkeypatch.setattr(limits, "SAVED_BYTES", 0)


def made(shape, dtype, *seeds):
    """A tensor that every rank can make."""
    number = 0
    for seed in seeds:
        number = 1009 * number + seed + 1
    generator = torch.Generator().manual_seed(number)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


def poisoned(shape, dtype):
    return torch.full(shape, NAN if dtype.is_floating_point else -77, dtype=dtype)


def narrow(tensor, dim, world, rank):
    low, high = shard_interval(tensor.shape[dim], world, rank)
    return tensor.narrow(dim, low, high - low)


def same(found, wanted):
    return found.shape == wanted.shape and torch.equal(
        found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8)
    )


def on_ranks(world, body, **options):
    return World(world, **options).run(lambda group: body(group.overlap_runtime))


def summed(world, shape, dtype, call):
    return add_in_order([made(shape, dtype, rank, call) for rank in range(world)])


def reduce_all(runtime, shape, dtype, call, out_dtype=None):
    out = poisoned(shape, out_dtype or dtype)
    assert low_latency_of(runtime).all_reduce(made(shape, dtype, runtime.rank, call), out)
    runtime.synchronize()
    assert same(out, summed(runtime.world, shape, dtype, call).to(out.dtype)), (runtime.rank, call)


def scatter(runtime, shape, dim, dtype, call):
    total = summed(runtime.world, shape, dtype, call).to(dtype)
    wanted = narrow(total, dim, runtime.world, runtime.rank)
    out = poisoned(wanted.shape, dtype)
    assert low_latency_of(runtime).reduce_scatter(made(shape, dtype, runtime.rank, call), dim, out)
    runtime.synchronize()
    assert same(out, wanted), (runtime.rank, call)


def gather(runtime, shape, dim, dtype, call):
    wanted = made(shape, dtype, 7, call)
    out = poisoned(shape, dtype)
    assert low_latency_of(runtime).all_gather(narrow(wanted, dim, runtime.world, runtime.rank), dim, out)
    runtime.synchronize()
    assert same(out, wanted), (runtime.rank, call)


def exchange(runtime, shape, from_dim, to_dim, dtype, call):
    tensor = made(shape, dtype, 8, call)
    wanted = narrow(tensor, to_dim, runtime.world, runtime.rank)
    out = poisoned(wanted.shape, dtype)
    held = narrow(tensor, from_dim, runtime.world, runtime.rank)
    assert low_latency_of(runtime).all_to_all(held, from_dim, to_dim, out)
    runtime.synchronize()
    assert same(out, wanted), (runtime.rank, call)
