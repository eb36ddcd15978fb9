"""Which tiles read a chunk, against counting element by element; what is not covered is named."""

from __future__ import annotations

import dataclasses
from itertools import product

import pytest

from overlap.chunkplan.plan import Chunk, Collective, CommPlan
from overlap.chunkplan.region import Box
from overlap.errors import PlanError, SourceSpan
from overlap.schedule.depgraph import check_covered, dependence_graph, tiles_reading
from overlap.schedule.model import AxisTiles
from overlap.schedule.runs import schedule_rank

from .oracle import elements
from .plans import finish, gather, gemm_axes, pieces, reads_a, reads_b


def test_tiles_reading_an_interval():
    """All extents to 13, blocks to 16 and intervals, wrapped or not."""
    for extent, block in product(range(14), (1, 2, 3, 4, 5, 7, 13, 16)):
        axis = AxisTiles("M", extent, block)
        for lo, hi, wraps in product(range(extent + 1), range(extent + 1), (False, True)):
            found = tiles_reading(axis, lo, hi, wraps)
            tiles = [t for start, stop in found for t in range(start, stop)]
            wanted = [t for t in range(axis.count) if any(lo <= i < hi for i in elements(axis, t, wraps))]
            assert tiles == wanted, (extent, block, lo, hi, wraps)
            assert all(stop < start for (_, stop), (start, _) in zip(found, found[1:], strict=False))


def test_a_block_far_wider_than_the_extent_wraps_over_all_of_it():
    axis = AxisTiles("M", 3, 64)
    assert tiles_reading(axis, 1, 2, wraps=True) == tiles_reading(axis, 1, 2) == ((0, 1),)


def test_graph_holds_own_and_arriving_chunks():
    graph = dependence_graph(gather((136, 8), 0, 4), reads_a(), gemm_axes(136, 64, 32, 64), 1)
    assert [tiles[0].intervals for _, tiles in graph.own] == [(((1, 3),), ((0, 1),))]
    assert {op: tiles[0].intervals[0] for op, tiles in graph.arriving.items()} == {
        (1, 0): ((2, 4),),
        (1, 1): ((3, 5),),
        (1, 2): ((0, 2),),
    }
    assert graph.needed((3, 0), (1, 1)) == {(1, 0), (1, 1)}


def test_an_axis_that_does_not_span_the_chunked_dimension_is_not_narrowed():
    graph = dependence_graph(gather((8, 6), 1, 2), reads_a(), gemm_axes(8, 6, 4, 3), 0)
    assert [tiles[0].intervals for tiles in graph.arriving.values()] == [(((0, 2),), ((0, 2),))]


def test_a_chunk_that_no_tile_reads_has_no_tiles():
    """An empty chunk, and every chunk of a grid without columns."""
    graph = dependence_graph(gather((3, 8), 0, 4), reads_a(), gemm_axes(3, 64, 32, 64), 0)
    assert [len(tiles) for tiles in graph.arriving.values()] == [1, 1, 0]
    graph = dependence_graph(gather((8, 2), 0, 2), reads_a(), gemm_axes(8, 0, 4, 4), 0)
    assert graph.arriving == {(0, 0): ()} and [tiles for _, tiles in graph.own] == [()]


def test_collective_all_gather_does_not_hold_back_the_own_part():
    """A library's all-gather brings the whole tensor, of which the rank has its own rows already."""
    parts = pieces((8, 2), 0, 4, 1)
    whole = Chunk("a", Box((0, 0), (8, 2)))
    ops = [[Collective("all_gather", (0, 1, 2, 3), parts[rank][0], whole)] for rank in range(4)]
    plan = finish("library", 4, (8, 2), parts, ops)
    check_covered(plan, reads_a(), gemm_axes(8, 4, 2, 4), 2)
    graph = dependence_graph(plan, reads_a(), gemm_axes(8, 4, 2, 4), 2)
    assert [graph.needed((t, 0), (1, 1)) for t in range(4)] == [{(2, 0)}, {(2, 0)}, set(), {(2, 0)}]
    runs = schedule_rank(plan, reads_a(), gemm_axes(8, 4, 2, 4), 2).runs
    assert [(run.origin[0], run.counts[0], run.chunk) for run in runs] == [(2, 1, None), (0, 2, (2, 0)), (3, 1, (2, 0))]


def drop(plan: CommPlan, rank: int, index: int) -> CommPlan:
    ops = tuple(own[:index] + own[index + 1 :] if r == rank else own for r, own in enumerate(plan.ops))
    return dataclasses.replace(plan, ops=ops)


def test_a_covering_plan_is_covered():
    for world, dim in product(range(1, 6), (0, 1)):
        plan = gather((7, 5), dim, world, split=2)
        for rank in range(world):
            check_covered(plan, reads_a(), gemm_axes(7, 5, 2, 2), rank)
            check_covered(plan, reads_b(tensor="a"), gemm_axes(7, 5, 2, 2), rank)


def test_an_uncovered_box_is_named_with_a_tile_that_reads_it():
    plan = drop(gather((136, 8), 0, 4), 1, 1)
    check_covered(plan, reads_a(), gemm_axes(136, 64, 32, 64), 0)
    story = r"never brings a\[102:136, 0:8\] to rank 1, but tile \(M=3, N=0\) reads it"
    for refuse in (check_covered, schedule_rank):
        with pytest.raises(PlanError, match=story):
            refuse(plan, reads_a(), gemm_axes(136, 64, 32, 64), 1)


def test_a_missing_corner_of_a_chunk_is_found():
    plan = gather((8, 8), 0, 2)
    short = dataclasses.replace(plan.ops[0][0], dst=Chunk("a", Box((4, 0), (8, 7))))
    plan = dataclasses.replace(plan, ops=((short,), plan.ops[1]))
    with pytest.raises(PlanError, match=r"a\[4:8, 7:8\]"):
        check_covered(plan, reads_a(), gemm_axes(8, 8, 4, 4), 0)


@pytest.mark.parametrize("m, n", [(0, 8), (8, 0)])
def test_a_grid_without_tiles_reads_nothing(m, n):
    plan = drop(gather((m, 4), 0, 2), 0, 0)
    check_covered(plan, reads_a(), gemm_axes(m, n, 4, 4), 0)


def test_the_place_in_the_plan_file_is_shown():
    plan = drop(gather((8, 2), 0, 2), 1, 0)
    plan = dataclasses.replace(plan, span=SourceSpan("my.yaml", 1, 7, "plan: mine", 4))
    with pytest.raises(PlanError) as raised:
        check_covered(plan, reads_a(), gemm_axes(8, 2, 4, 2), 1)
    assert str(raised.value).startswith("my.yaml:1:7: plan gather never brings a[0:4, 0:2] to rank 1")
