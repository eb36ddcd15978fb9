"""What of a result stays where it is made: which pieces, and which runs make nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.chunkplan.region import Box
from overlap.chunkplan.window import kernel_window
from overlap.errors import ScheduleError
from overlap.schedule.early import can_be_early, in_rounds
from overlap.schedule.model import AxisTiles, Run, TensorWrite
from overlap.schedule.runs import schedule_all, schedule_rank
from overlap.schedule.staying import making, staying, staying_box
from overlap.schedule.verify import verify_schedule

from .plans import exchange, one_shot, reduce_scatter, two_shot

C = "c"


def made(name: str, world: int, shape: tuple[int, ...], to_dim: int | None = 1, split: int = 1) -> CommPlan:
    path, text = find_template(name)
    plan = build_plan(
        text, world=world, tensor=TensorSpec(C, shape), dim=0, to_dim=to_dim, split=split, direction="push", path=path
    )
    return in_rounds(plan, (C,))


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(12, 12), (7, 11), (2, 3), (0, 4), (4, 0)], ids=str)
def test_of_an_exchange_a_rank_keeps_its_rows_of_its_columns(world, shape):
    for split in (1, 2, 3):
        plan = made("all_to_all_1d", world, shape, split=split)
        for rank in range(world):
            (before,), (after,) = plan.before[rank], plan.after[rank]
            wanted = before.box.intersect(after.box)
            assert staying_box(staying(plan, rank, C)) == (None if wanted.empty else wanted)


def test_of_sums_nothing_stays_but_on_one_rank():
    for several in (reduce_scatter((6, 2), 0, 2), one_shot((6, 2), 2), two_shot((6, 2), 0, 2)):
        assert [staying(several, rank, C) for rank in range(2)] == [(), ()]
    for plan in (reduce_scatter((6, 2), 0, 1), one_shot((6, 2), 1)):
        assert staying_box(staying(plan, 0, C)) == Box((0, 0), (6, 2))


def test_what_stays_in_pieces_that_are_no_box_is_none():
    found = staying(exchange((4, 4), 2), 0, C)
    (piece,) = found
    corner = [piece, *staying(exchange((4, 4), 2), 1, C)]
    assert staying_box(corner) is None and staying_box(found) == Box((0, 0), (2, 2))


def tiles_of(run: Run) -> list[tuple[int, ...]]:
    return list(product(*(range(at, at + n) for at, n in zip(run.origin, run.counts, strict=True))))


def points(tile: tuple[int, ...], axes: tuple[AxisTiles, ...], window: Box) -> set[tuple[int, ...]]:
    along = [
        range(lo + i * axis.block, min(hi, lo + (i + 1) * axis.block))
        for i, axis, lo, hi in zip(tile, axes, window.lo, window.hi, strict=True)
    ]
    return set(product(*along))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("split", [1, 2])
def test_runs_are_own_where_every_tile_of_what_stays_makes_nothing_else(world, split):
    """Against elements, in shapes that blocks divide and that they do not, with early sums and without."""
    write, taken = TensorWrite(C, ("M", "N")), 0
    for shape in ((12 * world, 12), (12, 12 * world), (24, 24), (10, 9), (world, world), (24, 12)):
        plan = made("all_to_all_1d", world, shape, split=split)
        for rank, block, early in product(range(world), ((4, 4), (3, 2)), {False, can_be_early(plan, (C,))}):
            window = kernel_window(plan, C, "all_to_all", True, rank)
            axes = tuple(AxisTiles(n, e, b) for n, e, b in zip("MN", window.shape, block, strict=True))
            schedule = schedule_rank(plan, (), axes, rank, writes=(write,), windows={C: window}, early=early)
            box = staying_box(staying(plan, rank, C))
            own = making(schedule.runs, box, axes, (write,), window)
            kept = points((0, 0), tuple(AxisTiles(n, 99, 99) for n in "MN"), box) if box else set()
            tiles = [[points(tile, axes, window) for tile in tiles_of(run)] for run in schedule.runs]
            whole = all(part <= kept or not part & kept for run in tiles for part in run)
            for run, said in zip(tiles, own, strict=True):
                assert said == (whole and bool(kept) and all(part <= kept for part in run))
            taken += any(own)
    assert taken > 10


def test_runs_that_count_tiles_are_not_own_and_those_of_every_element_only_where_all_stays():
    axes, window = (AxisTiles("M", 8, 4), AxisTiles("N", 8, 4)), Box((0, 0), (8, 8))
    left = Run(0, (0, 0), (2, 1))
    rest = Run(2, (0, 1), (2, 1))
    rows, both = TensorWrite(C, ("M", None)), TensorWrite(C, ("M", "N"))
    half = Box((0, 0), (8, 4))
    assert making((left, rest), half, axes, (both,), window) == (True, False)
    assert making((left, rest), None, axes, (both,), window) == (False, False)
    assert making((left, rest), half, axes, (rows,), window) == (False, False)
    assert making((left, rest), half, axes, (both, rows), window) == (False, False)
    assert making((left, rest), window, axes, (rows,), window) == (True, True)
    counted = Run(
        0, (0, 0), (2, 1), raises=schedule_rank(exchange((8, 8), 2), (), axes[:1], 0, writes=(rows,)).runs[0].raises
    )
    assert counted.raises and making((counted, rest), half, axes, (both,), window) == (False, False)


def test_own_runs_are_verified():
    """A run that is said to be own and is not, or the other way round, is refused."""
    plan, write = made("all_to_all_1d", 2, (8, 16)), TensorWrite(C, ("M", "N"))
    windows = [{C: kernel_window(plan, C, "all_to_all", True, rank)} for rank in range(2)]
    axes = (AxisTiles("M", 4, 4), AxisTiles("N", 16, 4))
    good = schedule_all(plan, (), axes, writes=(write,), windows=windows)
    assert [[run.own for run in each.runs] for each in good] == [[False, True]] * 2
    verify_schedule(good, plan, (), axes, writes=(write,), windows=windows)
    for own in ((True, True), (True, False)):
        runs = tuple(replace(run, own=said) for run, said in zip(good[1].runs, own, strict=True))
        with pytest.raises(ScheduleError, match="rank 1: run . is (not )?said to make nothing but what stays of c"):
            verify_schedule([good[0], replace(good[1], runs=runs)], plan, (), axes, writes=(write,), windows=windows)
