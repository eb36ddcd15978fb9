"""Tiles that TMA stores in other ranks' memory: the descriptor that reaches every place, kernels with descriptors of the host
and of their own, operators, graphs.

    python -m torch.distributed.run --nproc-per-node 2 -m pytest tests/multigpu/test_stores.py -q -o faulthandler_timeout=130

What could be wrong is told apart by ``OVERLAP_TEST_STORES``, a list of: ``poison`` (all memory is NaN ahead of each call),
``long`` (Triton launches every call), ``once`` (tiles are counted at once), ``fenced`` and ``system`` (a fence between a store
that has landed and its count, of the proxy and of the system too).
"""

import itertools
import os

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import overlap
import overlap.language as ol
from overlap.ops import gemm_a2a, gemm_ar, gemm_rs, last_plan
from overlap.runtime.tables.slots import Slots
from overlap.runtime.workspace import check
from overlap.schedule.table import HIGH_BYTES, LOW_BYTES
from tests.support.ranks import Product, delay, template
from tests.support.rehearsal import products

from .conftest import WORLD, meet
from .findings import findings, poison
from .test_graphs import Captured
from .test_landing import waited
from .test_results_op import Sum, piece, random, wrong

pytestmark = pytest.mark.usefixtures("one_folder")
ASKED = set(filter(None, os.environ.get("OVERLAP_TEST_STORES", "").split(",")))
BACKEND = "tma_inline"
KERNELS = {"persistent_gemm": template("persistent_gemm"), "host_descriptors": "tests/kernels/host_descriptors.py"}
WAYS = {
    "reduce_scatter_1d": "c[M]",
    "all_reduce_one_shot": "c[]",
    "all_reduce_two_shot": "c[]",
    "all_to_all_1d": "c[M:N]",
}
SHAPES = [(515, 136, 96), (1000, 264, 200), (2048, 512, 512), (130, 64, 64), (3, 64, 64), (1, 8, 8)]
COLUMNS = [(130, 136, 96), (515, 1000, 64)]


