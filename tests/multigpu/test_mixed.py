"""Plans whose operations are carried out by different backends, and backends chosen by ``auto``, on real ranks."""

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.annotate.source import SourceUnit
from overlap.chunkplan.collectives.text import direct_text
from overlap.codegen.module_io import load_module
from overlap.ops import a2a_gemm, ag_gemm, ag_gemm_k, gemm_a2a, gemm_ar, gemm_rs, last_plan
from overlap.pipeline import Request, compile_source
from overlap.runtime.workspace import check
from tests.support import mixed_plans as plans
from tests.support.ranks import Product, delay

from .conftest import WORLD, meet

COPIED, MOVED, STORED = "copy_engine", "ldst_reserved", "ldst_inline"
WAYS = {
    "gather": (plans.gather(COPIED, MOVED), "a[M]"),
    "gather, others": (plans.gather(MOVED, COPIED), "a[M]"),
    "gather, one channel": (plans.gather(COPIED, MOVED, channels=1), "a[M]"),
    "ring": (plans.ring(COPIED, MOVED), "a[M]"),
    "ring, others": (plans.ring(MOVED, COPIED), "a[M]"),
    "gather, by TMA": (plans.gather(COPIED, "tma_reserved"), "a[M]"),
    "scatter": (plans.reduce_scatter(COPIED, STORED), "c[M]"),
    "scatter, others": (plans.reduce_scatter(STORED, COPIED), "c[N]"),
    "reduce": (plans.all_reduce(STORED, COPIED), "c[]"),
}
SHAPES = [(1000, 136, 96), (4091, 264, 1000), (3, 64, 64)]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, repo):
    """``mixed((text, on), ...)``: the grouped template kernel compiled for plans given as text, imported."""
    folder = tmp_path_factory.mktemp("mixed")
    made: dict = {}

    def make(*pairs, split=1, kernel="grouped_gemm"):
        key = (pairs, split, kernel)
        if key not in made:
            names = []
            for i, (text, _) in enumerate(pairs):
                names.append(str(folder / f"plan_{len(made)}_{i}.yaml"))
                (folder / names[-1]).write_text(text)
            unit = SourceUnit.from_file(str(repo / "templates" / "kernels" / f"{kernel}.py"))
            settings = {"split": str(split)} if split > 1 else {}
            request = Request(unit, plan=names, on=[on for _, on in pairs], settings=settings)
            path = folder / f"module_{len(made)}.py"
            path.write_text(compile_source(request).module.text)
            made[key] = load_module(str(path))
        return made[key]

    return make


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("split", [1, 2])
def test_every_plan_shape_and_dtype(mixed, group, way, split):
    module = mixed(WAYS[way], split=split)
    for dtype in (torch.bfloat16, torch.float32):
        for shape in SHAPES:
            for seed in range(2):
                Product(group, *shape, dtype, on=WAYS[way][1]).check(module, seed)
    check(group)


@pytest.mark.parametrize("way", ["gather", "gather, one channel", "ring", "ring, others", "scatter", "reduce"])
def test_many_launches_with_new_data_and_delays(mixed, group, way):
    product = Product(group, 515, 136, 96, torch.float16, on=WAYS[way][1])
    module = mixed(WAYS[way])
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for seed in range(200):
        delay(seed, product.rank)
        wrong += product.wrong(*product.call(module, seed))
    assert wrong.item() == 0, f"{way}: {wrong.item()} of 200 calls are wrong on rank {product.rank}"
    check(group)


@pytest.mark.parametrize("way", ["ring", "scatter, others"])
def test_a_persistent_grid_that_fills_the_device(mixed, group, way):
    """Wait kernels of lanes and programs that move must become resident beside it."""
    kernel = "persistent_gemm" if way == "ring" else "grouped_gemm"
    product = Product(group, 4096, 4096, 512, torch.bfloat16, on=WAYS[way][1])
    module = mixed(WAYS[way], kernel=kernel)
    for seed in range(10):
        delay(seed, product.rank)
        product.check(module, seed)
    check(group)


