"""Pushes out of the caller's tensor on simulated ranks: which layouts go so, and that results are right whichever do."""

from __future__ import annotations

import math

import pytest
import torch

from overlap.chunkplan.region import shard_interval
from overlap.codegen.module_io import load_module
from overlap.ops import a2a_gemm, ag_gemm
from overlap.runtime.launch import acts as acts_layer
from overlap.runtime.launch import givens as givens_layer
from overlap.runtime.memory import part as part_layer
from overlap.runtime.memory.part import Part
from overlap.sim import World

pytestmark = pytest.mark.one_triton

WIDE, NARROW = 1024, 24
"""Columns of a shard: rows of 4096 and of 96 bytes."""


@pytest.fixture(autouse=True)
def given(monkeypatch):
    """(rank, operation) of each copy that was made ready to read the caller's tensor, of however few bytes."""
    monkeypatch.setenv("OVERLAP_GIVEN_BYTES", "0")
    found = []
    made = acts_layer.given_copy

    def watched(instance, op, *more):
        found.append((instance.runtime.rank, op))
        return made(instance, op, *more)

    monkeypatch.setattr(acts_layer, "given_copy", watched)
    return found


@pytest.fixture
def pushed(compiled):
    return load_module(str(compiled(plan="all_gather_1d_push")))


def rows_of_more(x):
    whole = torch.full((x.shape[0] + 5, x.shape[1]), float("nan"))
    whole[3 : 3 + x.shape[0]] = x
    return whole[3 : 3 + x.shape[0]]


def columns_of_more(x):
    whole = torch.full((x.shape[0], x.shape[1] + 24), float("nan"))
    whole[:, 8:-16] = x
    return whole[:, 8:-16]


def every_other_column(x):
    return columns_of_more(x.repeat_interleave(2, 1))[:, ::2]


def transposed(x):
    return x.t().contiguous().t()


def repeated_row(x):
    return x[:1].expand(x.shape)


@pytest.mark.parametrize(
    ("layout", "columns", "goes"),
    [
        (torch.clone, NARROW, True),
        (rows_of_more, NARROW, True),
        (columns_of_more, WIDE, True),
        (columns_of_more, NARROW, False),
        (every_other_column, WIDE, False),
        (transposed, NARROW, False),
        (repeated_row, WIDE, False),
    ],
)
@pytest.mark.parametrize("world", [1, 3])
def test_what_one_copy_takes_is_pushed_as_it_is(pushed, given, layout, columns, goes, world):
    """Uneven shards, the last of them short; two calls, the second with what the first made ready."""
    m, n = 10, 8
    generator = torch.Generator().manual_seed(columns)
    wholes, b = (
        [torch.randn(m, columns, generator=generator) for _ in range(2)],
        torch.randn(columns, n, generator=generator),
    )
    if layout is repeated_row:
        wholes = [x[:1].expand(x.shape).clone() for x in wholes]
    shards = [[layout(x[slice(*shard_interval(m, world, rank))]) for x in wholes] for rank in range(world)]
    sizes = {"M": m, "N": n, "K": columns}

    def body(group):
        mine = shards[group.overlap_runtime.rank]
        results = [pushed.matmul(shard, b, group=group, sizes=sizes) for shard in mine]
        group.overlap_runtime.synchronize()
        return [y.clone() for y in results]

    for results in World(world).run(body):
        for got, x in zip(results, wholes, strict=True):
            torch.testing.assert_close(got, x @ b, atol=1e-3, rtol=1e-3)
    assert {op for _, op in given} == ({(r, i) for r in range(world) for i in range(world - 1)} if goes else set())


def test_a_rank_with_an_empty_shard_pushes_nothing(pushed, given):
    m, n, k, world = 2, 8, NARROW, 3
    x, b = torch.randn(m, k), torch.randn(k, n)

    def body(group):
        low, high = shard_interval(m, world, group.overlap_runtime.rank)
        got = pushed.matmul(x[low:high].clone(), b, group=group, sizes={"M": m, "N": n, "K": k})
        group.overlap_runtime.synchronize()
        return got.clone()

    for got in World(world, seed=1).run(body):
        torch.testing.assert_close(got, x @ b, atol=1e-3, rtol=1e-3)
    assert {rank for rank, _ in given} == {0, 1}


def test_small_shards_are_staged_first(pushed, given, monkeypatch):
    world, m, n, k = 2, 8, 8, NARROW
    x, b = torch.randn(m, k), torch.randn(k, n)

    def body(group):
        mine = x[slice(*shard_interval(m, world, group.overlap_runtime.rank))].clone()
        got = pushed.matmul(mine, b, group=group, sizes={"M": m, "N": n, "K": k})
        group.overlap_runtime.synchronize()
        return got.clone()

    for least, goes in ((4 * k * 4, True), (4 * k * 4 + 1, False)):
        given.clear()
        monkeypatch.setenv("OVERLAP_GIVEN_BYTES", str(least))
        for got in World(world).run(body):
            torch.testing.assert_close(got, x @ b, atol=1e-3, rtol=1e-3)
        assert bool(given) == goes


@pytest.mark.parametrize("plan", ["all_gather_ring", "all_gather_1d"])
def test_pulls_are_staged(compiled, given, plan):
    module = load_module(str(compiled(plan=plan)))
    world, m, n, k = 3, 9, 8, NARROW
    x, b = torch.randn(m, k), torch.randn(k, n)

    def body(group):
        mine = x[slice(*shard_interval(m, world, group.overlap_runtime.rank))].clone()
        got = module.matmul(mine, b, group=group, sizes={"M": m, "N": n, "K": k})
        group.overlap_runtime.synchronize()
        return got.clone()

    for got in World(world).run(body):
        torch.testing.assert_close(got, x @ b, atol=1e-3, rtol=1e-3)
    assert not given


