"""Schedules against the brute-force oracle: thousands of shapes, blocks, worlds, splits, directions and wraps."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.errors import PlanError, ScheduleError
from overlap.schedule.model import AxisTiles, TensorRead
from overlap.schedule.runs import schedule_all, schedule_rank
from overlap.schedule.verify import verify_schedule
from tests.support.sweep import SWEEP, every, examples

from .oracle import check, needed, tiles_of
from .plans import both, gather, gemm_axes, reads_a, reads_b, ring


def check_all(plan, reads, axes, *, ordered=True) -> None:
    schedules = schedule_all(plan, reads, axes, ordered=ordered)
    check(schedules, plan, reads, axes, ordered=ordered)
    verify_schedule(schedules, plan, reads, axes, ordered=ordered)
    verify_schedule(schedules, plan, reads, axes, ordered=ordered, flattened=True)


@pytest.mark.parametrize("world", range(1, 9) if SWEEP else (1, 2, 3, 4, 6))
def test_rows_of_every_small_size(world):
    """All of M x block x split x wraps x direction, N of no, one and two tiles."""
    ways = ((False, "pull"), (True, "pull"), (False, "push"))
    for m, block, split, (wraps, direction) in every(
        5, product((0, 1, 2, 3, 5, 8, 17), (1, 2, 3, 4, 8, 32), (1, 3), ways), start=world
    ):
        plan = gather((m, 2), 0, world, split=split, direction=direction)
        check_all(plan, reads_a(wraps=wraps), gemm_axes(m, (m + block) % 3, block, 1))


@pytest.mark.parametrize("world", (1, 2, 3, 5, 8) if SWEEP else (1, 2, 3, 5))
def test_columns_of_every_small_size(world):
    """The gathered tensor is b[K, N], in strided chunks along N, the second tile axis."""
    for n, block, split, wraps, make in every(
        3, product((0, 1, 3, 6, 13), (1, 2, 4, 16), (1, 2), (False, True), (gather, ring)), start=world
    ):
        plan = make((3, n), 1, world, split=split)
        check_all(plan, reads_b(wraps=wraps, tensor="a"), gemm_axes(3, n, 2, block))


SIZES = st.integers(0, 150)
BLOCKS = st.sampled_from((1, 7, 16, 32, 64, 100, 256))
WORLDS = st.integers(1, 8)
SPLITS = st.integers(1, 4)
DIRECTIONS = st.sampled_from(("pull", "push"))


@settings(max_examples=examples(200), deadline=None)
@given(SIZES, st.integers(0, 70), BLOCKS, BLOCKS, WORLDS, SPLITS, DIRECTIONS, st.booleans(), st.integers(1, 3))
def test_gathered_rows(m, n, block_m, block_n, world, split, direction, wraps, channels):
    plan = gather((m, 5), 0, world, split=split, direction=direction, channels=channels)
    check_all(plan, reads_a(wraps=wraps), gemm_axes(m, n, block_m, max(block_n, 16)))


@settings(max_examples=examples(120), deadline=None)
@given(SIZES, BLOCKS, WORLDS, st.integers(1, 3), DIRECTIONS, st.booleans(), st.booleans(), st.integers(1, 2))
def test_ring(m, block, world, split, direction, wraps, ordered, channels):
    plan = ring((m, 5), 0, world, split=split, direction=direction, channels=channels)
    check_all(plan, reads_a(wraps=wraps), gemm_axes(m, 20, block, 16), ordered=ordered)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.integers(0, 60), st.integers(0, 60), BLOCKS, BLOCKS, st.integers(1, 5), SPLITS, DIRECTIONS,
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_rows_and_columns_at_once(m, n, block_m, block_n, world, split, direction, wrap_m, wrap_n, apart):
    """Two communicated tensors and axes: runs are products, in one channel or in two."""
    rows = gather((m, 3), 0, world, split=split, direction=direction)
    columns = gather((3, n), 1, world, direction=direction, tensor="b")
    plan = both(rows, columns, channel=int(apart))
    reads = reads_a(wraps=wrap_m) + reads_b(wraps=wrap_n)
    check_all(plan, reads, gemm_axes(m, n, max(block_m, 7), max(block_n, 7)))


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(1, 40), st.sampled_from((3, 8, 50)), st.sampled_from((2, 5, 64)), st.integers(1, 5), st.booleans())
def test_two_reads_of_one_tensor(m, block_m, block_n, world, wraps):
    """a[M, K] and a[N, K] in one kernel (a syrk): both axes of the grid span the gathered dimension."""
    plan = gather((m, 3), 0, world)
    reads = (TensorRead("a", ("M", None), (wraps, False)), TensorRead("a", ("N", None), (False, False)))
    check_all(plan, reads, gemm_axes(m, m, block_m, block_n))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 30), st.integers(1, 9), st.integers(0, 30), st.integers(1, 5), st.integers(0, 2))
def test_three_axes_and_a_batch(m, block, n, world, dim):
    """x[B, M, K] gathered along any dimension, tiles on B, M and N."""
    shape = (3, m, 4)
    axes = (AxisTiles("B", 3, 1), AxisTiles("M", m, block), AxisTiles("N", n, 16))
    plan = gather(shape, dim, world, split=2)
    check_all(plan, (TensorRead("a", ("B", "M", None), (False, True, False)),), axes)


def runs_of(plan, reads, axes, rank):
    return [(run.origin, run.counts) for run in schedule_rank(plan, reads, axes, rank).runs]


def test_m136_on_four_ranks_with_block_32():
    """Tile rows touch {0} {0,1} {1,2} {2,3} {3}; no tile row is computed twice."""
    plan, axes = gather((136, 8), 0, 4), gemm_axes(136, 64, 32, 64)
    touched = [{plan.op(op).src_rank for op in needed(plan, reads_a(), axes, 2, (t, 0))} for t in range(5)]
    assert touched == [{0}, {0, 1}, {1}, {3}, {3}]
    assert runs_of(plan, reads_a(), axes, 0) == [((0, 0), (1, 1)), ((1, 0), (1, 1)), ((2, 0), (1, 1)), ((3, 0), (2, 1))]
    # Rank 1 holds no whole tile row: its first run needs rank 2's chunk, the first to arrive.
    assert runs_of(plan, reads_a(), axes, 1) == [((2, 0), (1, 1)), ((3, 0), (2, 1)), ((0, 0), (2, 1))]
    assert runs_of(plan, reads_a(), axes, 2) == [((3, 0), (2, 1)), ((0, 0), (1, 1)), ((1, 0), (2, 1))]
    assert runs_of(plan, reads_a(), axes, 3) == [((4, 0), (1, 1)), ((0, 0), (1, 1)), ((1, 0), (1, 1)), ((2, 0), (2, 1))]
    check_all(plan, reads_a(), axes)


def test_m136_with_wrapped_rows():
    """The last tile row reads on from row 0, so it also needs rank 0's chunk: on rank 1 a run of its own."""
    plan, axes = gather((136, 8), 0, 4), gemm_axes(136, 64, 32, 64)
    runs = schedule_rank(plan, reads_a(wraps=True), axes, 1).runs
    assert [(run.origin[0], run.counts[0], run.peer) for run in runs] == [(2, 1, 2), (3, 1, 3), (0, 2, 0), (4, 1, 0)]
    assert runs[2].chunk == runs[3].chunk