def test_inputs_moved_and_results_stored_by_one_kernel(mixed, group):
    """A is gathered along M, every rank multiplies by a B of its own, and the products are added up."""
    module = mixed((plans.gather(MOVED, MOVED), "a[M]"), (plans.all_reduce(STORED, STORED), "c[]"))
    sum_of_products(module, group)


def sum_of_products(module, group):
    """Checks a module that gathers A along M and adds the ranks' products up."""
    rank, (m, n, k) = dist.get_rank(group), (1000, 136, 96)
    rows = Product(group, m, n, k, torch.bfloat16)
    for seed in range(5):
        a, _ = rows.data(seed)
        bs = [Product(group, m, n, k, torch.bfloat16, on="a[M]").data(seed, r)[1] for r in range(WORLD)]
        got = module.matmul(a[rows.piece("M")].clone(), bs[rank], group=group, sizes=rows.sizes)
        products = torch.stack([a.float() @ b.float() for b in bs])
        allowed = 2**-7 * (products.sum(0).abs() + products.abs().sum(0)) + 1e-3
        assert ((got.float() - products.sum(0)).abs() <= allowed).all(), f"call {seed} is wrong on rank {rank}"
    check(group)


@pytest.mark.parametrize("way", ["gather", "ring", "scatter"])
def test_in_a_graph(mixed, group, way):
    module, product = mixed(WAYS[way]), Product(group, 1000, 136, 96, torch.float16, on=WAYS[way][1])
    product.check(module, 0)
    inputs = [t.clone() for t in product.inputs(0)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = module.matmul(*inputs, group=group, sizes=product.sizes)
    for seed in range(1, 30):
        for place, value in zip(inputs, product.inputs(seed), strict=True):
            place.copy_(value)
        got.fill_(float("nan"))
        delay(seed, product.rank)
        graph.replay()
        assert not product.wrong(got, product.wanted(seed)), f"replay {seed} of {way} is wrong on rank {product.rank}"
    check(group)


LIBRARY = {
    "gather": ("all_gather_1d", "a[M]"),
    "gather columns": ("all_gather_1d", "b[N]"),
    "inside": ("all_gather_1d", "a[K]"),
    "exchange": ("all_to_all_1d", "a[K:M]"),
    "scatter": ("reduce_scatter_1d", "c[M]"),
    "scatter columns": ("reduce_scatter_1d", "c[N]"),
    "reduce": ("all_reduce_two_shot", "c[]"),
    "exchanged": ("all_to_all_1d", "c[M:N]"),
}


def rounded_by_the_library(product):
    """The library rounds sums at every hop, and copies nothing but bytes otherwise."""
    whole = product.wanted

    def wanted(seed):
        exact, magnitude = whole(seed)
        return exact, magnitude * (dist.get_world_size(product.group) if product.on[0] == "c" else 1)

    product.wanted = wanted
    return product


@pytest.mark.parametrize("way", LIBRARY)
def test_collectives_by_a_library(generated, group, way):
    module = generated("templates/kernels/grouped_gemm.py", *LIBRARY[way], "collective")
    for dtype in (torch.bfloat16, torch.float32):
        for shape in SHAPES:
            product = rounded_by_the_library(Product(group, *shape, dtype, on=LIBRARY[way][1]))
            for seed in range(3):
                delay(seed, product.rank)
                product.check(module, seed)
    check(group)


@pytest.mark.parametrize("way", ["gather", "scatter"])
def test_a_persistent_grid_behind_and_ahead_of_a_library(generated, group, way):
    """Kernels of the library would starve beside it."""
    module = generated("templates/kernels/persistent_gemm.py", *LIBRARY[way], "collective")
    product = rounded_by_the_library(Product(group, 4096, 4096, 512, torch.bfloat16, on=LIBRARY[way][1]))
    for seed in range(20):
        delay(seed, product.rank)
        product.check(module, seed)
    check(group)


def test_a_library_beside_copies(mixed, group):
    """A is gathered by the library, the products are added up by copies of one launch."""
    module = mixed((direct_text("all_gather"), "a[M]"), (plans.all_reduce(COPIED, STORED), "c[]"))
    sum_of_products(module, group)


def random(shape, seed, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).to(dtype)


def near(got, wanted, magnitude, what):
    allowed = 2**-7 * (wanted.abs() + magnitude) + 1e-3
    wrong = (got.float() - wanted).abs() > allowed
    assert not wrong.any(), f"{what}: {int(wrong.sum())} of {wrong.numel()} elements are wrong, {last_plan(what)}"


M, N, K = 2048, 512, 1024


def operate(op, group, rank):
    """An operator's result, what it should be, and the sizes of what was rounded on the way."""
    xs = [random((M, K), 100 + r) for r in range(WORLD)]
    ws = [random((K, N), 200 + r) for r in range(WORLD)]
    products = [x.float() @ w.float() for x, w in zip(xs, ws, strict=True)]
    total, sizes = sum(products), sum(p.abs() for p in products)
    low, high = rank * (M // WORLD), (rank + 1) * (M // WORLD)
    if op is ag_gemm:
        whole = xs[0].float() @ ws[rank].float()
        return ag_gemm(xs[0][low:high].clone(), ws[rank], group=group, backend="auto"), whole, whole.abs()
    if op is ag_gemm_k:
        part = K // WORLD
        whole = xs[0].float() @ ws[rank].float()
        held = xs[0][:, rank * part : (rank + 1) * part].contiguous()
        return ag_gemm_k(held, ws[rank], group=group, backend="auto"), whole, whole.abs()
    if op is gemm_rs:
        return gemm_rs(xs[rank], ws[rank], group=group, backend="auto"), total[low:high], sizes[low:high]
    if op is gemm_ar:
        return gemm_ar(xs[rank], ws[rank], group=group, backend="auto"), total, sizes
    if op is a2a_gemm:
        part = K // WORLD
        held = xs[0][:, rank * part : (rank + 1) * part].contiguous()
        wanted = (xs[0].float() @ ws[0].float())[low:high]
        return a2a_gemm(held, ws[0], group=group, backend="auto"), wanted, wanted.abs()
    wanted = (xs[0].float() @ ws[0].float())[:, rank * (N // WORLD) : (rank + 1) * (N // WORLD)]
    return gemm_a2a(xs[0][low:high].clone(), ws[0], group=group, backend="auto"), wanted, wanted.abs()


@pytest.mark.parametrize("machine", ["", "h100-nvlink"])
@pytest.mark.parametrize("op", [ag_gemm, ag_gemm_k, gemm_rs, gemm_ar, a2a_gemm, gemm_a2a])
def test_every_operator_by_auto(group, monkeypatch, one_folder, op, machine):
    monkeypatch.setenv("OVERLAP_MACHINE", machine)
    for _ in range(3):
        near(*operate(op, group, dist.get_rank(group)), op.__name__)
    said = last_plan(op.__name__)
    told = meet(f"{op.__name__} on {machine}", (said.backend, said.considered, said.why_serial))
    assert all(each == told[0] for each in told), told
    if machine:
        assert len(said.considered) > 3 and "serial" in " ".join(said.considered), said
    else:
        assert said.backend == "serial" and "no machine is named" in said.why_serial, said


def test_a_kernel_by_auto(group, repo, monkeypatch, one_folder):
    monkeypatch.setenv("OVERLAP_MACHINE", "h100-nvlink")
    kernel = load_module(str(repo / "templates" / "kernels" / "grouped_gemm.py")).matmul_kernel
    compiled = overlap.compile(plan="all_gather_1d", on="a[M]", backend="auto")(kernel)
    rank, (m, n, k) = dist.get_rank(group), (4000, 520, 1024)
    product = Product(group, m, n, k, torch.bfloat16)
    for seed in range(3):
        shard, b = product.inputs(seed)
        c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        arguments = dict(M=m, N=n, K=k, stride_am=k, stride_ak=1, stride_bk=n, stride_bn=1, stride_cm=n, stride_cn=1)
        blocks = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, GROUP_M=8)
        tiles = -(-m // 128) * -(-n // 128)
        compiled[(tiles,)](shard, b, c, **arguments, **blocks, group=group)
        assert not product.wrong(c, product.wanted(seed)), f"call {seed} is wrong on rank {rank}: {compiled.last_plan}"
    assert compiled.last_plan.considered, compiled.last_plan
    check(group)
