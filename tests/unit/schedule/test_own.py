"""Runs that read nothing but what their rank holds, against elements that tiles read."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from overlap.errors import ScheduleError
from overlap.schedule.model import AxisTiles, TensorRead
from overlap.schedule.runs import schedule_all, schedule_rank
from overlap.schedule.verify import verify_schedule
from tests.support.sweep import every

from .oracle import reads_box, tiles_of
from .plans import both, gather, gemm_axes, reads_a, reads_b


def touches(reads, axes, tile, chunks) -> bool:
    """Whether a tile reads an element of one of the chunks."""
    boxes = [chunk.box for chunk in chunks if not chunk.box.empty]
    return any(reads_box(read, axes, tile, box.lo, box.hi) for read in reads for box in boxes)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_runs_are_own_where_no_tile_reads_its_ranks_rows_and_others(world):
    """Of all shapes, blocks and splits, rows that wrap too; some ranks without rows, and grids without tiles."""
    taken = straddled = 0
    for m, block, split, wraps, direction in every(
        2, product((0, 1, 3, 8, 10, 12, 24), (1, 2, 4, 8), (1, 2), (False, True), ("push", "pull")), start=world
    ):
        plan = gather((m, 3), 0, world, split=split, direction=direction)
        reads, axes = reads_a(wraps=wraps), gemm_axes(m, 5, block, 3)
        schedules = schedule_all(plan, reads, axes)
        verify_schedule(schedules, plan, reads, axes)
        for rank, schedule in enumerate(schedules):
            held = plan.before[rank]
            others = [chunk for other in range(world) if other != rank for chunk in plan.before[other]]
            tiles = [(run, tile) for run in schedule.runs for tile in tiles_of(run)]
            mixed = any(touches(reads, axes, t, held) and touches(reads, axes, t, others) for _, t in tiles)
            for run, tile in tiles:
                own = touches(reads, axes, tile, held) and not mixed
                assert run.own == own, (m, block, split, wraps, rank, tile)
            taken, straddled = taken + any(run.own for run in schedule.runs), straddled + mixed
    assert taken > 3 and (straddled > 3 or world == 1)


def test_columns_and_a_dimension_that_every_tile_reads():
    """Columns of b by their tiles; of columns of a, which are K, every tile reads all."""
    columns = schedule_rank(gather((3, 8), 1, 2, tensor="b"), reads_b(), gemm_axes(3, 8, 2, 4), 1)
    assert [run.own for run in columns.runs] == [True, False]
    every_tile = schedule_rank(gather((8, 6), 1, 2), reads_a(), gemm_axes(8, 4, 4, 4), 1)
    assert not any(run.own for run in every_tile.runs)


def test_of_two_communicated_tensors_no_run_is_own():
    """A tile reads both, and a kernel has one descriptor more."""
    plan = both(gather((8, 3), 0, 2), gather((3, 8), 1, 2, tensor="b"))
    axes = gemm_axes(8, 8, 4, 4)
    assert not any(run.own for run in schedule_rank(plan, (*reads_a(), *reads_b()), axes, 0).runs)


def test_several_reads_of_one_tensor_are_all_its_own():
    """By the same rows twice; and a read of everything beside them, so that no tile reads its own alone."""
    plan, axes = gather((8, 3), 0, 2), (AxisTiles("M", 8, 4),)
    rows, whole = TensorRead("a", ("M", None), (False, False)), TensorRead("a", (None, None), (False, False))
    assert [run.own for run in schedule_rank(plan, (rows, rows), axes, 0).runs] == [True, False]
    assert not any(run.own for run in schedule_rank(plan, (rows, whole), axes, 0).runs)


def test_own_runs_are_verified():
    """A run that is said to be own and is not, or the other way round, is refused."""
    plan, reads, axes = gather((8, 3), 0, 2), reads_a(), gemm_axes(8, 4, 4, 4)
    good = schedule_all(plan, reads, axes)
    assert [[run.own for run in each.runs] for each in good] == [[True, False]] * 2
    verify_schedule(good, plan, reads, axes)
    for own in ((True, True), (False, True)):
        runs = tuple(replace(run, own=said) for run, said in zip(good[1].runs, own, strict=True))
        with pytest.raises(ScheduleError, match="rank 1: run . is (not )?said to read nothing but what the rank holds"):
            verify_schedule((good[0], replace(good[1], runs=runs)), plan, reads, axes)
    straddling = gather((6, 3), 0, 2)
    axes = gemm_axes(6, 4, 4, 4)
    found = schedule_all(straddling, reads, axes)
    assert not any(run.own for each in found for run in each.runs)
    runs = tuple(replace(run, own=not run.waits) for run in found[1].runs)
    with pytest.raises(ScheduleError, match="not said to read nothing"):
        verify_schedule((found[0], replace(found[1], runs=runs)), straddling, reads, axes)
