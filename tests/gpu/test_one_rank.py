"""Every operator on a group of one rank, against fp32: a world of one is an ordinary one."""

import pytest
import torch

import overlap
from tests.support.operands import OPERATORS, poisoned, random

SIZES = {
    "divisible": (256, 512, 128, torch.bfloat16),
    "ragged": (515, 264, 200, torch.float16),
    "odd": (131, 67, 37, torch.float32),
    "one row": (1, 1000, 512, torch.bfloat16),
    "tall": (4096, 2050, 1024, torch.bfloat16),
}
"""M, N, K and dtype."""
REPEATED = 40
"""Calls of one shape: more than it takes to make them a graph of the library's own."""


def missed(x, w, y):
    """Whether y misses x @ w by more than its rounding and fp32 sums; NaN is a miss."""
    exact = x.double() @ w.double()
    allowed = torch.finfo(y.dtype).eps * exact.abs() + 2**-20 * x.shape[1]
    return bool((~((y.double() - exact).abs() <= allowed)).any())


@pytest.fixture
def group(process_group):
    made = torch.distributed.new_group([0], backend="cpu:gloo,cuda:nccl")
    yield made
    overlap.release(made)


@pytest.mark.parametrize("backend", [None, "copy_engine", "ldst_inline", "serial"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_is_its_product(group, operator, size, backend):
    m, n, k, dtype = SIZES[size]
    out = poisoned((m, n), dtype)
    for seed in range(3):
        x, w = random((m, k), 2 * seed, dtype), random((k, n), 2 * seed + 1, dtype)
        y = getattr(overlap.ops, operator)(x, w, group=group, backend=backend, out=out.fill_(float("nan")))
        assert y is out and not missed(x, w, y), f"call {seed}: {overlap.ops.last_plan(operator)}"
    overlap.check(group)


@pytest.mark.parametrize("operator", OPERATORS)
def test_calls_that_repeat_and_graphs_of_them(group, operator):
    """With operands that change, as steps, as graphs of the library's own, and in one of the caller's."""
    m, n, k, dtype = SIZES["ragged"]
    call = getattr(overlap.ops, operator)
    operands = [(random((m, k), seed, dtype), random((k, n), 100 + seed, dtype)) for seed in range(3)]
    made = [call(*operands[i % 3], group=group, backend="copy_engine") for i in range(REPEATED)]
    assert not [i for i, y in enumerate(made) if missed(*operands[i % 3], y)]
    x, w = (each.clone() for each in operands[0])
    graph, out = torch.cuda.CUDAGraph(), poisoned((m, n), dtype)
    with torch.cuda.graph(graph):
        call(x, w, group=group, backend="copy_engine", out=out)
    for new_x, new_w in operands[1:]:
        x.copy_(new_x), w.copy_(new_w), out.fill_(float("nan"))
        graph.replay()
        assert not missed(new_x, new_w, out)
    overlap.check(group)


@pytest.mark.parametrize("empty", ["rows", "columns", "depth"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_sizes_of_nothing(group, operator, empty):
    m, n, k = (
        0 if name == empty else size for name, size in zip(("rows", "columns", "depth"), (48, 40, 32), strict=True)
    )
    x, w = random((m, k), 1, torch.bfloat16), random((k, n), 2, torch.bfloat16)
    y = getattr(overlap.ops, operator)(x, w, group=group)
    assert y.shape == (m, n) and not y.any()
