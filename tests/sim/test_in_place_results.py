"""Exchanged results whose own piece tiles store in the call's result, on simulated ranks: where, and the same bits as ever."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from overlap.annotate.source import SourceUnit
from overlap.chunkplan.mesh import parse_mesh
from overlap.chunkplan.region import shard_interval
from overlap.codegen.module_io import load_module
from overlap.errors import RuntimeContractError
from overlap.ops import gemm_a2a, gemm_rs
from overlap.pipeline import Request, compile_source
from overlap.runtime.launch import in_place
from overlap.schedule import steps as st
from overlap.sim import World, check_module

pytestmark = pytest.mark.one_triton

HALF, FP32 = torch.float16, torch.float32
BLOCK = 64
"""Columns of a tile of small products of 16 bits."""


@pytest.fixture
def placed(monkeypatch):
    """Ranks whose launches, each of its own, were given what stays of a result to store where it goes."""
    ranks = []
    made = in_place._results_part

    def watched(instance, *more):
        found = made(instance, *more)
        if found is not None:
            ranks.append(instance.runtime.rank)
        return found

    monkeypatch.setattr(in_place, "_results_part", watched)
    return ranks


def operands(world, shape, calls=1):
    rows, columns, depth = shape
    generator = torch.Generator().manual_seed(world)
    xs = [torch.randn(rows, depth, generator=generator).to(HALF) for _ in range(calls)]
    return xs, [torch.randn(depth, columns, generator=generator).to(HALF) for _ in range(calls)]


def called(world, shape, *, calls=1, seed=0, outs=None, biases=None, **options):
    """Results by rank and call; results that are given are full of what is no number."""
    xs, ws = operands(world, shape, calls)
    rows, pieces = shape[0], [shard_interval(shape[1], world, rank) for rank in range(world)]

    def body(group):
        rank = group.overlap_runtime.rank
        mine = slice(*shard_interval(rows, world, rank))
        found = []
        for call, (x, w) in enumerate(zip(xs, ws, strict=True)):
            given = {} if outs is None else {"out": outs(rows, pieces[rank][1] - pieces[rank][0]).fill_(float("nan"))}
            bias = None if biases is None else biases[call]
            how = {"backend": "copy_engine", "gather_size": rows, "group": group, **given, **options}
            found.append(gemm_a2a(x[mine].clone(), w, bias=bias, **how))
        group.overlap_runtime.synchronize()
        return [y.clone() for y in found]

    return World(world, seed=seed).run(body)


def whole_tiles(world, columns, block=BLOCK):
    """Ranks all of whose own columns are in tiles that have no other."""
    edges = [shard_interval(columns, world, rank) for rank in range(world)]
    return [r for r, (lo, hi) in enumerate(edges) if lo < hi and lo % block == 0 and (hi % block == 0 or hi == columns)]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("even", [True, False], ids=["even", "ragged"])
def test_the_same_bits_as_by_the_partial(world, even, placed, monkeypatch):
    """In parts, with early sums, with shapes of which some ranks have nothing, and those that cut tiles."""
    shape = (13 * world + 2, BLOCK * world if even else BLOCK * world + 40, 24)
    monkeypatch.setenv("OVERLAP_SUM_SMS", str(world % 2))
    for split, rows in ((world % 3 + 1, shape[0]), (2, shape[0]), (2, world - 1))[: 3 if even else 1]:
        found = {}
        for taken in ("1", "0"):
            placed.clear()
            monkeypatch.setenv("OVERLAP_IN_PLACE", taken)
            found[taken] = called(world, (rows, *shape[1:]), split=split, calls=2, seed=split)
            expected = [rank for rank in whole_tiles(world, shape[1]) if len(range(*shard_interval(rows, world, rank)))]
            assert sorted(set(placed)) == (expected if taken == "1" else [])
        (xs, ws) = operands(world, (rows, *shape[1:]), 2)
        for rank, call in product(range(world), range(2)):
            y, other = found["1"][rank][call], found["0"][rank][call]
            wanted = (xs[call].double() @ ws[call].double())[:, slice(*shard_interval(shape[1], world, rank))]
            assert torch.equal(y, other) and torch.allclose(y.double(), wanted, atol=2e-2, rtol=2e-3)


@pytest.mark.parametrize(
    ("options", "goes"),
    [
        ({"transport_dtype": torch.bfloat16}, False),
        ({"out_dtype": FP32, "transport_dtype": HALF}, False),
        ({}, True),
    ],
    ids=str,
)
def test_what_travels_in_another_type_than_the_result_goes_by_the_partial(options, goes, placed, monkeypatch):
    world, shape = 2, (40, 4 * BLOCK, 16)
    biases = [torch.randn(shape[1]).half()]
    here = called(world, shape, biases=biases, **options)
    assert bool(placed) == goes
    monkeypatch.setenv("OVERLAP_IN_PLACE", "0")
    for got, other in zip(here, called(world, shape, biases=biases, **options), strict=True):
        assert all(map(torch.equal, got, other))


def test_calls_that_repeat_store_in_results_of_their_own(placed, monkeypatch):
    """The first call is looked up; those behind it find the descriptor's place in what they carry, given or made."""
    world, shape, calls = 2, (40, 2 * BLOCK, 16), 4
    for outs in (None, lambda rows, columns: torch.empty(rows, columns, dtype=HALF)):
        placed.clear()
        here = called(world, shape, calls=calls, outs=outs)
        assert sorted(placed) == list(range(world)), "later calls repeat the first"
        monkeypatch.setenv("OVERLAP_IN_PLACE", "0")
        for got, other in zip(here, called(world, shape, calls=calls, outs=outs), strict=True):
            assert all(map(torch.equal, got, other))
        monkeypatch.delenv("OVERLAP_IN_PLACE")


