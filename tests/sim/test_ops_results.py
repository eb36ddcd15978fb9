"""`gemm_rs`, `gemm_ar`, `a2a_gemm` and `gemm_a2a` fused on simulated ranks, against fp64 sums of the ranks' products."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from overlap.chunkplan.region import shard_interval
from overlap.errors import RuntimeContractError, UsageError
from overlap.ops import a2a_gemm, ag_gemm_k, gemm_a2a, gemm_ar, gemm_rs, last_plan, measure, reserve
from overlap.sim import World
from overlap.sim.world import DEFAULT_SMS

pytestmark = pytest.mark.one_triton

HALF, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
EPSILON = {HALF: 2**-10, BF16: 2**-7, FP32: 2**-22}


@dataclass
class Case:
    """One call: ``lead`` are the dimensions of the whole result but the last, ``depth`` and ``columns`` the weight's.

    ``x``, ``weight``: how the operands lie in memory.
    """

    lead: tuple[int, ...]
    depth: int
    columns: int
    world: int = 2
    dim: int = 0
    dtype: torch.dtype = HALF
    bias: bool = False
    x: str = "plain"
    weight: str = "plain"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def moved(self) -> torch.dtype:
        return self.options.get("transport_dtype") or self.made

    @property
    def made(self) -> torch.dtype:
        return self.options.get("out_dtype") or self.dtype


SCATTERED = {
    "even rows by TMA": Case((128,), 64, 72),
    "ragged rows, bias": Case((131,), 64, 40, world=3, bias=True, weight="transposed"),
    "columns TMA cannot take": Case((67,), 32, 33, world=4, bias=True),
    "left operand TMA cannot take": Case((70,), 23, 48, x="strided", dtype=BF16),
    "strided weight": Case((70,), 24, 48, weight="skipping", dtype=BF16, world=3),
    "fp32": Case((37,), 24, 20, world=3, dtype=FP32),
    "rows of several dimensions": Case((8, 5), 24, 40, world=4, dtype=BF16),
    "uneven outer dimension": Case((7, 5), 24, 40, world=3, dtype=FP32),
    "uneven outer dimension by TMA": Case((7, 50), 16, 24, world=3, dtype=BF16),
    "inner dimension, batched": Case((2, 37), 24, 40, world=3, dim=1, bias=True),
    "inner dimension by TMA": Case((2, 101), 24, 40, world=3, dim=1, bias=True),
    "inner dimension from the end": Case((3, 8, 2), 16, 16, world=4, dim=-3),
    "columns": Case((33,), 16, 72, world=3, dim=-1, bias=True),
    "columns of several dimensions": Case((3, 9), 16, 22, world=4, dim=2, dtype=BF16),
    "fewer rows than ranks": Case((3,), 64, 64, world=4),
    "one of everything": Case((1,), 1, 1, world=4, dtype=FP32),
    "one rank": Case((33,), 16, 24, world=1, bias=True),
    "five ranks, stride 0": Case((66,), 32, 24, world=5, x="expanded"),
    "a wide result": Case((45,), 24, 40, world=3, bias=True, options={"out_dtype": FP32}),
    "a wide transport": Case((45,), 24, 40, world=3, bias=True, dtype=BF16, options={"transport_dtype": FP32}),
    "a narrow transport": Case((45,), 24, 40, world=3, options={"transport_dtype": BF16, "out_dtype": FP32}),
    "chunks of a piece": Case((90,), 16, 24, world=3, options={"split": 2}),
    "each turn its own chunks": Case((37,), 16, 24, world=4, options={"split": "1:3/1/2:1"}),
}


REDUCED = (
    "ragged rows, bias",
    "columns TMA cannot take",
    "fp32",
    "rows of several dimensions",
    "fewer rows than ranks",
    "one of everything",
    "one rank",
    "five ranks, stride 0",
    "a wide result",
    "a wide transport",
    "a narrow transport",
    "chunks of a piece",
)
"""Cases of `gemm_ar`, which knows no dimension."""


def operands(case: Case, generator: torch.Generator, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One rank's x and w, in memory as the case says."""
    x = torch.randn(*case.lead, depth, generator=generator).to(case.dtype)
    w = torch.randn(depth, case.columns, generator=generator).to(case.dtype)
    if case.x == "strided":
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    elif case.x == "expanded":
        x = x.narrow(0, 0, 1).expand(x.shape)
    if case.weight == "transposed":
        w = w.t().contiguous().t()
    elif case.weight == "skipping":
        w = torch.stack([w, w], dim=2).flatten(1)[:, ::2]
    return x, w


