"""Tiles that make chunks: runs, counters and their targets against the brute-force oracle over elements."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.verify import verify_plan
from overlap.schedule.model import AxisTiles, TensorRead, TensorWrite
from overlap.schedule.runs import schedule_all, schedule_rank
from overlap.schedule.verify import flatten_safe, verify_schedule
from tests.support.sweep import examples

from .oracle import check, tiles_of
from .plans import (
    both,
    exchange,
    gather,
    gemm_axes,
    one_shot,
    reads_a,
    reduce_scatter,
    ring_scatter,
    two_shot,
    windows_of,
    writes_c,
)

ROWS = (0, 1, 3, 130, 1000)
PLANS = {
    "reduce_scatter": lambda shape, dim, world, split: reduce_scatter(shape, dim, world, split=split),
    "two_shot": lambda shape, dim, world, split: two_shot(shape, dim, world, split=split),
    "one_shot": lambda shape, dim, world, split: one_shot(shape, world),
    "ring": lambda shape, dim, world, split: ring_scatter(shape, dim, world),
}


def check_all(plan, axes, *, reads=(), writes=None, windows=None, ordered=True):
    writes = writes_c() if writes is None else writes
    how = {"writes": writes, "windows": windows, "ordered": ordered}
    schedules = schedule_all(plan, reads, axes, **how)
    check(schedules, plan, reads, axes, **how)
    for flattened in (False, True):
        verify_schedule(schedules, plan, reads, axes, flattened=flattened, **how)
    assert flatten_safe(schedules, plan, writes)
    return schedules


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("world", range(1, 7))
def test_every_plan_and_size(name, world):
    for m, (dim, split) in product(ROWS, ((0, 1), (1, 1), (0, 3))):
        if m == 1000 and (world % 2 or dim or split > 1):
            continue
        shape = (m, 1 if m == 1000 else 3)
        plan = PLANS[name](shape, dim, world, split)
        verify_plan(plan)
        check_all(plan, gemm_axes(*shape, 128 if m > 130 else 32, 2))


@pytest.mark.parametrize("world", range(1, 7))
def test_exchange_of_rows_and_columns(world):
    """Every rank makes its own rows: its tiles are counted from its window, and ranks have grids of their own."""
    for (m, n), split in product(((0, 4), (1, 7), (3, 3), (130, 6), (40, 0)), (1, 2)):
        plan = exchange((m, n), world, split=split)
        verify_plan(plan)
        windows = windows_of(plan)
        axes = [gemm_axes(*own["c"].shape, 16, 2) for own in windows]
        schedules = check_all(plan, axes, windows=windows)
        for schedule, own in zip(schedules, windows, strict=True):
            assert (
                schedule_rank(plan, (), axes[schedule.rank], schedule.rank, writes=writes_c(), windows=own) == schedule
            ), "one rank alone gets the same schedule"


def test_input_of_an_exchange_is_read_in_its_window():
    """a[K, M] sharded along K before, the kernel of each rank reads all of K and its part of M."""
    for world, (k, m) in product((1, 2, 3, 5), ((6, 40), (5, 3), (0, 9), (4, 0))):
        plan = exchange((k, m), world, tensor="a")
        windows = [{"a": own[0].box} for own in plan.after]
        axes = [(AxisTiles("M", own["a"].shape[1], 16), AxisTiles("N", 8, 4)) for own in windows]
        reads = (TensorRead("a", (None, "M"), (False, True)),)
        schedules = check_all(plan, axes, reads=reads, writes=(), windows=windows)
        assert all(schedule.counters == () for schedule in schedules)


@settings(max_examples=examples(80), deadline=None)
@given(
    st.integers(0, 60), st.integers(0, 20), st.sampled_from((1, 7, 16, 64)), st.sampled_from((3, 8)), st.integers(1, 6),
    st.integers(1, 4), st.integers(0, 1), st.integers(1, 3), st.sampled_from(sorted(PLANS)),
)  # fmt: skip
def test_any_shape(m, n, block_m, block_n, world, split, dim, channels, name):
    plan = PLANS[name]((m, n), dim, world, split)
    if name == "reduce_scatter":
        plan = reduce_scatter((m, n), dim, world, split=split, channels=channels)
    check_all(plan, gemm_axes(m, n, block_m, block_n))


@pytest.mark.parametrize("splits", (1, 3, 4))
def test_split_k_counts_every_contribution(splits):
    """An axis that spans no dimension of c: each of its tiles adds to the same elements."""
    for world, m in product((1, 2, 3, 5), (0, 3, 70)):
        plan = reduce_scatter((m, 4), 0, world)
        axes = (*gemm_axes(m, 4, 16, 4), AxisTiles("S", splits * 10, 10))
        schedules = check_all(plan, axes)
        for schedule in schedules:
            for counter in schedule.counters:
                lo, hi = counter.chunk.box.lo[0], counter.chunk.box.hi[0]
                assert counter.target == splits * len({row // 16 for row in range(lo, hi)})


def test_a_tile_may_write_a_dimension_that_no_axis_spans():
    """c[M, N] of a kernel whose tiles each make whole rows, scattered along N: every tile counts into every chunk."""
    plan, axes = reduce_scatter((40, 9), 1, 3), (AxisTiles("M", 40, 16),)
    schedules = check_all(plan, axes, writes=(TensorWrite("c", ("M", None)),))
    assert [[run.raises for run in schedule.runs] for schedule in schedules] == [[schedules[0].runs[0].raises]] * 3
    assert [counter.target for counter in schedules[0].counters] == [3, 3]


def test_tiles_that_write_a_tensor_in_two_ways_are_counted_once():
    """c[M, N] and its mirror c[N, M]: a tile on the diagonal of chunks is in both ways and counts once."""
    plan, axes = reduce_scatter((24, 24), 0, 3), gemm_axes(24, 24, 8, 8)
    writes = (TensorWrite("c", ("M", "N")), TensorWrite("c", ("N", "M")))
    schedules = check_all(plan, axes, writes=writes)
    assert [counter.target for counter in schedules[0].counters] == [5, 5]


def test_two_produced_tensors():
    left = reduce_scatter((20, 6), 0, 3)
    right = reduce_scatter((20, 6), 1, 3, tensor="d")
    plan = both(left, right, channel=1)
    check_all(plan, gemm_axes(20, 6, 8, 2), writes=(*writes_c(), TensorWrite("d", ("M", "N"))))


def test_own_chunk_last_and_the_nearest_first():
    plan, axes = reduce_scatter((130, 4), 0, 4), gemm_axes(130, 4, 32, 4)
    schedules = check_all(plan, axes)
    told = [[(run.origin[0], run.counts[0], [r.slot for r in run.raises]) for run in s.runs] for s in schedules]
    # Shards are rows 0:33, 33:66, 66:99, 99:130; tile rows 1, 2 and 3 straddle two.
    assert told[0] == [(1, 1, [0]), (2, 1, [0, 1]), (3, 1, [1, 2]), (4, 1, [2]), (0, 1, [])]
    assert told[1] == [(2, 1, [0]), (3, 1, [0, 1]), (4, 1, [1]), (0, 2, [2])]
    assert told[2] == [(3, 2, [0]), (0, 1, [1]), (1, 1, [1, 2]), (2, 1, [2])]
    assert told[3] == [(0, 1, [0]), (1, 1, [0, 1]), (2, 1, [1, 2]), (3, 1, [2]), (4, 1, [])]
    assert [[c.target for c in s.counters] for s in schedules] == [[2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 2, 2]]


@pytest.mark.parametrize("world", range(2, 7))
def test_a_rank_that_makes_whole_tiles_for_itself_makes_them_last(world):
    m = world * 64
    for schedule in check_all(reduce_scatter((m, 1), 0, world), gemm_axes(m, 1, 32, 1)):
        last = schedule.runs[-1]
        assert last.raises == () and {32 * t for t, _ in tiles_of(last)} == {
            schedule.rank * 64,
            schedule.rank * 64 + 32,
        }


def test_an_empty_chunk_and_a_grid_without_tiles_have_counters_that_are_whole_at_once():
    """Rank 3 of 4 owns nothing of 3 rows; the counter that holds back its empty chunk is at its target from the start."""
    schedule = check_all(reduce_scatter((3, 4), 0, 4), gemm_axes(3, 4, 16, 4))[0]
    assert [counter.target for counter in schedule.counters] == [1, 1, 0]
    assert [len(run.raises) for run in schedule.runs] == [2]
    for axes in (gemm_axes(3, 0, 16, 4), gemm_axes(0, 4, 16, 4)):
        plan = reduce_scatter((axes[0].extent, axes[1].extent), 0, 4)
        for schedule in check_all(plan, axes):
            assert schedule.runs == () and {counter.target for counter in schedule.counters} == {0}


def test_world_1_counts_nothing():
    schedule = check_all(reduce_scatter((40, 4), 0, 1), gemm_axes(40, 4, 16, 4))[0]
    assert schedule.counters == () and [run.tiles for run in schedule.runs] == [3]


def gather_and_scatter(m, k, n, world, split=1):
    """a[M, K] gathered along M into a kernel whose c[M, N] is reduce-scattered along M."""
    return both(gather((m, k), 0, world, split=split), reduce_scatter((m, n), 0, world, split=split), channel=1)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 60),
    st.integers(1, 8),
    st.sampled_from((1, 7, 16)),
    st.integers(1, 6),
    st.integers(1, 3),
    st.booleans(),
)
def test_a_kernel_that_consumes_and_produces(m, n, block, world, split, wraps):
    plan = gather_and_scatter(m, 2, n, world, split)
    check_all(plan, gemm_axes(m, n, block, 4), reads=reads_a(wraps=wraps))


def test_departure_goes_before_arrival():
    """Rank 1 of 3: rows of rank 2 arrive first and leave first, the own rows (there from the start) come last."""
    plan, axes = gather_and_scatter(48, 2, 4, 3), gemm_axes(48, 4, 8, 4)
    schedules = check_all(plan, axes, reads=reads_a())
    told = [(run.origin[0], run.peer, [raised.slot for raised in run.raises]) for run in schedules[1].runs]
    assert told == [(4, 2, [0]), (0, 0, [1]), (2, -1, [])]


@pytest.mark.parametrize("world", (1, 2, 3, 5))
def test_a_kernel_between_two_exchanges(world):
    """a[K, M] sharded along K comes in, c[M, N] goes out sharded along N; each rank's kernel works on its part of M."""
    for m, n in ((0, 4), (3, 5), (40, 7)):
        plan = both(exchange((6, m), world, tensor="a"), exchange((m, n), world), channel=1)
        windows = [
            {"a": next(chunk.box for chunk in plan.after[rank] if chunk.tensor == "a"), **own}
            for rank, own in enumerate(windows_of(plan))
        ]
        axes = [gemm_axes(*own["c"].shape, 8, 2) for own in windows]
        reads = (TensorRead("a", (None, "M"), (False, False)),)
        schedules = check_all(plan, axes, reads=reads, windows=windows)
        for schedule in schedules:
            # Every tile needs all of K: all runs wait for the same flags, whatever leaves first.
            assert len({run.waits for run in schedule.runs}) <= 1
