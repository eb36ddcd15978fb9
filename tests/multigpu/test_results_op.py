"""`gemm_rs`, `gemm_ar`, `a2a_gemm`, `gemm_a2a` and `ag_gemm_k` on real ranks, against fp32 sums of the ranks' products.

Every rank can make every rank's operands from seeds; results are poisoned before each call.
"""

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.chunkplan.region import shard_interval
from overlap.ops import a2a_gemm, ag_gemm_k, gemm_a2a, gemm_ar, gemm_rs, last_plan, measure
from overlap.runtime.of_group import runtime_of
from tests.support.operands import nothing, poisoned, random, rehearsed
from tests.support.ranks import delay
from tests.support.rehearsal import of_tests

from .conftest import WORLD

SHAPES = [
    (8192, 4096, 14336),
    (2048, 8192, 28672),
    (1000, 136, 384),
    (4091, 257, 1000),
    (512, 4096, 4096),
    (3, 64, 64),
    (1, 1, 8),
]
"""Global M, N, K; every rank has K / ranks of K where that divides, else K."""

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
FUSED = "copy_engine"
PLANS = {gemm_rs: ["reduce_scatter_1d"], gemm_ar: ["all_reduce_one_shot", "all_reduce_two_shot"]}


pytestmark = pytest.mark.usefixtures("one_folder")


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    yield from of_tests(test_every_shape, test_options, parts=8)
    yield from of_tests(test_sums_are_the_same_bits_on_every_rank_and_in_every_run, test_at_least_as_accurate_as_nccl)
    yield from of_tests(test_exchanges_and_gathers_along_k, parts=16)
    yield from of_tests(test_a_graph_replayed_with_new_data_after_reserve, test_chained_on_one_group)


def wrong(y, wanted, magnitude, moved, depth):
    """Whether y misses the sum by more than the rounding of the partials, the result and fp32 sums; on the device."""
    if rehearsed():
        return nothing()
    allowed = torch.finfo(y.dtype).eps * wanted.abs() + torch.finfo(moved).eps * magnitude + 2**-20 * depth
    return ~((y.float() - wanted).abs() <= allowed).all()


def piece(whole, dim, rank):
    low, high = shard_interval(whole.shape[dim], WORLD, rank)
    return whole.narrow(dim, low, high - low)


class Sum:
    """Operands of every rank's partial product, and the fp32 sum of all of them."""

    def __init__(self, group, shape, columns, depth, dtype, seed, bias=False):
        self.group, self.rank = group, group.rank()
        operands = [
            (random((*shape, depth), 31 * seed + 2 * r, dtype), random((depth, columns), 31 * seed + 2 * r + 1, dtype))
            for r in range(WORLD)
        ]
        self.x, self.w = operands[self.rank]
        self.bias = random((columns,), seed, dtype) if bias else None
        self.depth = WORLD * depth
        self.total = self.magnitude = poisoned((*shape, columns), torch.float32)
        if rehearsed():
            return
        partials = (x.float() @ w.float() for x, w in operands)
        self.total = torch.zeros_like(self.total)
        self.magnitude = torch.ones_like(self.total)
        for partial in partials:
            self.total += partial
            self.magnitude += partial.abs()
        if self.bias is not None:
            self.total += self.bias.float()
            self.magnitude += self.bias.float().abs()

    def check(self, operator, *, dim=0, **options):
        """Calls an operator on a poisoned result; whether that was wrong."""
        scattered = operator is gemm_rs
        cut = (lambda t: piece(t, dim, self.rank)) if scattered else (lambda t: t)
        options = {"backend": FUSED, "out_dtype": self.x.dtype, **options}
        out = poisoned(cut(self.total).shape, options.pop("out_dtype"))
        if scattered:
            options["scatter_dim"] = dim
        y = operator(self.x, self.w, bias=self.bias, group=self.group, out=out, **options)
        assert y is out and last_plan(operator.__name__).backend == options["backend"]
        moved = options.get("transport_dtype", out.dtype)
        return wrong(out, cut(self.total), cut(self.magnitude), moved, self.depth)