def test_m3_on_four_ranks():
    """Rank 3 owns nothing; one tile reads all, and the empty chunk has a flag and no run."""
    plan, axes = gather((3, 8), 0, 4), gemm_axes(3, 100, 32, 64)
    check_all(plan, reads_a(), axes)
    for rank in range(4):
        schedule = schedule_rank(plan, reads_a(), axes, rank)
        assert len(schedule.runs) == 1 and schedule.runs[0].tiles == 2 and len(schedule.slots) == 3
    assert 3 not in {run.peer for rank in range(3) for run in schedule_rank(plan, reads_a(), axes, rank).runs}


def test_qwen2_columns():
    """7392 columns a rank are 57.75 blocks of 128."""
    plan, axes = gather((2, 4 * 7392), 1, 4), gemm_axes(64, 4 * 7392, 64, 128)
    reads = reads_b(tensor="a")
    check_all(plan, reads, axes)
    for rank in range(4):
        first = schedule_rank(plan, reads, axes, rank).runs[0]
        own = plan.before[rank][0].box
        assert first.chunk is None and first.waits == ()
        assert own.lo[1] <= first.origin[1] * 128 and (first.origin[1] + first.counts[1]) * 128 <= own.hi[1]
        assert first.counts[1] >= 56


@pytest.mark.parametrize("world", (2, 3, 4, 5, 6, 7, 8))
def test_first_tile_lies_in_the_own_shard(world):
    """Wherever a tile lies whole in the own shard, though shards are no multiple of the block, it comes first."""
    m = world * 192
    plan, axes = gather((m, 2), 0, world), gemm_axes(m, 64, 128, 64)
    for rank in range(world):
        run = schedule_rank(plan, reads_a(), axes, rank).runs[0]
        own = plan.before[rank][0].box
        assert run.chunk is None
        assert all(own.lo[0] <= t * 128 and min((t + 1) * 128, m) <= own.hi[0] for t, _ in tiles_of(run))