def summed(case: Case, operator, *, seed: int = 0, launches: int = 2, sms: int = DEFAULT_SMS):
    """Every rank's results of several calls in a row with new data, the fp64 sums, and what rounding may add to them."""
    generator = torch.Generator().manual_seed(seed)
    calls = []
    for _ in range(launches):
        # Ranks hold different parts of the depth.
        parts = [operands(case, generator, case.depth + rank) for rank in range(case.world)]
        bias = torch.randn(case.columns, generator=generator).to(case.dtype) if case.bias else None
        calls.append((parts, bias))

    def body(group):
        rank = group.overlap_runtime.rank
        results = [operator(*parts[rank], bias=bias, group=group, **case.options) for parts, bias in calls]
        group.overlap_runtime.synchronize()
        return results

    results = World(case.world, seed=seed, sms=sms).run(body)
    for i, (parts, bias) in enumerate(calls):
        partials = [x.double() @ w.double() for x, w in parts]
        wanted = sum(partials) + (bias.double() if bias is not None else 0)
        magnitude = sum(x.double().abs() @ w.double().abs() for x, w in parts) + 4
        largest = sum(p.abs() for p in partials) + 4
        depth = case.depth + case.world
        allowed = EPSILON[case.moved] * largest + EPSILON[case.made] * wanted.abs() + depth * 2**-24 * magnitude
        yield [results[rank][i] for rank in range(case.world)], wanted, allowed


def assert_near(case: Case, y: torch.Tensor, wanted: torch.Tensor, allowed: torch.Tensor) -> None:
    assert y.shape == wanted.shape and y.dtype == case.made and y.is_contiguous()
    assert bool(((y.double() - wanted).abs() <= allowed).all())  # NaN fails too


STORED = (
    "even rows by TMA",
    "ragged rows, bias",
    "columns TMA cannot take",
    "fp32",
    "inner dimension, batched",
    "columns",
    "fewer rows than ranks",
    "one rank",
    "a wide transport",
    "chunks of a piece",
)
"""Cases of the second way out, `ldst_inline`."""
STORED_BY_TMA = (
    "ragged rows, bias",
    "inner dimension by TMA",
    "fewer rows than ranks",
    "one rank",
    "chunks of a piece",
)
"""Cases of `tma_inline`, whose kernel has a descriptor of the result."""
BACKENDS_OF = [(name, "copy_engine") for name in SCATTERED] + [(name, "ldst_inline") for name in STORED]
BACKENDS_OF += [(name, "tma_inline") for name in STORED_BY_TMA]
IN_WORDS = (
    "ragged rows, bias",
    "columns TMA cannot take",
    "inner dimension by TMA",
    "columns",
    "fewer rows than ranks",
    "one rank",
    "a wide transport",
    "chunks of a piece",
)
"""Cases of `words_inline`, whose programs are all resident."""
BACKENDS_OF += [(name, "words_inline") for name in IN_WORDS]
BACKENDS_OF += [("ragged rows, bias", "collective"), ("ragged rows, bias", "nvshmem")]
RESIDENT = {"words_inline": 24}
"""By backend, the programs of a simulated rank that are resident, where it asks for more than others."""


@pytest.mark.parametrize(("name", "backend"), BACKENDS_OF)
def test_gemm_rs(name, backend):
    case = SCATTERED[name]

    def operator(x, w, **options):
        return gemm_rs(x, w, scatter_dim=case.dim, backend=backend, **options)

    for ys, wanted, allowed in summed(case, operator, seed=len(name), sms=RESIDENT.get(backend, DEFAULT_SMS)):
        for rank, y in enumerate(ys):
            low, high = shard_interval(wanted.shape[case.dim], case.world, rank)
            pieces = (t.narrow(case.dim, low, high - low) for t in (wanted, allowed))
            assert_near(case, y, *pieces)
    said = last_plan("gemm_rs")
    assert (said.backend, said.kind, said.world) == (backend, "reduce_scatter", case.world)
    assert said.shape == (*case.lead, case.columns) and said.dtype == str(case.moved)


