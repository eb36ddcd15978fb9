"""Inputs moved by the programs that compute, between their tiles, on real ranks: every form, grids that are not resident at a
time, programs with many tiles, results stored by the same kernel, operators."""

import itertools

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.annotate.source import SourceUnit
from overlap.codegen.module_io import load_module
from overlap.ops import a2a_gemm, ag_gemm, ag_gemm_k, last_plan
from overlap.pipeline import Request, compile_source
from overlap.runtime.workspace import check
from tests.support.operands import differ, poisoned, random, rehearsed
from tests.support.ranks import WAYS, Product, delay, template
from tests.support.realizations import lacking
from tests.support.rehearsal import of_tests, products

from .conftest import WORLD
from .test_results_op import piece, wrong

pytestmark = pytest.mark.usefixtures("one_folder")
BACKENDS = ("ldst_inline", "tma_inline")
BETWEEN = [way for way, (_, on, *backend) in WAYS.items() if backend and backend[0] in BACKENDS and on[0] != "c"]
PERSISTENT = (("all_gather_1d", "a[M]"), ("all_gather_1d", "a[K]"))
FORMS = [("grouped_gemm", way) for way in BETWEEN]
FORMS += [("persistent_gemm", way) for way in BETWEEN if WAYS[way][:2] in PERSISTENT]
SHAPES = [(515, 136, 96 * WORLD), (4091, 264, 1000), (1000, 136, 96), (3, 64, 64), (1, 8, 8)]
MANY_TILES = (8192, 4096, 1024)
"""Of 64 x 64: more than are resident at a time, and dozens to a program of a persistent grid."""
COLUMNS = [(130, columns, 515) for columns in (128, 1000, 1001)]


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    brief, half = torch.bfloat16, torch.float16
    here = [backend for backend in BACKENDS if not lacking("inputs", "a[M]", backend)]
    forms = [(name, way) for name, way in FORMS if WAYS[way][2] in here]
    for name, way in forms:
        yield products(
            f"test_every_form[{name}-{way}]", template(name), WAYS[way], *((s, brief) for s in [MANY_TILES, *SHAPES])
        )
    for plan, calls in itertools.product(
        ("all_gather_1d", "all_gather_1d_pull"), ([(s, torch.float32) for s in COLUMNS], [(MANY_TILES, half)])
    ):
        yield products(
            "test_columns_on_a_grid_of_two_dimensions", template("gemm_2d"), (plan, "b[N]", "ldst_inline"), *calls
        )
    for name, way in forms:
        yield products(
            f"test_launches_with_new_data_and_delays[{name}-{way}]", template(name), WAYS[way], (SHAPES[0], brief)
        )
    for backend in here:
        way = ("all_gather_1d", "a[M]", backend)
        yield products(f"test_large_launches_in_a_row[{backend}]", template("persistent_gemm"), way, (MANY_TILES, half))
    way = ("all_gather_1d", "a[M]", "ldst_inline")
    yield products("test_in_a_graph", template("persistent_gemm"), way, ((2048, 512, 256), half))
    yield from of_tests(
        test_parts_between_tiles_that_are_pipelined,
        test_operators,
        test_a_rank_without_columns_moves_its_shard_all_the_same,
        when=lambda given: not lacking("inputs", "a[M]", given.get("backend")),
    )


@pytest.mark.parametrize(("name", "way"), FORMS)
def test_every_form(generated, group, name, way):
    on, module = WAYS[way][1], generated(template(name), *WAYS[way])
    for seed, shape in enumerate([MANY_TILES, *SHAPES]):
        Product(group, *shape, torch.bfloat16, on=on).check(module, seed)
    check(group)


def test_columns_on_a_grid_of_two_dimensions(generated, group):
    for plan in ("all_gather_1d", "all_gather_1d_pull"):
        module = generated(template("gemm_2d"), plan, "b[N]", "ldst_inline")
        for shape in COLUMNS:
            Product(group, *shape, torch.float32, on="b[N]").check(module, shape[1])
        Product(group, *MANY_TILES, torch.float16, on="b[N]").check(module, 1)
    check(group)


@pytest.mark.parametrize(("name", "way"), FORMS)
def test_launches_with_new_data_and_delays(generated, group, name, way):
    on, module = WAYS[way][1], generated(template(name), *WAYS[way])
    product = Product(group, 515, 136, 96 * WORLD, torch.bfloat16, on=on)
    wrongs = torch.zeros((), dtype=torch.int64, device="cuda")
    for seed in range(100):
        delay(seed, product.rank)
        wrongs += product.wrong(*product.call(module, seed))
    assert wrongs.item() == 0
    check(group)


@pytest.mark.parametrize("backend", BACKENDS)
def test_large_launches_in_a_row(generated, group, backend):
    """Parts of the next launch may not overtake what peers still read of this one."""
    module = generated(template("persistent_gemm"), "all_gather_1d", "a[M]", backend)
    product = Product(group, *MANY_TILES, torch.float16)
    wrongs = torch.zeros((), dtype=torch.int64, device="cuda")
    for seed in range(20):
        delay(seed, product.rank)
        wrongs += product.wrong(*product.call(module, seed))
    assert wrongs.item() == 0
    check(group)