def test_world_1_is_one_run_without_waits():
    schedule = schedule_rank(gather((40, 2), 0, 1), reads_a(), gemm_axes(40, 40, 16, 16), 0)
    assert [(run.first, run.counts, run.waits, run.chunk) for run in schedule.runs] == [(0, (3, 3), (), None)]
    assert schedule.slots == {} and schedule.order == ()


@pytest.mark.parametrize("m, n", [(0, 64), (64, 0), (0, 0)])
def test_a_grid_without_tiles_has_flags_and_no_runs(m, n):
    plan = gather((m, 4), 0, 3)
    schedule = schedule_rank(plan, reads_a(), gemm_axes(m, n, 16, 16), 1)
    assert schedule.runs == () and len(schedule.slots) == 2


def test_a_tensor_without_elements_is_waited_for_by_nobody():
    schedule = schedule_rank(gather((64, 0), 0, 4), reads_a(), gemm_axes(64, 64, 16, 16), 1)
    assert [(run.tiles, run.waits) for run in schedule.runs] == [(16, ())]


def test_no_tile_axes():
    """A kernel of one program reads everything: one tile behind the last arrival."""
    plan = gather((10, 2), 0, 3)
    schedule = schedule_rank(plan, (TensorRead("a", (None, None), (False, False)),), (), 0)
    assert [(run.tiles, run.peer) for run in schedule.runs] == [(1, 2)]


def test_order_lists_each_channel():
    plan = gather((30, 2), 0, 3, split=3, channels=2)
    schedule = schedule_rank(plan, reads_a(), gemm_axes(30, 8, 8, 8), 1)
    assert schedule.order == ((0, (0, 2, 3, 5)), (1, (1, 4)))


@pytest.mark.parametrize(
    "reads, axes, message, help",
    [
        ((TensorRead("A", ("M", None), (False, False)),), gemm_axes(8, 8, 4, 4), "reads? 'A'", "there are: a"),
        ((TensorRead("a", ("M",), (False,)),), gemm_axes(8, 8, 4, 4), "1-dimensional", ""),
        ((TensorRead("a", ("MM", None), (False, False)),), gemm_axes(8, 8, 4, 4), "'MM'", "did you mean 'M'"),
        (reads_a(), gemm_axes(9, 8, 4, 4), "axis M has 9 elements, but dimension 0 of a has 8", "sizes"),
        (reads_a(), gemm_axes(8, 8, 0, 4), "blocks of 0", "1 or more"),
        (reads_a(), (AxisTiles("M", 8, 4), AxisTiles("M", 8, 4)), "given twice", ""),
    ],
)
def test_what_does_not_fit_is_refused(reads, axes, message, help):
    with pytest.raises(ScheduleError, match=message) as raised:
        schedule_rank(gather((8, 2), 0, 2), reads, axes, 0)
    assert help in raised.value.help


def test_a_tensor_that_moves_and_is_not_read_by_tiles_has_flags_only():
    plan = both(gather((8, 2), 0, 2), gather((2, 8), 1, 2, tensor="b"))
    schedule = schedule_rank(plan, reads_a(), gemm_axes(8, 8, 4, 4), 0)
    assert len(schedule.slots) == 2 and all(wait.op == (0, 0) for run in schedule.runs for wait in run.waits)


def test_chunks_of_undeclared_tensors_are_refused():
    plan = gather((8, 2), 0, 2)
    odd = CommPlan("odd", 2, (TensorSpec("c", (8, 2)),), plan.before, plan.after, plan.ops)
    with pytest.raises(PlanError, match="names the tensor `a`"):
        schedule_rank(odd, (), gemm_axes(8, 8, 4, 4), 0)