REDUCED_BY = [
    (name, plan, "copy_engine") for name in REDUCED for plan in ("all_reduce_one_shot", "all_reduce_two_shot")
]
REDUCED_BY += [("rows of several dimensions", "all_reduce_one_shot", "tma_inline")]
REDUCED_BY += [("rows of several dimensions", None, "words_inline"), ("five ranks, stride 0", None, "words_inline")]
REDUCED_BY += [("five ranks, stride 0", "all_reduce_two_shot", "tma_inline")]
REDUCED_BY += [("fewer rows than ranks", "all_reduce_one_shot", "nvshmem")]
REDUCED_BY += [("fewer rows than ranks", None, "collective")]


@pytest.mark.parametrize(("name", "plan", "backend"), REDUCED_BY)
def test_gemm_ar(name, plan, backend):
    """Every rank gets the same bits."""
    case = SCATTERED[name]

    def operator(x, w, **options):
        return gemm_ar(x, w, plan=plan, backend=backend, **options)

    for ys, wanted, allowed in summed(case, operator, seed=len(name), sms=RESIDENT.get(backend, DEFAULT_SMS)):
        for y in ys:
            # In two steps the sum travels, rounded to the transport's dtype.
            assert_near(case, y, wanted, allowed + EPSILON[case.moved] * wanted.abs())
            assert torch.equal(y, ys[0])
    said = last_plan("gemm_ar")
    plan = "all_reduce_direct" if backend == "collective" else plan or "all_reduce_one_shot"
    assert (said.plan, said.backend, said.shape) == (plan, backend, (*case.lead, case.columns))


def test_the_plan_follows_the_bytes(monkeypatch):
    case = Case((20,), 16, 24)
    for limit, plan in ((959, "all_reduce_two_shot"), (961, "all_reduce_one_shot")):
        monkeypatch.setenv("OVERLAP_ONE_SHOT_BELOW_BYTES", str(limit))
        list(summed(case, gemm_ar, launches=1))
        assert last_plan("gemm_ar").plan == plan


@pytest.mark.parametrize("operator", [gemm_rs, gemm_ar])
def test_the_same_bits_whatever_the_order_of_events(operator):
    case = Case((40,), 48, 24, world=4, dtype=BF16)
    seen = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(0)
        parts = [operands(case, generator, case.depth) for _ in range(case.world)]

        def body(group, parts=parts):
            y = operator(*parts[group.overlap_runtime.rank], group=group, deterministic=True)
            group.overlap_runtime.synchronize()
            return y

        seen.append(World(case.world, seed=seed).run(body))
    assert all(torch.equal(a, b) for other in seen[1:] for a, b in zip(seen[0], other, strict=True))


def test_at_least_as_accurate_as_rounding_at_every_hop():
    """A ring in the dtype that travels, as NCCL reduces, against the same products."""
    case = Case((64,), 64, 48, world=4, dtype=BF16)
    generator = torch.Generator().manual_seed(2)
    parts = [operands(case, generator, case.depth) for _ in range(case.world)]

    def body(group):
        y = gemm_rs(*parts[group.overlap_runtime.rank], group=group)
        group.overlap_runtime.synchronize()
        return y

    ours = torch.cat(World(case.world).run(body)).double()
    partials = [(x.float() @ w.float()).bfloat16() for x, w in parts]
    ring = partials[0]
    for partial in partials[1:]:
        ring = ring + partial
    wanted = sum(x.double() @ w.double() for x, w in parts)
    once = sum(p.float() for p in partials).bfloat16().double()
    assert (ours - wanted).norm() <= (ring.double() - wanted).norm()
    # Each partial rounded once, all added in fp32, rounded once: nothing else is lost.
    assert (ours - wanted).norm() <= 1.01 * (once - wanted).norm()


def test_results_go_where_the_caller_says_and_nowhere_else():
    generator = torch.Generator().manual_seed(0)
    case = Case((20,), 16, 24)
    parts = [operands(case, generator, 16) for _ in range(2)]
    wanted = sum(x.float() @ w.float() for x, w in parts)

    def body(group):
        rank = group.overlap_runtime.rank
        memory = torch.full((14, 24), 7.0, dtype=HALF)
        y = gemm_rs(*parts[rank], out=memory[2:12], group=group)
        whole = torch.empty(20, 24)
        z = gemm_ar(*parts[rank], out=whole, group=group)
        group.overlap_runtime.synchronize()
        return y.data_ptr() == memory[2:12].data_ptr() and z is whole, memory, whole

    for rank, (same, memory, whole) in enumerate(World(2).run(body)):
        assert same and torch.allclose(memory[2:12].float(), wanted.chunk(2)[rank], atol=5e-2)
        assert bool((memory[:2] == 7).all()) and bool((memory[12:] == 7).all())
        torch.testing.assert_close(whole, wanted, rtol=1e-5, atol=1e-4)