def shapes_of(name):
    # A rank without rows has no descriptor of them to make on the host.
    return SHAPES if name == "persistent_gemm" else SHAPES[:4]


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`), where nothing is asked for."""
    if ASKED:
        return
    for name, plan in itertools.product(KERNELS, WAYS):
        way, calls = (plan, WAYS[plan], BACKEND), [(shape, torch.bfloat16) for shape in shapes_of(name)]
        yield products(f"test_every_form[{name}-{plan}]", KERNELS[name], way, *calls)
    for dtype in (torch.float32, torch.float16):
        way, calls = ("reduce_scatter_1d", "c[N]", BACKEND), [(shape, dtype) for shape in COLUMNS]
        yield products("test_columns_and_wide_elements", KERNELS["persistent_gemm"], way, *calls)
    for name in KERNELS:
        way, call = ("reduce_scatter_1d", "c[M]", BACKEND), ((1000, 136, 96), torch.float16)
        yield products(f"test_a_graph_replayed_with_new_data[{name}]", KERNELS[name], way, call)


@triton.jit
def fenced(value):
    return waited(value, "fenced")


@triton.jit
def system(value):
    return waited(value, "system")


@pytest.fixture(scope="module", autouse=True)
def told_apart():
    """What was asked for, before anything is compiled."""
    from overlap.codegen import emit, kernel_module
    from overlap.language import stores
    from overlap.runtime.launch import launch
    from overlap.runtime.launch.variant import Variant

    with pytest.MonkeyPatch.context() as patch:
        for name in ASKED & {"fenced", "system"}:
            patch.setattr(stores, "landed", {"fenced": fenced, "system": system}[name])
        if "long" in ASKED:
            exact = launch.variant_of
            patch.setattr(launch, "variant_of", lambda *given: Variant(exact(*given).key, False))
        if "once" in ASKED:
            for module in (kernel_module, emit):
                patch.setattr(module, "PASSES", tuple(each for each in module.PASSES if each[0] != "delay"))
        yield


def checked(product, module, seed):
    """A call whose failure says what is wrong where, on every rank."""
    if "poison" in ASKED:
        poison(product.group)
    delay(seed, product.rank)
    got, wanted = product.call(module, seed)
    misses = product.misses(got, wanted)

    def partial(rank):
        a, b = product.data(seed, rank)
        return a.float() @ b.float()

    agreed(
        product.group, f"call {seed} of {product.on} {product.sizes} {product.dtype}", got, wanted[0], misses, partial
    )


def agreed(group, what, got, exact, misses, partial):
    """Fails on every rank where a result is wrong on any, with what each found."""
    rank = dist.get_rank(group)
    if not any(meet(f"{what}: wrong", bool(misses.any()))):
        return
    told = meet(f"{what}: findings", findings(group, got, exact, misses, partial))
    pytest.fail(f"{what}, with {sorted(ASKED) or 'nothing'} asked for, on rank {rank}:\n" + "\n".join(told))


@triton.jit
def store_everywhere(anywhere, places, PLACES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Stores number i + 1 in place i of ``places``; in the last one nothing, for it is outside."""
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    for place in ol.static_range(PLACES + 1):
        steps = tl.load(places + place)
        high, low = (steps >> 26).to(tl.int32), (steps & ((1 << 26) - 1)).to(tl.int32)
        value = tl.full((ROWS, COLUMNS), place + 1, anywhere.dtype)
        anywhere.store([high, low, row, column], ol.shaped(value, anywhere))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_descriptor_reaches_every_rank(group, dtype):
    """Rank r stores r's number into its slot on every rank, all through one descriptor; edges are kept."""
    rows, columns, rank = 100, 72, dist.get_rank(group)
    box = overlap.symmetric((WORLD, 128, columns), dtype, zero=True, group=group)
    slots = [box.peer(r)[rank].data_ptr() for r in range(WORLD)]
    own = torch.zeros(128, columns, device="cuda", dtype=dtype)
    reached = [own.data_ptr(), *slots]
    lowest = min(reached)
    steps = (max(reached) - lowest) // HIGH_BYTES + 1
    described = TensorDescriptor(own, [rows, columns], [columns, 1], [32, 32])
    anywhere = Slots(None, 1, lowest - own.data_ptr(), steps).anywhere(described)
    assert anywhere.base.data_ptr() == lowest and anywhere.shape[:2] == [steps, HIGH_BYTES // LOW_BYTES]
    nowhere = (HIGH_BYTES // LOW_BYTES) << 30
    places = torch.tensor([*((a - lowest) // LOW_BYTES for a in reached), nowhere], device="cuda")
    store_everywhere[(triton.cdiv(rows, 32), triton.cdiv(columns, 32))](anywhere, places, len(reached), 32, 32)
    torch.cuda.synchronize()
    meet("every rank has stored", rank)
    told = f"rank {rank}: places {[hex(a) for a in reached]}, from {hex(lowest)}, {steps} steps"
    for where, tensor, number in (("own", own, 1), *((f"slot {r}", box.tensor[r], rank + 2) for r in range(WORLD))):
        seen = tensor.float()
        assert bool((seen[:rows] == number).all()), (
            f"{told}; {where} holds {seen[:rows].unique().tolist()}, not {number}"
        )
        assert not seen[rows:].any(), f"{told}; {where} was written past its {rows} rows"


@pytest.mark.parametrize("plan", WAYS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_form(generated, group, name, plan):
    module = generated(KERNELS[name], plan, WAYS[plan], BACKEND)
    for seed, shape in enumerate(shapes_of(name)):
        checked(Product(group, *shape, torch.bfloat16, on=WAYS[plan]), module, seed)
    check(group)


def test_columns_and_wide_elements(generated, group):
    for dtype in (torch.float32, torch.float16):
        module = generated(KERNELS["persistent_gemm"], "reduce_scatter_1d", "c[N]", BACKEND)
        for seed, shape in enumerate(COLUMNS):
            checked(Product(group, *shape, dtype, on="c[N]"), module, seed)
    check(group)


@pytest.mark.parametrize("plan", WAYS)
def test_launches_with_new_data_and_delays(generated, group, plan):
    module = generated(KERNELS["persistent_gemm"], plan, WAYS[plan], BACKEND)
    product = Product(group, 515, 136, 96, torch.bfloat16, on=WAYS[plan])
    wrongs = torch.zeros((), dtype=torch.int64, device="cuda")
    for seed in range(100):
        delay(seed, product.rank)
        wrongs += product.wrong(*product.call(module, seed))
    assert wrongs.item() == 0
    check(group)


@pytest.mark.parametrize("name", KERNELS)
def test_a_graph_replayed_with_new_data(generated, group, name):
    module = generated(KERNELS[name], "reduce_scatter_1d", "c[M]", BACKEND)
    product = Product(group, 1000, 136, 96, torch.float16, on="c[M]")
    product.check(module, 0)
    captured = Captured(module, product)
    wrongs = []
    for seed in range(100):
        delay(seed, product.rank)
        wrongs.append(captured.replay(seed))
    assert not torch.stack(wrongs).any()
    check(group)


@pytest.mark.parametrize("plan", WAYS)
def test_ranks_of_different_speed(generated, group, plan, monkeypatch):
    """One rank's kernel begins late, so that what waits for its flags is there already and reads as soon as they are raised."""
    from overlap.runtime.launch import acts

    rank, kernel, turn = dist.get_rank(group), acts._kernel, [0]

    def late(now):
        if turn[0] % WORLD == rank:
            torch.cuda._sleep(50_000 * (1 + turn[0] % 7))
        kernel(now)

    monkeypatch.setattr(acts, "_kernel", late)
    module = generated(KERNELS["persistent_gemm"], plan, WAYS[plan], BACKEND)
    for seed in range(60):
        turn[0] = seed
        shape = SHAPES[(2, 4, 0)[seed % 3]]
        checked(Product(group, *shape, torch.bfloat16, on=WAYS[plan]), module, seed)
    check(group)


def summed(operator, sums, m, n, k, seed, **options):
    """An operator's call whose failure says what is wrong where."""
    if "poison" in ASKED:
        poison(sums.group)
    exact = piece(sums.total, 0, sums.rank) if operator is gemm_rs else sums.total
    magnitude = piece(sums.magnitude, 0, sums.rank) if operator is gemm_rs else sums.magnitude
    dtype = sums.x.dtype
    out = torch.full(exact.shape, float("nan"), device="cuda", dtype=dtype)
    operator(sums.x, sums.w, bias=sums.bias, group=sums.group, out=out, backend=BACKEND, **options)
    assert last_plan(operator.__name__).backend == BACKEND
    eps = torch.finfo(dtype).eps
    misses = ~((out.float() - exact).abs() <= eps * exact.abs() + eps * magnitude + 2**-20 * sums.depth)

    def partial(rank):
        return (
            random((m, k), 31 * seed + 2 * rank, dtype).float()
            @ random((k, n), 31 * seed + 2 * rank + 1, dtype).float()
        )

    agreed(sums.group, f"{operator.__name__} {(m, n, k)} {dtype} {seed} {options}", out, exact, misses, partial)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums(group, dtype):
    for m, n, k in ((8192, 4096, 14336 // WORLD), (2048, 1024, 512), (515, 264, 96), (129, 40, 64), (3, 64, 64)):
        for seed in range(2):
            sums = Sum(group, (m,), n, k, dtype, seed, bias=seed == 1)
            delay(seed, sums.rank)
            summed(gemm_rs, sums, m, n, k, seed, split=seed + 1)
            for plan in ("all_reduce_one_shot", "all_reduce_two_shot"):
                summed(gemm_ar, sums, m, n, k, seed, plan=plan)
    overlap.check(group)


def test_batches_and_inner_dimensions(group):
    for seed, (shape, dim) in enumerate((((3, 130), 1), ((515,), -1), ((5, 64), 0))):
        sums = Sum(group, shape, 264, 96, torch.bfloat16, seed, bias=True)
        delay(seed, sums.rank)
        assert not sums.check(gemm_rs, dim=dim, backend=BACKEND), (shape, dim)
    overlap.check(group)


def test_exchanges(group):
    rank = dist.get_rank(group)
    for seed, (shape, dim) in enumerate((((8192,), 0), ((2, 1030), 1), ((515,), 0))):
        for n, k in ((1024, 2048), (264, 96)):
            x, w = random((*shape, k), seed, torch.bfloat16), random((k, n), seed + 9, torch.bfloat16)
            whole, rows = x.float() @ w.float(), piece(x, dim, rank).clone()
            delay(seed, rank)
            options = {"gather_dim": dim, "gather_size": shape[dim], "backend": BACKEND, "group": group}
            y = gemm_a2a(rows, w, **options)
            scale = piece(whole, -1, rank).abs() + 1
            assert not wrong(y, piece(whole, -1, rank), scale, torch.bfloat16, k), (shape, n, k)
            assert last_plan("gemm_a2a").backend == BACKEND
    overlap.check(group)


def test_reserved_memory_is_enough(group, monkeypatch):
    from overlap.runtime.of_group import runtime_of

    overlap.reserve(group, max_tokens=512, hidden=256, dtype=torch.bfloat16, operator="gemm_rs", backend=BACKEND)
    monkeypatch.setattr(runtime_of(group), "symmetric", lambda *_, **__: pytest.fail("allocated after reserve"))
    for m in (512, 65, 1):
        sums = Sum(group, (m,), 256, 64, torch.bfloat16, m)
        assert not sums.check(gemm_rs, backend=BACKEND), m
    overlap.check(group)
