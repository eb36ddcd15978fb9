"""Tiles of a last wave that a second launch makes, in smaller blocks, on simulated ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import overlap.ops.exchange_gemm as exchange_gemm
import overlap.ops.gather_call as gather_call
from overlap.chunkplan.region import shard_interval
from overlap.errors import RaceFault
from overlap.ops import a2a_gemm, ag_gemm, last_plan
from overlap.runtime.launch import launch as launch_layer
from overlap.sim import World

pytestmark = pytest.mark.one_triton


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Tiles that were left out, and launches that make them, of every call of a rank that went the long way."""
    monkeypatch.setenv("OVERLAP_TAIL", "always")
    found: list[tuple[int, int]] = []
    original = gather_call.tail_launches

    def watched(tail, *rest):
        launches = original(tail, *rest)
        if tail.left:
            found.append((tail.left, len(launches)))
        return launches

    for module in (gather_call, exchange_gemm):
        monkeypatch.setattr(module, "tail_launches", watched)
    return found


@dataclass
class Case:
    """One call on ranks of ``sms`` multiprocessors: ``shape`` is the gathered tensor's, ``columns`` the weights'.

    ``wanted``: of every rank, in no order, tiles left out and launches behind the kernel, of which one waits for each run that
    is left out whole.
    """

    shape: tuple[int, ...]
    columns: tuple[int, ...]
    wanted: tuple[tuple[int, int], ...]
    world: int = 2
    sms: int = 4
    dim: int = 0
    dtype: torch.dtype = torch.float16
    bias: bool = False
    transposed: bool = False
    plan: str = "all_gather_1d"
    split: Any = 1


CASES = {
    # 5 x 3 tiles of 128 x 256, the last group of each box shorter than GROUP_M.
    "ragged, bias": Case((530, 48), (520,), ((3, 1), (3, 1)), bias=True),
    "a weight by columns": Case((530, 48), (520,), ((3, 1), (3, 1)), transposed=True, dtype=torch.bfloat16),
    "several weights": Case((530, 32), (40, 520), ((3, 1), (3, 1)), bias=True),
    "a run that is left out whole": Case(
        (530, 16), (520,), ((7, 1), (7, 3), (7, 3)), world=3, sms=8, plan="all_gather_1d_push"
    ),
    "a ring in parts": Case((530, 16), (520,), ((3, 1), (3, 1), (3, 2)), world=3, plan="all_gather_ring", split=2),
    "batched": Case((3, 300, 16), (264,), ((2, 1), (2, 1)), dim=1, bias=True),
    "uneven outer dimension": Case((5, 150, 16), (264,), ((4, 1), (4, 1)), dim=0, sms=8),
}


def results(case: Case, *, launches: int = 3, seed: int = 0):
    """Every rank's results of calls in a row, over poisoned memory, beside what they should be in fp64."""
    generator = torch.Generator().manual_seed(seed)
    depth, lead = case.shape[-1], case.shape[:-1]
    wholes = [torch.randn(case.shape, generator=generator).to(case.dtype) for _ in range(launches)]

    def weight(n: int) -> torch.Tensor:
        shape = (n, depth) if case.transposed else (depth, n)
        w = torch.randn(shape, generator=generator).to(case.dtype)
        return w.t() if case.transposed else w

    weights = [[weight(n) for n in case.columns] for _ in range(case.world)]
    biases = [
        [torch.randn(n, generator=generator).to(case.dtype) if case.bias else None for n in case.columns]
        for _ in range(case.world)
    ]

    def body(group):
        rank = group.overlap_runtime.rank
        low, high = shard_interval(case.shape[case.dim], case.world, rank)
        found = []
        for whole in wholes:
            outs = [torch.full((*lead, n), float("nan"), dtype=case.dtype) for n in case.columns]
            shard = whole.narrow(case.dim, low, high - low).contiguous()
            how = {"plan": case.plan, "split": case.split, "backend": "copy_engine", "return_gathered": True}
            size = case.shape[case.dim]
            found.append(
                ag_gemm(
                    shard, weights[rank], bias=biases[rank], gather_dim=case.dim, gather_size=size, out=outs, group=group,
                    **how,
                )
            )  # fmt: skip
        group.overlap_runtime.synchronize()
        return found

    for rank, found in enumerate(World(case.world, seed=seed, sms=case.sms).run(body)):
        for whole, (ys, gathered) in zip(wholes, found, strict=True):
            assert torch.equal(gathered, whole)
            for y, w, b in zip(ys, weights[rank], biases[rank], strict=True):
                wanted = whole.double() @ w.double() + (b.double() if b is not None else 0)
                yield y, wanted, whole.double().abs() @ w.double().abs() + 1


