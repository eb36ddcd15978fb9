"""The user's tile order inside the runs."""

from __future__ import annotations

import time
from itertools import product

import pytest

from overlap.errors import ScheduleError
from overlap.schedule.mapping import TileMapCheck
from overlap.schedule.runs import schedule_all, schedule_rank
from overlap.schedule.verify import verify_schedule

from .oracle import tiles_of
from .plans import gather, gemm_axes, reads_a


def grouped(group):
    def tile_map(tile, counts):
        width = group * counts[1]
        first = tile // width * group
        size = min(counts[0] - first, group)
        return first + tile % width % size, tile % width // size

    return tile_map


def remapped(tile, counts):
    """Spreads tiles over 8 chiplets as kernels for AMD do: no bijection unless 8 divides the tiles."""
    tiles = counts[0] * counts[1]
    tile = tile % 8 * (tiles // 8) + tile // 8
    return tile // counts[1], tile % counts[1]


def bijection(tile_map, counts) -> bool:
    tiles = counts[0] * counts[1]
    return {tile_map(t, counts) for t in range(tiles)} == set(product(range(counts[0]), range(counts[1])))


@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_grouped_order_is_a_bijection_on_every_box(group):
    check = TileMapCheck(grouped(group))
    assert all(check(counts) for counts in product(range(1, 12), range(1, 8)))


def test_odd_orders_are_found_out():
    mirrored = lambda tile, counts: (counts[0] - 1 - tile // counts[1], tile % counts[1])  # noqa: E731
    for tile_map in (remapped, mirrored, lambda tile, counts: (tile % counts[0], tile % counts[1])):
        check = TileMapCheck(tile_map)
        answers = {counts: check(counts) for counts in product(range(1, 10), range(1, 10))}
        assert answers == {counts: bijection(tile_map, counts) for counts in answers}
        if tile_map is not mirrored:
            assert {True, False} == set(answers.values())


@pytest.mark.parametrize("bad", [lambda t, c: (t // c[1] + 1, t % c[1]), lambda t, c: (t // c[1], t % c[1] - 1)])
def test_coordinates_outside_the_box_are_no_bijection(bad):
    assert not TileMapCheck(bad)((3, 4))


def test_a_mapping_that_divides_by_zero_on_a_small_box_is_no_bijection():
    by_fours = lambda tile, counts: (tile % counts[0] + 0 * (tile // (counts[0] // 4)), tile // counts[0])  # noqa: E731
    assert TileMapCheck(by_fours)((4, 2)) and not TileMapCheck(by_fours)((3, 2))


@pytest.mark.parametrize("bad", [lambda t, c: t, lambda t, c: (t,), lambda t, c: (t / 2, 0), lambda t, c: (0, 0, 0)])
def test_a_mapping_to_something_else_is_refused(bad):
    with pytest.raises(ScheduleError, match="tile 0 of") as raised:
        schedule_rank(gather((8, 2), 0, 2), reads_a(), gemm_axes(8, 8, 4, 4), 0, tile_map=bad)
    assert "2 integers" in raised.value.help


def test_each_counts_is_evaluated_once():
    asked = []

    def tile_map(tile, counts):
        asked.append((tile, counts))
        return tile // counts[1], tile % counts[1]

    schedules = schedule_all(gather((64, 2), 0, 4), reads_a(), gemm_axes(64, 20, 8, 8), tile_map=tile_map)
    assert len(asked) == len(set(asked)) > 0
    assert {counts for _, counts in asked} == {run.counts for schedule in schedules for run in schedule.runs}


def test_a_bijective_order_needs_no_coordinates():
    plan = gather((136, 8), 0, 4)
    assert schedule_rank(plan, reads_a(), gemm_axes(136, 300, 32, 64), 1, tile_map=grouped(2)).coordinates is None


def test_where_one_run_is_no_bijection_every_position_is_listed():
    """8 x 1 tiles a rank are spread over 8 chiplets, the last rank's 3 x 1 are not."""
    plan, axes = gather((27 * 16, 8), 0, 4, split=1), gemm_axes(27 * 16, 16, 16, 16)
    schedules = schedule_all(plan, reads_a(), axes, tile_map=remapped)
    verify_schedule(schedules, plan, reads_a(), axes)
    for schedule in schedules:
        assert schedule.coordinates == tuple(tile for run in schedule.runs for tile in tiles_of(run))


def test_a_large_grid_is_scheduled_at_once():
    """15,000 tiles: a call that meets new sizes must not be held up. The bound is ten times what it takes."""
    plan, axes = gather((120 * 128, 64), 0, 8, split=2), gemm_axes(120 * 128, 125 * 128, 128, 128)
    start = time.perf_counter()
    schedule = schedule_rank(plan, reads_a(), axes, 3, tile_map=grouped(8))
    assert sum(run.tiles for run in schedule.runs) == 15_000 and schedule.coordinates is None
    assert time.perf_counter() - start < 1.0