def test_the_same_programs_store_the_result(tmp_path, repo, group):
    """One kernel that gathers A and scatters C: parts between its tiles, and tiles stored where they go."""
    path = str(tmp_path / f"both_{dist.get_rank()}.py")
    unit = SourceUnit.from_file(str(repo / template("grouped_gemm")))
    plans, ons = ("all_gather_1d", "reduce_scatter_1d"), ("a[M]", "c[M]")
    request = Request(unit, plans, ons, backend="ldst_inline", output=path)
    with open(path, "w", encoding="utf-8") as file:
        file.write(compile_source(request).module.text)
    module = load_module(path)
    rank = dist.get_rank(group)
    for seed, (m, n, k) in enumerate([(8192, 1024, 512), *SHAPES]):
        a, own = (
            random((m, k), seed, torch.bfloat16),
            [random((k, n), seed + 1 + r, torch.bfloat16) for r in range(WORLD)],
        )
        whole = sum(a.float() @ b.float() for b in own)
        scale = sum(a.float().abs() @ b.float().abs() for b in own) + 1
        shard = piece(a, 0, rank).clone()
        y = module.matmul(shard, own[rank], group=group, sizes={"M": m, "N": n, "K": k})
        assert not wrong(y, piece(whole, 0, rank), piece(scale, 0, rank), torch.bfloat16, k), (m, n, k)
    check(group)


def product(x, w):
    """In fp32, which nobody looks at in a rehearsal."""
    return poisoned((*x.shape[:-1], w.shape[1]), torch.float32) if rehearsed() else x.float() @ w.float()


@pytest.mark.parametrize("backend", (*BACKENDS, "ldst_reserved", "tma_reserved"))
def test_parts_between_tiles_that_are_pipelined(group, backend):
    """Programs with several tiles each before the first that waits: what they move may not come into the buffers of the next."""
    rows, columns, depth, dtype = 8192, 3072, 4096, torch.bfloat16
    rank = group.rank()
    x, w = random((rows, depth), 1, dtype), random((depth, columns), 2 + rank, dtype)
    wanted = product(x, w)
    for _ in range(3):
        y = poisoned((rows, columns), dtype)
        ag_gemm(piece(x, 0, rank).clone(), w, gather_size=rows, group=group, backend=backend, out=y)
        assert last_plan("ag_gemm").backend == backend
        assert not wrong(y, wanted, wanted.abs() + 1, dtype, depth)
    check(group)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("lead", "dim"), [((8192,), 0), ((2, 1032), 1), ((33,), 0), ((1,), 0)])
def test_operators(group, backend, lead, dim):
    dtype, rank = torch.bfloat16, group.rank()
    for n, k in ((1024, 2048), (257, 999)):
        x, w, bias = random((*lead, k), n, dtype), random((k, n), n + 9, dtype), random((n,), n, dtype)
        whole = product(x, w) + bias.float()
        scale, held = whole.abs() + 1, piece(x, -1, rank).clone()
        options = {"bias": bias, "group": group, "backend": backend}
        for plan in ("all_gather_1d", "all_gather_1d_pull", "all_gather_ring"):
            delay(n, rank)
            shard = piece(x, dim, rank).clone()
            y = ag_gemm(shard, w, gather_dim=dim, gather_size=lead[dim], plan=plan, **options)
            assert not wrong(y, whole, scale, dtype, k), ("ag_gemm", plan, lead, n, k)
        y = ag_gemm_k(held, w, **options)
        assert not wrong(y, whole, scale, dtype, k), ("ag_gemm_k", lead, n, k)
        y = a2a_gemm(held, w, scatter_dim=dim, **options)
        assert not wrong(y, piece(whole, dim, rank), piece(scale, dim, rank), dtype, k), ("a2a_gemm", lead, n, k)
        assert {last_plan(name).backend for name in ("ag_gemm_k", "a2a_gemm", "ag_gemm")} == {backend}
    overlap.check(group)


def test_a_rank_without_columns_moves_its_shard_all_the_same(group):
    rank = group.rank()
    for seed in range(3):
        x = random((515, 96), seed, torch.bfloat16)
        w = random((96, 64 if rank else 0), seed, torch.bfloat16)
        y, gathered = ag_gemm(
            piece(x, 0, rank).clone(), w, gather_size=515, group=group, backend="ldst_inline", return_gathered=True
        )
        assert not differ(gathered, x) and not wrong(y, product(x, w), 1 + 0 * y.float(), torch.bfloat16, 96)
    overlap.check(group)


def test_in_a_graph(generated, group):
    module = generated(template("persistent_gemm"), "all_gather_1d", "a[M]", "ldst_inline")
    product = Product(group, 2048, 512, 256, torch.float16)
    product.check(module, 0)
    shard, own = (tensor.clone() for tensor in product.inputs(0))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = module.matmul(shard, own, group=group, sizes=product.sizes)
    for seed in range(1, 30):
        wanted = product.wanted(seed)
        for tensor, new in zip((shard, own), product.inputs(seed), strict=True):
            tensor.copy_(new)
        delay(seed, product.rank)
        graph.replay()
        assert not product.wrong(got, wanted), seed
    check(group)