def test_a_result_in_memory_of_an_operand_goes_by_the_partial(placed, monkeypatch):
    """On one rank, where the kernel would store what it has not read yet."""
    monkeypatch.setenv("OVERLAP_TILE_SUMS", "0")
    world, size = 1, BLOCK
    x, w = torch.randn(size, size).half(), torch.randn(size, size).half()

    def body(group):
        both = x.clone()
        y = gemm_rs(both, w, group=group, backend="copy_engine")
        alone = sorted(placed)
        placed.clear()
        group.overlap_runtime.synchronize()
        return y.clone(), alone

    ((y, alone),) = World(world).run(body)
    assert alone == [0] and torch.allclose(y.double(), x.double() @ w.double(), atol=5e-2)


# host functions


SHAPE = {"M": 130, "N": 192, "K": 40}


@pytest.fixture
def made(repo, tmp_path, monkeypatch):
    """Compiles a kernel with descriptors of its host, of blocks of 32 x 32, whose result is communicated."""
    monkeypatch.chdir(repo)

    def make(plan="all_to_all_1d", on="c[M:N]", **more):
        source = SourceUnit.from_file(repo / "tests" / "kernels" / "host_descriptors.py")
        path = tmp_path / "made.py"
        path.write_text(compile_source(Request(source, plan, on, **more)).module.text)
        return path

    return make


@pytest.fixture
def module(made):
    return made()


def check(path, world=3, **options):
    return check_module(str(path), **{"world": world, "shape": SHAPE, "dtype": "fp16", "seeds": range(2), **options})


@pytest.mark.parametrize("world", [1, 2, 3])
def test_generated_host_functions(module, world, placed):
    for shape in (SHAPE, {**SHAPE, "N": 200}):
        placed.clear()
        report = check(module, world, shape=shape)
        assert report.ok, str(report)
        assert sorted(set(placed)) == whole_tiles(world, shape["N"], 32)


def padded(rows, columns):
    return torch.empty(rows + 1, columns + 8, dtype=HALF)[1:, :columns]


def unaligned(rows, columns):
    return torch.empty(rows, columns + 3, dtype=HALF)[:, :columns]


def shifted(rows, columns):
    return torch.empty(rows * columns + 1, dtype=HALF)[1:].view(rows, columns)


def transposed(rows, columns):
    return torch.empty(columns, rows, dtype=HALF).t()


def wider(rows, columns):
    return torch.empty(rows, columns, dtype=FP32)


OUTS = {padded: True, unaligned: False, shifted: False, transposed: False, wider: False}


@pytest.mark.parametrize("out", OUTS, ids=lambda out: out.__name__)
def test_results_that_tma_can_store_are_stored_in_place_all_others_as_ever(module, out, placed, monkeypatch):
    """Of any strides and dtype, as host functions take them."""
    world, (m, n, k) = 3, (40, 192, 16)
    matmul, (xs, ws) = load_module(str(module)).matmul, operands(world, (m, n, k), 2)
    sizes = {"M": m, "N": n, "K": k}

    def body(group):
        rank, found = group.overlap_runtime.rank, []
        mine, columns = (slice(*shard_interval(extent, world, rank)) for extent in (m, n))
        for x, w in zip(xs, ws, strict=True):
            given = out(m, columns.stop - columns.start).fill_(float("nan"))
            found.append(matmul(x[mine].clone(), w, group=group, sizes=sizes, out=given))
        group.overlap_runtime.synchronize()
        return [y.clone() for y in found]

    here = World(world).run(body)
    assert sorted(set(placed)) == (list(range(world)) if OUTS[out] else [])
    monkeypatch.setenv("OVERLAP_IN_PLACE", "0")
    for got, other in zip(here, World(world).run(body), strict=True):
        assert all(map(torch.equal, got, other)) and not any(bool(y.isnan().any()) for y in got)