@pytest.mark.parametrize("operator", [gemm_rs, gemm_ar], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_every_shape(group, dtype, operator):
    for m, n, k in SHAPES:
        depth = k // WORLD if k % WORLD == 0 else k
        for seed, plan in enumerate(PLANS[operator] * 2):
            sums = Sum(group, (m,), n, depth, dtype, seed, bias=seed % 2 == 1)
            delay(seed, sums.rank)
            assert not sums.check(operator, plan=plan), f"{(m, n, k)} {dtype} {plan}, call {seed}, rank {sums.rank}"
    overlap.check(group)


@pytest.mark.parametrize(
    "options",
    [
        {"out_dtype": torch.float32},
        {"transport_dtype": torch.float32},
        {"transport_dtype": torch.bfloat16, "out_dtype": torch.float32},
        {"split": 2},
        {"backend": "ldst_inline"},
        {"backend": "serial", "deterministic": True},
    ],
    ids=str,
)
def test_options(group, options):
    if rehearsed() and options.get("backend") == "serial":
        return
    for seed in range(4):
        for shape, dim in (((515,), 0), ((515,), -1), ((3, 130), 1), ((129, 3), 0)):
            sums = Sum(group, shape, 264, 96, torch.bfloat16, seed, bias=True)
            delay(seed, sums.rank)
            assert not sums.check(gemm_rs, dim=dim, **options), (shape, dim, seed)
            assert not sums.check(gemm_ar, **options), (shape, seed)
    overlap.check(group)


def test_sums_are_the_same_bits_on_every_rank_and_in_every_run(group):
    sums = Sum(group, (515,), 264, 96, torch.bfloat16, 0)
    for plan in PLANS[gemm_ar]:
        seen = []
        for seed in range(20):
            delay(seed, sums.rank)
            seen.append(gemm_ar(sums.x, sums.w, plan=plan, backend=FUSED, deterministic=True, group=group))
        if rehearsed():
            continue
        assert all(torch.equal(seen[0], y) for y in seen[1:])
        told = [torch.empty_like(seen[0]) for _ in range(WORLD)]
        dist.all_gather(told, seen[0])
        assert all(torch.equal(told[0], y) for y in told)
    overlap.check(group)


def test_at_least_as_accurate_as_nccl(group):
    for m, n, k in ((2048, 4096, 14336), (512, 1000, 384)):
        sums = Sum(group, (m,), n, k // WORLD, torch.bfloat16, 3)
        ours = gemm_rs(sums.x, sums.w, backend=FUSED, group=group)
        if rehearsed():
            continue
        nccl = gemm_rs(sums.x, sums.w, backend="serial", group=group)
        wanted = piece(sums.total, 0, sums.rank)
        errors = [float((y.float() - wanted).norm() / wanted.norm()) for y in (ours, nccl)]
        assert errors[0] <= 1.02 * errors[1], errors
    overlap.check(group)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_exchanges_and_gathers_along_k(group, dtype):
    for shape, dims in (((8192,), [0]), ((2, 1030), [1]), ((1030, 2), [0]), ((33,), [0]), ((3,), [0]), ((1,), [0])):
        for n, k in ((4096, 2048), (257, 999), (64, 24)):
            for seed in range(2):
                x, w, bias = (
                    random((*shape, k), seed, dtype),
                    random((k, n), seed + 9, dtype),
                    random((n,), seed, dtype),
                )
                whole = poisoned((*shape, n), torch.float32) if rehearsed() else x.float() @ w.float() + bias.float()
                scale, rank = whole.abs() + 1, group.rank()
                held = piece(x, -1, rank).clone()
                options = {"bias": bias, "group": group, "backend": FUSED}
                results = [(ag_gemm_k(held, w, **options), whole, scale)]
                for dim in dims:
                    delay(seed, rank)
                    y = a2a_gemm(held, w, scatter_dim=dim, **options)
                    results.append((y, piece(whole, dim, rank), piece(scale, dim, rank)))
                    rows = piece(x, dim, rank).clone()
                    y = gemm_a2a(rows, w, gather_dim=dim, gather_size=shape[dim], **options)
                    results.append((y, piece(whole, -1, rank), piece(scale, -1, rank)))
                for number, (y, wanted, magnitude) in enumerate(results):
                    assert not wrong(y, wanted, magnitude, dtype, k), (shape, n, k, seed, number)
    overlap.check(group)


CALLS = {
    "gemm_rs": lambda x, held, w, **o: gemm_rs(x, w, **o),
    "gemm_ar": lambda x, held, w, **o: gemm_ar(x, w, **o),
    "a2a_gemm": lambda x, held, w, **o: a2a_gemm(held, w, **o),
    "gemm_a2a": lambda x, held, w, **o: gemm_a2a(x, w, **o),
    "ag_gemm_k": lambda x, held, w, **o: ag_gemm_k(held, w, **o),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_replayed_with_new_data_after_reserve(group, name, monkeypatch):
    call, k, n = CALLS[name], 128 * WORLD, 64 * WORLD
    hidden = k if name in ("a2a_gemm", "ag_gemm_k") else n
    overlap.reserve(group, max_tokens=256 * WORLD, hidden=hidden, dtype=torch.bfloat16, operator=name)
    monkeypatch.setattr(runtime_of(group), "symmetric", lambda *_, **__: pytest.fail("allocated after reserve"))
    rank = group.rank()
    x, held, w = (poisoned(s, torch.bfloat16) for s in ((256, k), (256, k // WORLD), (k, n)))

    def fill(seed):
        for number, tensor in enumerate((x, held, w)):
            tensor.copy_(random(tensor.shape, 100 * seed + 10 * number + rank, torch.bfloat16))

    fill(0)
    call(x, held, w, group=group, backend=FUSED)
    if rehearsed():
        return
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(x, held, w, group=group, backend=FUSED)
    different = []
    for seed in range(1, 101):
        fill(seed)
        eager = call(x, held, w, group=group, backend=FUSED)
        result.fill_(float("nan"))
        delay(seed, rank)
        graph.replay()
        different.append((result != eager).any())
    assert not torch.stack(different).any()
    overlap.check(group)


def test_chained_on_one_group(group):
    """Operators that feed each other, 200 times over with random delays, give the same bits every time."""
    rank, rows, width = group.rank(), 64 * WORLD, 32 * WORLD
    x = random((rows, width), 1, torch.bfloat16)
    weights = [random((width, width), 2 + i, torch.bfloat16) / 8 for i in range(4)]
    first = None
    different = []
    for seed in range(200):
        delay(seed, rank)
        y = gemm_a2a(piece(x, 0, rank), weights[0], group=group, backend=FUSED)
        y = a2a_gemm(y, weights[1], group=group, backend=FUSED)
        y = gemm_a2a(y, weights[2], group=group, backend=FUSED)
        results = [op(y, piece(weights[3], 0, rank), group=group, backend=FUSED) for op in (gemm_rs, gemm_ar)]
        if rehearsed():
            return
        first = first or results
        different += [(a != b).any() for a, b in zip(first, results, strict=True)]
    assert not torch.stack(different).any()
    wanted = x.float()
    for w in weights:
        wanted = wanted @ w.float()
    assert (first[1].float() - wanted).norm() <= 2e-2 * wanted.norm()
    assert (first[0].float() - piece(wanted, 0, rank)).norm() <= 2e-2 * wanted.norm()
    overlap.check(group)


def test_under_torch_compile(group):
    sums = Sum(group, (512,), 256, 128, torch.bfloat16, 0)

    def step(x, w):
        return torch.nn.functional.silu(gemm_rs(x, w, group=group, backend=FUSED)) * 2

    torch.testing.assert_close(
        torch.compile(step, fullgraph=True)(sums.x, sums.w), step(sums.x, sums.w), rtol=2e-2, atol=2e-1
    )
    overlap.check(group)


def test_serial_where_it_is_chosen(group):
    small = Sum(group, (8,), 64, 64, torch.bfloat16, 0)
    assert not small.check(gemm_rs, backend="serial") and last_plan("gemm_rs").why_serial == "asked for"
    gemm_ar(small.x, small.w, group=group)
    assert "serial_below_bytes" in last_plan("gemm_ar").why_serial


@pytest.mark.parametrize("name", CALLS)
def test_exposed_time_on_request(group, name):
    rank = group.rank()
    x, w = random((2048, 1024), 1 + rank, torch.bfloat16), random((1024, 1024), 2, torch.bfloat16)
    held = piece(x, 1, rank).clone() if name in ("a2a_gemm", "ag_gemm_k") else x
    said = measure(held, w, operator=name, group=group, backend=FUSED, iterations=5)
    assert said == last_plan(name) and 0 <= said.exposed_ms < 100
    overlap.check(group)