EPSILON = {torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("name", CASES)
def test_all_tiles_are_made(name, launched):
    case = CASES[name]
    for y, wanted, scale in results(case, seed=len(name)):
        worst = ((y.double() - wanted).abs() / scale).max().item()
        assert worst <= EPSILON[case.dtype] + case.shape[-1] * 2**-24, worst  # NaN fails too
    # Later calls are repetitions: what was made ready is launched again.
    assert sorted(launched) == list(case.wanted)
    left, _ = case.wanted[0]
    assert last_plan().tail == left and f", the last {left} tiles by a second launch" in str(last_plan())


@pytest.mark.parametrize(
    ("plan", "split", "tiles"),
    [
        ("all_gather_1d", (3, 1), 3),
        ("all_gather_1d_push", ((1,), (1,), (3, 1)), 3),
        ("all_gather_ring", 2, 3),
        ("all_gather_1d", 1, 6),
    ],
)
def test_the_chunk_that_comes_last_is_left(plan, split, tiles, launched, monkeypatch):
    """Of 177 rows of the last shard, in tiles of 128 x 256, three beside each other: 45, 89 or all of them."""
    monkeypatch.setenv("OVERLAP_TAIL", "part")
    case = Case((530, 16), (520,), (), world=3, plan=plan, split=split)
    for y, wanted, scale in results(case, seed=tiles):
        assert ((y.double() - wanted).abs() / scale).max().item() <= EPSILON[case.dtype] + 16 * 2**-24
    assert {left for left, _ in launched} == {tiles} and last_plan().tail == tiles


def test_chunks_that_are_no_rows_of_a_matrix_are_not_counted_as_rows(launched, monkeypatch):
    """Ranks gather matrices here, whole ones: rows of theirs would be 75 of each."""
    monkeypatch.setenv("OVERLAP_TAIL", "part")
    assert all(
        torch.allclose(y.double(), wanted, atol=4e-2) for y, wanted, _ in results(CASES["uneven outer dimension"])
    )
    assert not launched and last_plan().tail == 0


def test_the_bits_are_those_of_one_launch(monkeypatch):
    case = CASES["ragged, bias"]
    apart = [y for y, _, _ in results(case)]
    monkeypatch.setenv("OVERLAP_TAIL", "never")
    whole = [y for y, _, _ in results(case)]
    assert len(apart) == len(whole) and all(map(torch.equal, apart, whole))


def test_no_tile_is_made_twice(monkeypatch):
    """Without the second launch the last tiles, of 128 x 256, stay as they were, and all others are made."""
    monkeypatch.setattr(gather_call, "tail_launches", lambda *_: [])
    for y, wanted, _ in results(Case((530, 48), (520,), ()), launches=1):
        tiles = [rows.split(256, dim=1) for rows in y.split(128)]
        missing = [(i, j) for i, row in enumerate(tiles) for j, tile in enumerate(row) if tile.isnan().any()]
        assert len(missing) == 3 and all(tiles[i][j].isnan().all() for i, j in missing)
        made = ~y.isnan()
        assert torch.allclose(y[made].double(), wanted[made], atol=4e-2)


def test_the_rest_runs_before_peers_may_overwrite_what_it_reads(monkeypatch):
    case = Case((530, 16), (520,), (), plan="all_gather_1d_push")
    original = launch_layer.launch

    def late(operator, instance, given, bound, grid, results, behind=None, repeat=None, left=None):
        original(operator, instance, given, bound, grid, results)
        if behind is not None:
            behind()

    monkeypatch.setattr(launch_layer, "launch", late)
    with pytest.raises(RaceFault, match="race"):
        for seed in range(6):
            list(results(case, seed=seed))


@pytest.mark.parametrize("columns", [512, 521])
def test_nothing_is_left_where_waves_are_full_or_tma_does_not_write_the_result(columns, launched):
    case = Case((512, 16), (columns,), ())
    assert all(torch.allclose(y.double(), wanted, atol=2e-2) for y, wanted, _ in results(case, launches=1))
    assert not launched
    assert last_plan().tail == 0 and "second launch" not in str(last_plan())


@pytest.mark.parametrize(
    ("rows", "columns", "sms", "wanted"), [(620, 776, 5, [(2, 1)] * 2), (1030, 520, 8, [(7, 3)] * 2)]
)
def test_an_exchange_leaves_tiles_too(launched, rows, columns, sms, wanted):
    """Parts of rows, each of which waits for one part of every rank; some are left out whole."""
    generator = torch.Generator().manual_seed(rows)
    wholes = [torch.randn(rows, 48, generator=generator).half() for _ in range(3)]
    weights = [torch.randn(48, columns, generator=generator).half() for _ in range(2)]

    def body(group):
        rank = group.overlap_runtime.rank
        found = []
        for whole in wholes:
            out = torch.full((rows // 2, columns), float("nan"), dtype=torch.float16)
            piece = whole[:, rank * 24 : (rank + 1) * 24].contiguous()
            found.append(a2a_gemm(piece, weights[rank], out=out, backend="copy_engine", split=4, group=group))
        group.overlap_runtime.synchronize()
        return found

    for rank, found in enumerate(World(2, seed=rows, sms=sms).run(body)):
        for whole, y in zip(wholes, found, strict=True):
            wanted_y = whole.chunk(2)[rank].double() @ weights[rank].double()
            assert torch.allclose(y.double(), wanted_y, atol=4e-2)  # NaN fails too
    assert launched == wanted and last_plan("a2a_gemm").tail == wanted[0][0]