def test_ranks_whose_operands_differ_take_part_in_one_protocol():
    """Depth, strides and alignment are a rank's own; rank 2 has nothing to add."""
    shapes = [(16, "plain"), (7, "strided"), (0, "plain")]
    generator = torch.Generator().manual_seed(0)
    parts = [operands(Case((48,), d, 24, x=x), generator, d) for d, x in shapes]
    wanted = sum(x.float() @ w.float() for x, w in parts)

    def body(group):
        rank = group.overlap_runtime.rank
        results = [gemm_rs(*parts[rank], group=group), gemm_ar(*parts[rank], group=group)]
        group.overlap_runtime.synchronize()
        return results

    for rank, (piece, whole) in enumerate(World(3).run(body)):
        assert torch.allclose(piece.float(), wanted.chunk(3)[rank], atol=5e-2)
        assert torch.allclose(whole.float(), wanted, atol=5e-2)


EXCHANGED = {
    "sequence of one batch": Case((64,), 48, 40),
    "[B, S, K]": Case((2, 36), 32, 48, world=4, dim=1, bias=True, options={"heads": 4}),
    "[S, B, K]": Case((36, 2), 32, 48, world=4, dim=0, bias=True, dtype=BF16, weight="transposed"),
    "[B, S, K] by TMA": Case((2, 200), 32, 48, dim=1, bias=True),
    "[B, S, K], uneven sequence": Case((2, 37), 24, 36, world=3, dim=1, bias=True),
    "[S, B, K], uneven sequence": Case((7, 3), 24, 36, world=3, dim=0, dtype=FP32),
    "uneven pieces of everything": Case((37,), 23, 29, world=4, bias=True),
    "fewer rows than ranks": Case((3,), 16, 24, world=4, bias=True),
    "fewer columns than ranks": Case((33,), 3, 3, world=4, dtype=FP32),
    "five ranks, a wide result": Case((45,), 40, 40, world=5, options={"out_dtype": FP32}),
    "one rank": Case((33,), 16, 24, world=1, bias=True),
    "strided": Case((32, 3), 24, 40, x="strided", weight="skipping", dtype=BF16),
    "chunks of a piece": Case((48,), 48, 48, world=2, options={"split": 2}),
    "uneven chunks": Case((50,), 24, 40, world=3, bias=True, options={"split": (1, 2, 1)}),
}


