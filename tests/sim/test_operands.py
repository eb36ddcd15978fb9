"""Odd tensors on simulated ranks: views that are not their memory, results over other tensors, weights without columns."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import overlap
from overlap.codegen.module_io import load_module
from overlap.errors import RuntimeContractError, UsageError
from overlap.ops import a2a_gemm, ag_gemm, ag_gemm_k, gemm_ar, gemm_rs
from overlap.sim import World

pytestmark = pytest.mark.one_triton

WAYS = {
    "gather": ("all_gather_1d", "a[M]"),
    "scatter": ("reduce_scatter_1d", "c[M]"),
    "exchange": ("all_to_all_1d", "a[K:M]"),
}


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("way", WAYS)
def test_a_host_function_is_given_no_view_that_is_not_its_memory(way, compiled):
    """Nor in a call like one that was made before."""
    plan, on = WAYS[way]
    matmul = load_module(str(compiled(plan=plan, on=on))).matmul
    a, b = random(16, 8), random(16 if way == "exchange" else 8, 24, seed=1)
    nowhere = b.to("meta")

    def body(group):
        for _ in range(2):
            for odd in (torch._neg_view(a), torch.complex(a, -a).conj().imag):
                with pytest.raises(UsageError, match="`a(_ptr)?` is a negated view"):
                    matmul(odd, b, group=group)
            with pytest.raises(UsageError, match="`b_ptr` is a negated view"):
                matmul(a, torch._neg_view(b), group=group)
            with pytest.raises(UsageError, match="`b_ptr` has no memory of its own"):
                matmul(a, nowhere, group=group)
            with pytest.raises(UsageError, match="`b_ptr` is torch.complex64, which Triton has no type for"):
                matmul(a, b.to(torch.complex64), group=group)
            with pytest.raises(UsageError, match="out is a negated view"):
                matmul(a, b, group=group, out=torch._neg_view(matmul(a, b, group=group)))
            with pytest.raises(UsageError, match="out has shape .* elements share memory"):
                matmul(a, b, group=group, out=matmul(a, b, group=group)[:, :1].expand(-1, 24))
            matmul(a, b, group=group)
        group.overlap_runtime.synchronize()

    World(2).run(body)


@pytest.fixture
def kernel(repo):
    module = load_module(str(repo / "templates" / "kernels" / "grouped_gemm.py"))
    gathers = overlap.compile(plan="all_gather_1d", on="a[M]")(module.matmul_kernel)
    scatters = overlap.compile(plan="reduce_scatter_1d", on="c[M]")(module.matmul_kernel)
    blocks = dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=8)

    def launch(group, on, a, b, c):
        kernel = gathers if on == "a" else scatters
        kernel[(1,)](a, b, c, 16, 24, 8, 8, 1, 24, 1, 24, 1, group=group, **blocks)

    return launch


def test_a_launch_is_given_no_view_that_is_not_its_memory(kernel):
    a, b = random(16, 8), random(8, 24, seed=1)

    def body(group):
        shard, c = a[8 * group.rank() :][:8], torch.empty(16, 24)
        for _ in range(2):
            with pytest.raises(UsageError, match=r"test_operands.py(?s:.*)`a_ptr` is a negated view"):
                kernel(group, "a", torch._neg_view(shard), b, c)
            with pytest.raises(UsageError, match="`b_ptr` is a negated view"):
                kernel(group, "a", shard, torch._neg_view(b), c)
            with pytest.raises(UsageError, match="`a_ptr` is torch.complex64"):
                kernel(group, "a", shard.to(torch.complex64), b, c)
            with pytest.raises(UsageError, match="`c_ptr` is a negated view"):
                kernel(group, "c", a, b, torch._neg_view(c[:8]))
            with pytest.raises(UsageError, match="`c_ptr` has shape .* elements share memory"):
                kernel(group, "c", a, b, c[:1].expand(8, 24))
            kernel(group, "a", shard, b, c)
        group.overlap_runtime.synchronize()
        return c

    for c in World(2).run(body):
        torch.testing.assert_close(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["gather", "exchange"])
def test_a_result_in_memory_that_its_tiles_read_is_refused(way, compiled):
    """In that of the shard it may lie: what is gathered is staged then."""
    plan, on = WAYS[way]
    matmul = load_module(str(compiled(plan=plan, on=on))).matmul
    a, b = random(128, 128), random(128, 128, seed=1)

    def body(group):
        at = slice(64 * group.rank(), 64 * group.rank() + 64)
        shard = a[at].clone() if way == "gather" else a[:, at].clone()
        rows = 128 if way == "gather" else 64
        with pytest.raises(RuntimeContractError, match="out lies in the memory of `b_ptr`, which the kernel reads"):
            weight = b.clone()
            matmul(shard, weight, group=group, out=weight[:rows])
        memory = torch.empty(rows * 128)
        inside = memory[: shard.numel()].view(shard.shape).copy_(shard)
        found = matmul(inside, b, group=group, out=memory.view(rows, 128))
        group.overlap_runtime.synchronize()
        return found

    for rank, found in enumerate(World(2).run(body)):
        wanted = a @ b if way == "gather" else (a @ b)[64 * rank :][:64]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


def test_results_of_a_transfer_have_memory_for_each_element():
    x = random(4, 6)

    def body(group):
        for out in (torch.empty(8, 1).expand(8, 6), torch.empty(16).as_strided((8, 6), (1, 1))):
            with pytest.raises(UsageError, match="out for `x` has shape .* elements share memory"):
                overlap.transfer("all_gather", x, group=group, out=out)
        with pytest.raises(UsageError, match="out for `x` is a negated view"):
            overlap.transfer("all_gather", x, group=group, out=torch._neg_view(torch.empty(8, 6)))
        with pytest.raises(UsageError, match="`x` is torch.sparse_coo"):
            overlap.transfer("all_gather", x.to_sparse(), group=group)

    World(1).run(body)


@pytest.mark.parametrize("backend", ["copy_engine", "ldst_reserved", "ldst_inline"])
@pytest.mark.parametrize("operator", [ag_gemm, ag_gemm_k, a2a_gemm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_rank_whose_weight_has_no_columns_serves_the_others(operator, backend, dtype):
    xs, depth = [random(6, 8, seed=rank).to(dtype) for rank in range(2)], 8 if operator is ag_gemm else 16
    w = random(depth, 5, seed=7).to(dtype)
    whole = torch.cat(xs, dim=0 if operator is ag_gemm else 1).float() @ w.float()

    def body(group):
        own = w[:, : 0 if group.rank() else 5]
        results = [operator(xs[group.rank()], own, group=group, backend=backend) for _ in range(2)]
        group.overlap_runtime.synchronize()
        return results

    for rank, results in enumerate(World(2).run(body)):
        wanted = whole[3 * rank :][:3] if operator is a2a_gemm else whole
        for y in results:
            torch.testing.assert_close(y.float(), wanted[:, : 0 if rank else 5], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("operator", [ag_gemm, gemm_rs, gemm_ar])
def test_tangents_are_refused_in_calls_like_earlier_ones_too(operator):
    x, w = random(6, 8), random(8, 5, seed=1)
    with forward_ad.dual_level():
        forward_ad.make_dual(x, x)  # the first one loads what simulated ranks would be in the way of

    def body(group):
        for _ in range(2):
            operator(x, w, group=group)
            with forward_ad.dual_level():
                operator(x, w, group=group)
                with pytest.raises(UsageError, match="has a tangent, and no operator has derivatives in forward mode"):
                    operator(forward_ad.make_dual(x, x), w, group=group)
        group.overlap_runtime.synchronize()

    World(1).run(body)  # a level is the process's, not a rank's


def test_ranks_that_want_different_things_of_a_gather_are_told_what_must_be_alike():
    """How much of what is gathered is wanted decides on the plan, of shards that may be pushed."""
    x, w = random(256, 64).half(), random(64, 64, seed=1).half()

    def body(group):
        ag_gemm(x, [w] * (1 + group.rank()), group=group)

    with pytest.raises(RuntimeContractError, match="call `ag_gemm_tma` differently: plan") as told:
        World(2).run(body)
    assert "number of weights" in told.value.help