def test_calls_of_an_operator_alternate_over_two_streams_and_reuse_their_input(given, tmp_path, monkeypatch):
    """Each call on the other stream, its input overwritten on its own stream right behind it."""
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))
    world, rows, k, n, calls = 2, 16, 16, 8, 6
    xs = [[torch.randn(rows, k) for _ in range(world)] for _ in range(calls)]
    w = torch.randn(k, n)

    def body(group):
        runtime = group.overlap_runtime
        inputs, results = [torch.zeros(rows, k) for _ in range(2)], []
        for call in range(calls):
            with runtime.on_stream(f"caller {call % 2}"):
                mine = inputs[call % 2]
                runtime.fill(mine, xs[call][runtime.rank])
                results.append(ag_gemm(mine, w, group=group, backend="copy_engine", plan="all_gather_1d_push"))
                runtime.fill(mine, torch.full_like(mine, float("nan")))
        for stream in range(2):
            with runtime.on_stream(f"caller {stream}"):
                runtime.synchronize()
        return [y.clone() for y in results]

    for seed in range(3):
        for results in World(world, seed=seed).run(body):
            for got, shards in zip(results, xs, strict=True):
                torch.testing.assert_close(got, torch.cat(shards) @ w, atol=1e-3, rtol=1e-3)
    assert given


@pytest.fixture
def staged(monkeypatch):
    """(rank, elements) of each box that was made ready to be staged."""
    found = []
    made = Part.staged

    def watched(part, *more):
        for stage in made(part, *more):
            found.append((part._runtime.rank, stage.to.numel()))
            yield stage

    monkeypatch.setattr(Part, "staged", watched)
    return found


EXCHANGES = pytest.mark.parametrize(
    ("world", "lead", "dim", "depth", "split"),
    [
        (2, (9,), 0, 14, 1),
        (3, (10,), 0, 13, 2),
        (4, (11,), 0, 9, 4),
        (4, (3,), 0, 16, 1),
        (3, (2, 7), 1, 12, 1),
        (3, (7, 2), 0, 11, 2),
        (5, (6,), 0, 3, 1),
        (2, (9,), 0, 128, 1),
    ],
)


def check_exchanges(tmp_path, monkeypatch, world, lead, dim, depth, split, plan):
    """Of every call other values, of one with rows that lie apart; the last calls are repeated ones."""
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))
    n, calls = 8, 5
    generator = torch.Generator().manual_seed(world)
    xs = [torch.randn(*lead, depth, generator=generator) for _ in range(calls)]
    w = torch.randn(depth, n, generator=generator)

    def body(group):
        rank = group.overlap_runtime.rank
        results = []
        for number, x in enumerate(xs):
            mine = x[..., slice(*shard_interval(depth, world, rank))].clone()
            if number == 1:
                wider = torch.full((*lead, mine.shape[-1] + 3), float("nan"))
                wider[..., 1:-2] = mine
                mine = wider[..., 1:-2]
            results.append(
                a2a_gemm(mine, w, group=group, scatter_dim=dim, plan=plan, backend="copy_engine", split=split)
            )
        group.overlap_runtime.synchronize()
        return [y.clone() for y in results]

    for rank, results in enumerate(World(world, seed=world).run(body)):
        for y, x in zip(results, xs, strict=True):
            low, high = shard_interval(lead[dim], world, rank)
            torch.testing.assert_close(y, (x @ w).narrow(dim, low, high - low), atol=1e-4, rtol=1e-4)


def elements(world, rank, lead, dim, depth):
    """Of a rank's shard, and of the piece of it that stays."""
    shard = math.prod(lead) * len(range(*shard_interval(depth, world, rank)))
    return shard, shard // lead[dim] * len(range(*shard_interval(lead[dim], world, rank)))


@pytest.mark.parametrize("rows_are_wide", [True, False])
@EXCHANGES
def test_of_an_exchange_only_what_stays_is_staged(
    given, staged, monkeypatch, tmp_path, world, lead, dim, depth, split, rows_are_wide
):
    """Rows too narrow to be copied as they are, but for single ones, are staged first, and so are pieces that are no rows of a
    matrix."""
    if rows_are_wide:
        monkeypatch.setattr(givens_layer, "WIDE", 1)
    check_exchanges(tmp_path, monkeypatch, world, lead, dim, depth, split, "all_to_all_1d_push")
    as_they_are = rows_are_wide and dim == 0
    narrow_rows = {rank for rank, _ in given} if not rows_are_wide else set()
    assert bool(given) == (as_they_are or bool(narrow_rows))
    for rank in range(world):
        shard, stays = elements(world, rank, lead, dim, depth)
        first = set() if as_they_are or not shard else {shard}
        found = {elements for at, elements in staged if at == rank}
        assert stays in found and (found == {stays} | first or (rank in narrow_rows and max(found) <= shard))


@EXCHANGES
def test_of_a_pulled_exchange_all_but_a_large_piece_that_stays(
    given, staged, monkeypatch, tmp_path, world, lead, dim, depth, split
):
    monkeypatch.setattr(part_layer, "WORTH_A_LAUNCH", 1)
    check_exchanges(tmp_path, monkeypatch, world, lead, dim, depth, split, "all_to_all_1d")
    assert not given
    for rank in range(world):
        shard, stays = elements(world, rank, lead, dim, depth)
        found = [count for at, count in staged if at == rank]
        alone = dim == 0 and stays
        if shard:
            assert sum(found) % (shard if alone else shard + stays) == 0 and (shard in found) == (not alone)
        else:
            assert not any(found)
