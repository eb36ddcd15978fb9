"""Programs of a launch that move chunks by TMA, on real ranks: every form, parts of rows, edges that no box has, operators."""

import pytest
import torch
import torch.distributed as dist
from triton.runtime import _allocation

import overlap
from overlap.ops import a2a_gemm, ag_gemm, ag_gemm_k, last_plan
from overlap.runtime.workspace import check
from tests.support.ranks import WAYS, Product, delay, template

from .conftest import WORLD
from .test_results_op import piece, random, wrong

pytestmark = pytest.mark.usefixtures("one_folder")
BY_TMA = [way for way, (_, _, *backend) in WAYS.items() if backend == ["tma_reserved"]]
SHAPES = [(515, 136, 96 * WORLD), (4091, 264, 1000), (1000, 136, 96), (3, 64, 64), (1, 8, 8)]
RESERVED = ("ldst_reserved", "tma_reserved")


@pytest.mark.parametrize("way", BY_TMA)
def test_every_form(generated, group, way):
    on, module = WAYS[way][1], generated(template("grouped_gemm"), *WAYS[way])
    for seed, shape in enumerate(SHAPES):
        Product(group, *shape, torch.bfloat16, on=on).check(module, seed)
    check(group)


def test_a_persistent_kernel_with_descriptors_of_its_own(generated, group):
    module = generated(template("persistent_gemm"), "all_gather_1d", "a[M]", "tma_reserved")
    for seed, shape in enumerate([(8192, 1024, 1024), *SHAPES]):
        Product(group, *shape, torch.float16).check(module, seed)
    check(group)


@pytest.mark.parametrize("columns", [128, 64 * WORLD, 1000, 1001])
def test_columns_are_parts_of_rows(generated, group, columns):
    """Rows that boxes take, and others whose ends or pitch they do not."""
    for plan in ("all_gather_1d", "all_gather_1d_pull"):
        module = generated(template("gemm_2d"), plan, "b[N]", "tma_reserved")
        Product(group, 130, columns, 515, torch.float32, on="b[N]").check(module, columns)
    check(group)


@pytest.mark.parametrize("way", BY_TMA)
def test_launches_with_new_data_and_delays(generated, group, way):
    on, module = WAYS[way][1], generated(template("grouped_gemm"), *WAYS[way])
    product = Product(group, 515, 136, 96 * WORLD, torch.bfloat16, on=on)
    wrongs = torch.zeros((), dtype=torch.int64, device="cuda")
    for seed in range(200):
        delay(seed, product.rank)
        wrongs += product.wrong(*product.call(module, seed))
    assert wrongs.item() == 0
    check(group)


def test_no_allocator_is_needed_and_none_is_left_behind(generated, group):
    module = generated(template("grouped_gemm"), "all_gather_1d", "a[M]", "tma_reserved")
    none = _allocation.NullAllocator()
    token = _allocation._allocator.set(none)
    try:
        for seed in range(3):
            Product(group, 700, 136, 200, torch.bfloat16).check(module, seed)
        assert _allocation._allocator.get() is none
    finally:
        _allocation._allocator.reset(token)
    check(group)


@pytest.mark.parametrize("backend", RESERVED)
@pytest.mark.parametrize(("lead", "dim"), [((8192,), 0), ((2, 1032), 1), ((33,), 0), ((1,), 0)])
def test_operators(group, backend, lead, dim):
    dtype, rank = torch.bfloat16, dist.get_rank(group)
    for n, k in ((1024, 2048), (257, 999)):
        for programs in (0, 5):
            seed = n + programs
            x, w, bias = random((*lead, k), seed, dtype), random((k, n), seed + 9, dtype), random((n,), seed, dtype)
            whole = x.float() @ w.float() + bias.float()
            scale, held = whole.abs() + 1, piece(x, -1, rank).clone()
            options = {"bias": bias, "group": group, "backend": backend, "comm_sms": programs}
            delay(seed, rank)
            y = ag_gemm_k(held, w, **options)
            assert not wrong(y, whole, scale, dtype, k), ("ag_gemm_k", lead, n, k, programs)
            y = a2a_gemm(held, w, scatter_dim=dim, **options)
            wanted = piece(whole, dim, rank)
            assert not wrong(y, wanted, piece(scale, dim, rank), dtype, k), ("a2a_gemm", lead, n, k, programs)
            shard = piece(x, dim, rank).clone()
            y = ag_gemm(shard, w, gather_dim=dim, gather_size=lead[dim], **options)
            assert not wrong(y, whole, scale, dtype, k), ("ag_gemm", lead, n, k, programs)
            assert {last_plan(name).backend for name in ("ag_gemm_k", "a2a_gemm", "ag_gemm")} == {backend}
    overlap.check(group)