@pytest.mark.parametrize(
    ("plan", "more", "world"),
    [
        ("all_to_all_1d_push", {}, 3),
        ("all_to_all_2d", {"world": 4, "mesh": parse_mesh("2x2"), "settings": {"split": "2"}}, 4),
    ],
    ids=["push", "two levels"],
)
def test_other_exchanges(made, plan, more, world, placed):
    report = check(made(plan, **more), world, shape={**SHAPE, "N": 32 * world}, seeds=[0])
    assert report.ok, str(report)
    assert sorted(set(placed)) == list(range(world))


@pytest.mark.parametrize("world", [1, 2])
def test_of_a_sum_nothing_stays_but_on_one_rank(made, world, placed):
    report = check(made("reduce_scatter_1d", "c[M]"), world, seeds=[0])
    assert report.ok, str(report)
    assert sorted(set(placed)) == ([0] if world == 1 else [])


def test_out_in_memory_of_an_argument_goes_by_the_partial(module, placed):
    m = n = k = 64
    made = load_module(str(module))
    whole = torch.randn(m, k).half()

    def body(group):
        x, w = whole.clone(), torch.eye(k, n).half()
        made.matmul(x, w, group=group, out=x)
        group.overlap_runtime.synchronize()
        return x

    (y,) = World(1).run(body)
    assert not placed and torch.equal(y, whole)


def test_out_in_memory_of_an_argument_is_refused_where_it_is_written_while_the_kernel_runs(made, monkeypatch):
    """Behind the kernel it may be: sums of two parts, the first of them early."""
    m, n, k = 128, 128, 64
    matmul = load_module(str(made(settings={"split": "2"}))).matmul
    (x,), (w,) = operands(2, (m, n, k))

    def body(group):
        rank = group.overlap_runtime.rank
        memory = torch.zeros(m, n // 2, dtype=HALF)
        mine = memory[: m // 2].copy_(x.chunk(2)[rank])
        matmul(mine, w, group=group, sizes={"M": m, "N": n, "K": k}, out=memory)
        group.overlap_runtime.synchronize()
        return memory

    wanted = (x.double() @ w.double()).chunk(2, 1)
    for rank, y in enumerate(World(2).run(body)):
        assert torch.allclose(y.double(), wanted[rank], atol=2e-2, rtol=2e-3)
    monkeypatch.setenv("OVERLAP_SUM_SMS", "1")
    with pytest.raises(RuntimeContractError, match="out lies in the memory of `a_desc`"):
        World(2).run(body)


# mutations


def without_own_piece(rank, steps):
    """As though tiles stored what stays in the result."""
    return tuple(
        replace(step, pieces=tuple(p for p in step.pieces if p.summands != (None,)))
        if isinstance(step, st.Sum)
        else step
        for step in steps
    )


def with_own_piece(rank, steps):
    """What stays is copied from the partial, though no tile stores it there."""
    placed = [piece for step in steps if isinstance(step, st.Kernel) for piece in step.placed]
    assert placed
    return tuple(replace(step, pieces=(*placed, *step.pieces)) if isinstance(step, st.Sum) else step for step in steps)


def test_a_piece_that_nobody_stores_is_missed(module, monkeypatch):
    monkeypatch.setenv("OVERLAP_IN_PLACE", "0")
    report = check(module, mutate_steps=without_own_piece)
    assert not report.ok and report.faults[0].kind == "unwritten", str(report)


def test_a_piece_that_is_copied_from_where_no_tile_stored_it_is_missed(module):
    report = check(module, mutate_steps=with_own_piece)
    assert not report.ok and report.faults[0].kind == "unwritten", str(report)


@pytest.mark.parametrize("shift", [-8, 8, 32])
def test_a_wrong_origin_is_found(module, monkeypatch, shift):
    made = in_place._results_part

    def moved(instance, *more):
        view, box = made(instance, *more)
        lo = (box.lo[0], box.lo[1] + shift)
        return view, replace(box, lo=lo, hi=(box.hi[0], box.hi[1] + shift))

    monkeypatch.setattr(in_place, "_results_part", moved)
    report = check(module)
    assert not report.ok and report.faults[0].kind in ("unwritten", "stray access"), str(report)