def exchanged(case: Case, call, *, seed: int, launches: int = 2, sms: int = DEFAULT_SMS):
    """Every rank's results of several calls beside the whole product; x and w are the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    calls = []
    for _ in range(launches):
        x, w = operands(case, generator, case.depth)
        bias = torch.randn(case.columns, generator=generator).to(case.dtype) if case.bias else None
        calls.append((x, w, bias))

    def body(group):
        results = [call(group, group.overlap_runtime.rank, x, w, bias) for x, w, bias in calls]
        group.overlap_runtime.synchronize()
        return results

    results = World(case.world, seed=seed, sms=sms).run(body)
    for i, (x, w, bias) in enumerate(calls):
        wanted = x.double() @ w.double() + (bias.double() if bias is not None else 0)
        magnitude = x.double().abs() @ w.double().abs() + 4
        allowed = (EPSILON[case.moved] + EPSILON[case.made]) * wanted.abs() + case.depth * 2**-24 * magnitude
        for rank in range(case.world):
            yield rank, results[rank][i], wanted, allowed


def piece(case: Case, whole: torch.Tensor, dim: int, rank: int) -> torch.Tensor:
    low, high = shard_interval(whole.shape[dim], case.world, rank)
    return whole.narrow(dim, low, high - low)


@pytest.mark.parametrize("name", EXCHANGED)
def test_a2a_gemm(name):
    case = EXCHANGED[name]

    def call(group, rank, x, w, bias):
        held = piece(case, x, -1, rank)
        return a2a_gemm(held, w, bias=bias, scatter_dim=case.dim, group=group, **case.options)

    for rank, y, wanted, allowed in exchanged(case, call, seed=len(name)):
        assert_near(case, y, piece(case, wanted, case.dim, rank), piece(case, allowed, case.dim, rank))
    said = last_plan("a2a_gemm")
    assert (said.backend, said.kind, said.shape) == ("copy_engine", "all_to_all", (*case.lead, case.depth))


EXCHANGED_BY = [(name, "copy_engine") for name in EXCHANGED]
EXCHANGED_BY += [(name, "tma_inline") for name in ("[B, S, K] by TMA", "fewer rows than ranks", "chunks of a piece")]
EXCHANGED_BY += [(name, "words_inline") for name in ("[B, S, K] by TMA", "fewer rows than ranks")]
EXCHANGED_BY += [("fewer rows than ranks", name) for name in ("collective", "nvshmem")]


@pytest.mark.parametrize(("name", "backend"), EXCHANGED_BY)
def test_gemm_a2a(name, backend):
    case = EXCHANGED[name]

    def call(group, rank, x, w, bias):
        held, size = piece(case, x, case.dim, rank), x.shape[case.dim]
        options = {"gather_dim": case.dim, "gather_size": size, "backend": backend, "group": group}
        return gemm_a2a(held, w, bias=bias, **options, **case.options)

    for rank, y, wanted, allowed in exchanged(case, call, seed=len(name), sms=RESIDENT.get(backend, DEFAULT_SMS)):
        assert_near(case, y, piece(case, wanted, -1, rank), piece(case, allowed, -1, rank))
    said = last_plan("gemm_a2a")
    assert (said.backend, said.kind, said.shape) == (backend, "all_to_all", (*case.lead, case.columns))


@pytest.mark.parametrize("operator", [gemm_rs, gemm_ar, gemm_a2a], ids=lambda f: f.__name__)
def test_what_tma_cannot_store_is_refused(operator):
    """Rows that are no multiple of 16 bytes, and 32-bit operands; `ldst_inline` takes them."""
    for columns, dtype in ((33, HALF), (32, FP32)):

        def body(group, columns=columns, dtype=dtype):
            operator(
                torch.ones(4, 8, dtype=dtype), torch.ones(8, columns, dtype=dtype), backend="tma_inline", group=group
            )

        with pytest.raises(
            UsageError, match="tma_inline is impossible here: TMA stores 16-bit products .* ldst_inline"
        ):
            World(2).run(body)


@pytest.mark.parametrize("name", EXCHANGED)
def test_ag_gemm_k(name):
    case = EXCHANGED[name]
    plan = "all_gather_1d_push" if case.bias else "all_gather_1d"
    options = {key: value for key, value in case.options.items() if key != "heads"}

    def call(group, rank, x, w, bias):
        return ag_gemm_k(piece(case, x, -1, rank), w, bias=bias, group=group, plan=plan, **options)

    for _, y, wanted, allowed in exchanged(case, call, seed=len(name)):
        assert_near(case, y, wanted, allowed)
    said = last_plan("ag_gemm_k")
    assert (said.backend, said.kind, said.shape) == ("copy_engine", "gather", (*case.lead, case.depth))


def test_what_is_exchanged_arrives_bit_for_bit():
    """The same kernel on one rank gives the same bits: -0.0, subnormals, infinities and what is not a number among them."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(32, 16, generator=generator).half(), torch.randn(16, 16, generator=generator).half()
    x[3, 5], x[9, 1], x[20] = float("inf"), float("nan"), -6e-8
    x[7], w[:, 4] = 0.0, -0.0

    def ranks(world: int):
        def body(group):
            rank = group.overlap_runtime.rank
            y = gemm_a2a(x.chunk(world)[rank].clone(), w, group=group)
            z = a2a_gemm(x.chunk(world, 1)[rank].clone(), w, group=group)
            group.overlap_runtime.synchronize()
            return y, z

        columns, rows = zip(*World(world).run(body), strict=True)
        return torch.cat(columns, 1).view(torch.int16), torch.cat(rows).view(torch.int16)

    alone, exchanged = ranks(1), ranks(4)
    assert bool(alone[0].view(HALF).isnan().any()) and bool(alone[0].view(HALF).isinf().any())
    assert all(torch.equal(a, b) for a, b in zip(alone, exchanged, strict=True))


CHAIN = {
    "gemm_rs": (lambda x, held, w, **o: gemm_rs(x, w, **o), 24),
    "gemm_ar": (lambda x, held, w, **o: gemm_ar(x, w, **o), 24),
    "a2a_gemm": (lambda x, held, w, **o: a2a_gemm(held, w, **o), 16),
    "gemm_a2a": (lambda x, held, w, **o: gemm_a2a(x, w, **o), 24),
    "ag_gemm_k": (lambda x, held, w, **o: ag_gemm_k(held, w, **o), 16),
}


