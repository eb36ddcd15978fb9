"""Reduce-scatters whose own tiles add what other ranks have sent, on simulated ranks: right, in any order, and what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

import overlap
from overlap.api.tuned import forced
from overlap.autotune.config import Config
from overlap.codegen.module_io import load_module
from overlap.errors import RaceFault, RuntimeContractError
from overlap.ops import gemm_rs, partials
from overlap.runtime import instance as instances
from overlap.runtime.launch import launch
from overlap.schedule import steps as st
from overlap.sim import World
from overlap.sim.runtime import SimRuntime
from tests.support.sweep import SWEEP

pytestmark = pytest.mark.one_triton

HALF, FP32 = torch.float16, torch.float32
SEEDS = range(20) if SWEEP else range(1)


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    monkeypatch.setenv("OVERLAP_TILE_SUMS", "1")


@pytest.fixture
def finished(monkeypatch):
    """By launch that looked itself up, the rank and how many pieces its tiles finish."""
    found = []
    made = launch.finish_table

    def watched(instance, *given):
        table, finish = made(instance, *given)
        found.append((instance.runtime.rank, len(finish.pieces)))
        return table, finish

    monkeypatch.setattr(launch, "finish_table", watched)
    return found


def called(world, shape, *, calls=1, seed=0, outs=None, bias=False, batch=(), blocking=False, **options):
    """Results by rank and call, and what they are in fp64, by call and rank."""
    rows, columns, depth = shape
    generator = torch.Generator().manual_seed(world + 7)
    xs = [[torch.randn(*batch, rows, depth, generator=generator).half() for _ in range(world)] for _ in range(calls)]
    ws = [[torch.randn(depth, columns, generator=generator).half() for _ in range(world)] for _ in range(calls)]
    more = torch.randn(columns, generator=generator).half() if bias else None
    along = options.get("scatter_dim", 0)

    def body(group):
        rank = group.overlap_runtime.rank
        made = []
        for x, w in zip(xs, ws, strict=True):
            out = None if outs is None else outs(rank)
            made.append(gemm_rs(x[rank], w[rank], bias=more, group=group, out=out, backend="copy_engine", **options))
        group.overlap_runtime.synchronize()
        return made

    exact = [
        sum(x.double() @ w.double() for x, w in zip(*both, strict=True)) + (0 if more is None else more.double())
        for both in zip(xs, ws, strict=True)
    ]
    pieces = [whole.chunk(world, along) for whole in exact]
    return World(world, seed=seed, blocking=blocking).run(body), pieces


def check(found, exact):
    for rank, made in enumerate(found):
        for one, wanted in zip(made, exact, strict=True):
            mine = wanted[rank] if rank < len(wanted) else wanted[0][:0]
            assert one.shape == mine.shape
            torch.testing.assert_close(one.double(), mine, rtol=2e-3, atol=6e-2)


CASES = [
    (1, (96, 64, 32), 1, {}),
    (2, (512, 64, 32), 2, {}),
    (2, (256, 72, 40), 1, {"bias": True}),
    (3, (384, 64, 32), 1, {"calls": 3}),
    (4, (1024, 136, 64), 2, {"calls": 3}),
    (5, (640, 40, 24), 1, {}),
    (6, (768, 64, 16), 1, {"bias": True}),
    (2, (128, 64, 32), 1, {"batch": (3,), "scatter_dim": 1}),
    (2, (255, 64, 32), 1, {}),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("world", "shape", "split", "options"), CASES)
def test_tiles_add_what_has_come(world, shape, split, options, seed, finished):
    found, exact = called(world, shape, split=split, seed=seed, **options)
    check(found, exact)
    assert sorted(finished) == [(rank, split) for rank in range(world)], "later calls repeat the first"


@pytest.mark.parametrize(
    ("world", "shape", "options"),
    [
        (2, (200, 64, 32), {"split": 2}),
        (3, (100, 64, 32), {"split": 1}),
        (4, (9, 40, 24), {"split": 3}),
        (2, (256, 64, 32), {"split": 1, "out_dtype": FP32, "transport_dtype": HALF}),
        (2, (256, 36, 32), {"split": 1}),
        (2, (0, 64, 32), {"split": 1}),
    ],
    ids=["edges", "uneven", "few rows", "another dtype", "narrow rows", "nothing"],
)
def test_what_tiles_cannot_add_a_sum_does(world, shape, options, finished):
    found, exact = called(world, shape, **options)
    check(found, exact)
    assert len(finished) == (0 if shape[0] == 0 else world) and all(pieces == 0 for _, pieces in finished)


def test_a_result_that_the_caller_brings(finished):
    found, exact = called(2, (256, 64, 32), split=1, outs=lambda _: torch.full((128, 64), float("nan")).half(), calls=2)
    check(found, exact)
    assert sorted(finished) == [(0, 1), (1, 1)]


def test_a_rank_whose_result_tma_cannot_store_to_has_a_sum_alone(finished):
    def off_by_one(rank):
        return torch.full((128 * 64 + 1,), float("nan")).half()[int(rank == 0) :][: 128 * 64].view(128, 64)

    found, exact = called(2, (256, 64, 32), split=1, outs=off_by_one, calls=2)
    check(found, exact)
    assert sorted(finished) == [(0, 0), (1, 1)]


def test_a_second_shape_and_the_first_again(finished):
    """Memory grows in between, and records of what is added hold addresses."""
    small, large = (256, 64, 32), (1024, 64, 32)
    generator = torch.Generator().manual_seed(3)
    shapes = [small, large, small]
    xs = [[torch.randn(m, k, generator=generator).half() for _ in range(2)] for m, _, k in shapes]
    w = [torch.randn(32, 64, generator=generator).half() for _ in range(2)]

    def body(group):
        rank = group.overlap_runtime.rank
        made = [gemm_rs(x[rank], w[rank], group=group, backend="copy_engine", split=1) for x in xs]
        group.overlap_runtime.synchronize()
        return made

    found = World(2).run(body)
    exact = [sum(x.double() @ y.double() for x, y in zip(both, w, strict=True)).chunk(2) for both in xs]
    check(found, exact)
    assert all(pieces == 1 for _, pieces in finished)


def test_a_host_that_waits_for_kernels_has_a_sum_add(finished):
    """Copies to others are enqueued behind the kernel, so tiles that wait for them would keep it from them."""
    found, exact = called(2, (256, 64, 32), split=1, blocking=True, calls=2)
    check(found, exact)
    assert finished and all(pieces == 0 for _, pieces in finished)


@pytest.mark.parametrize(("sms", "along"), [(2, "M"), (4, "M"), (4, "N")])
def test_of_a_kernel_whose_programs_are_not_all_resident_a_sum_adds(sms, along, repo, tmp_path, monkeypatch, finished):
    """Programs that wait would keep those from starting that make what others wait for. Rows or columns are scattered."""
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))
    made = load_module(str(repo / "tests/kernels/host_descriptors.py")).gemm_tma
    kernel = overlap.compile(plan="reduce_scatter_1d", on=f"c[{along}]", tile_sums=1)(made)
    rows, columns, depth, programs, dim = 256, 64, 32, 4, "MN".index(along)
    generator = torch.Generator().manual_seed(5)
    a = [torch.randn(rows, depth, generator=generator).half() for _ in range(2)]
    b = torch.randn(depth, columns, generator=generator).half()

    def body(group):
        rank = group.overlap_runtime.rank
        c = torch.full((rows, columns), float("nan"), dtype=HALF).chunk(2, dim)[0].contiguous()
        shapes = ((a[rank], (rows, depth)), (b, (depth, columns)), (c, (rows, columns)))
        described = [TensorDescriptor(each, list(shape), [shape[1], 1], [1, 1]) for each, shape in shapes]
        kernel[(programs,)](
            *described, rows, columns, depth, NUM_SMS=programs, DTYPE=triton.language.float16, group=group
        )
        group.overlap_runtime.synchronize()
        return [c]

    exact = (sum(each.double() for each in a) @ b.double()).chunk(2, dim)
    check(World(2, sms=sms).run(body), [exact])
    assert sorted(finished) == [(rank, int(sms >= programs)) for rank in range(2)]


def test_a_tile_that_does_not_wait_is_found(monkeypatch):
    made = instances.schedule_rank

    def without_waits(*args, finish=False, **more):
        schedule = made(*args, finish=finish, **more)
        if finish:
            schedule = replace(schedule, runs=tuple(replace(run, waits=()) for run in schedule.runs))
        return schedule

    monkeypatch.setattr(instances, "schedule_rank", without_waits)
    with pytest.raises(RaceFault):
        called(2, (256, 64, 32), split=1)


@pytest.mark.parametrize("kind", [st.Credit, st.Hold, st.Raise], ids=lambda kind: kind.__name__)
def test_a_step_left_out_is_found(kind, monkeypatch):
    def without(rank, steps):
        return tuple(step for step in steps if not isinstance(step, kind))

    monkeypatch.setattr(launch, "STEP_FILTER", without)
    with pytest.raises(Exception, match="race|deadlock"):
        called(3, (384, 64, 32), split=1, calls=2)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_config_says_whether(asked, monkeypatch, finished):
    """Tuned or pinned, whatever the setting is; one that says nothing leaves it to that."""
    monkeypatch.setenv("OVERLAP_TILE_SUMS", str(1 - asked))
    x, w = torch.randn(256, 32).half(), torch.randn(32, 64).half()
    pinned = Config.from_json({"backend": "copy_engine", "plan": "reduce_scatter_1d", "split": 1, "tile_sums": asked})
    silent = Config.from_json({"backend": "copy_engine", "plan": "reduce_scatter_1d", "split": 1})

    def body(group):
        made = []
        for config in (pinned, silent):
            with forced(config):
                made.append(gemm_rs(x, w, group=group))
        group.overlap_runtime.synchronize()
        return torch.stack(made)

    exact = 2 * x.double() @ w.double()
    for made, piece in zip(World(2).run(body), exact.chunk(2), strict=True):
        torch.testing.assert_close(made.double(), torch.stack([piece] * 2), rtol=2e-3, atol=6e-2)
    assert sorted(finished) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [pieces for rank, pieces in finished if rank == 0] == ([1, 0] if asked else [0, 1])


def test_where_copies_may_stand_behind_the_kernel_a_sum_adds(monkeypatch, finished):
    """CUDA_DEVICE_MAX_CONNECTIONS=1: what tiles wait for would be behind peers' kernels, which wait as well."""
    monkeypatch.setattr(SimRuntime, "one_queue", True)
    found, exact = called(2, (256, 64, 32), split=1)
    check(found, exact)
    assert sorted(finished) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("worth", [False, True])
def test_where_nobody_says_tiles_add_what_comes_in_time(worth, monkeypatch, finished):
    monkeypatch.delenv("OVERLAP_TILE_SUMS")
    asked = []
    monkeypatch.setattr(partials, "tiles_in_time", lambda *given: asked.append(given) or worth)
    found, exact = called(2, (512, 64, 32), split=2)
    check(found, exact)
    assert sorted(finished) == [(rank, 2 * worth) for rank in range(2)]
    assert {given[:3] for given in asked} == {(8, 2, 2)}


def test_ranks_must_agree(monkeypatch):
    x, w = torch.randn(128, 16).half(), torch.randn(16, 64).half()

    def body(group):
        monkeypatch.setenv("OVERLAP_TILE_SUMS", str(group.overlap_runtime.rank))
        gemm_rs(x, w, group=group, backend="copy_engine", split=1)

    with pytest.raises(RuntimeContractError, match="realization"):
        World(2).run(body)