@pytest.mark.parametrize(("name", "backend"), [*((name, "copy_engine") for name in CHAIN), ("gemm_rs", "tma_inline")])
def test_reserved_memory_is_enough_and_all_there_will_be(name, backend):
    call, hidden = CHAIN[name]
    x, w = torch.randn(20, 16, dtype=HALF), torch.randn(16, 24, dtype=HALF)

    def body(group):
        runtime = group.overlap_runtime
        held = x.chunk(2, 1)[runtime.rank].clone()
        reserve(group, max_tokens=40, hidden=hidden, dtype=HALF, operator=name, backend=backend)
        made = []
        runtime.symmetric = lambda *words, **options: made.append(words)
        options = {"group": group, "backend": backend}
        results = [call(x, held, w, **options), call(x[:7], held[:7], w, **options)]
        runtime.synchronize()
        with pytest.raises(RuntimeContractError, match="reserved are"):
            call(x.repeat(3, 1), held.repeat(3, 1), w, **options)
        return made, [y.isfinite().all() for y in results]

    for made, finite in World(2).run(body):
        assert not made and all(finite)


@pytest.mark.parametrize("name", CHAIN)
def test_exposed_time_is_measured_on_request(name, monkeypatch):
    """Both sides of the measurement run; the clock is not simulated."""
    x, w = torch.randn(20, 16, dtype=HALF), torch.randn(16, 24, dtype=HALF)
    timed = []

    def clock(run, iterations):
        run()
        timed.append(run.__name__)
        return 2.5 if run.__name__ == "alone" else 3.0

    monkeypatch.setattr("overlap.api.measure.median_ms", clock)

    def body(group):
        held = x.chunk(2, 1)[group.overlap_runtime.rank].clone()
        said = measure(held if name in ("a2a_gemm", "ag_gemm_k") else x, w, operator=name, group=group)
        group.overlap_runtime.synchronize()
        return said

    for said in World(2).run(body):
        assert (said.operator, said.exposed_ms, said.backend) == (name, 0.5, "copy_engine")
    assert timed.count("alone") == 2 and len(timed) == 4


def test_operators_chained_on_one_group():
    """Each passes its result on to the next, several times over, with nothing but the group between them."""
    generator = torch.Generator().manual_seed(0)
    world, rows = 3, 12
    x = torch.randn(rows, 24, generator=generator).to(BF16)
    weights = [(torch.randn(24, 24, generator=generator) / 5).to(BF16) for _ in range(4)]

    def body(group):
        rank = group.overlap_runtime.rank
        results = []
        for _ in range(3):
            y = gemm_a2a(x.chunk(world)[rank].clone(), weights[0], group=group)  # all rows, own columns
            y = a2a_gemm(y, weights[1], group=group)  # own rows
            y = gemm_a2a(y, weights[2], group=group)
            results.append(gemm_rs(y, weights[3].chunk(world)[rank], group=group))
            results.append(gemm_ar(y, weights[3].chunk(world)[rank], group=group))
        group.overlap_runtime.synchronize()
        return results

    wanted = x.double()
    for w in weights:
        wanted = wanted @ w.double()
    for rank, results in enumerate(World(world).run(body)):
        for piece_of, whole in zip(results[::2], results[1::2], strict=True):
            assert (whole.double() - wanted).norm() <= 2e-2 * wanted.norm()
            assert (piece_of.double() - wanted.chunk(world)[rank]).norm() <= 2e-2 * wanted.norm()
            assert torch.equal(piece_of, results[0]) and torch.equal(whole, results[1])


def test_a_simulated_group_has_no_collectives():
    for call in (gemm_rs, gemm_ar, gemm_a2a):
        with pytest.raises(UsageError, match="no collectives"):
            World(2).run(
                lambda group, call=call: call(torch.randn(4, 8), torch.randn(8, 8), group=group, backend="serial")
            )
        with pytest.raises(UsageError, match="no kernel for torch.float64"):
            World(2).run(
                lambda group, call=call: call(torch.ones(4, 8).double(), torch.ones(8, 8).double(), group=group)
            )


def test_ranks_that_ask_for_different_results_are_told():
    def body(group):
        rows = 8 + 8 * group.overlap_runtime.rank
        return gemm_rs(torch.randn(rows, 8), torch.randn(8, 8), group=group)

    with pytest.raises(RuntimeContractError, match="differently: shape"):
        World(2).run(body)
