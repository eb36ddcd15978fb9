"""Which tiles add what others have sent of them, what they wait for, and what is left to sum kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box
from overlap.errors import ScheduleError
from overlap.schedule import table
from overlap.schedule.model import AxisTiles, TensorWrite
from overlap.schedule.pieces import pieces
from overlap.schedule.runs import schedule_all, schedule_rank
from overlap.schedule.steps import Kernel, Sum, launch_steps
from overlap.schedule.table import to_words
from overlap.schedule.tile_sums import finished, parts_added, region_of
from overlap.schedule.verify import verify_schedule
from overlap.schedule.verify_steps import verify_steps
from overlap.schedule.work import work_of_schedules, work_per_chunk

from .plans import exchange, one_shot, ring_scatter, two_shot

WRITES = (TensorWrite("c", ("M", "N")),)
BLOCK = 4


def scattered(rows: int, world: int, split: Split = 1, columns: int = 8) -> CommPlan:
    path, text = find_template("reduce_scatter_1d")
    spec = TensorSpec("c", (rows, columns))
    return build_plan(text, world=world, tensor=spec, dim=0, split=split, direction="push", path=path)


def axes(rows: int, columns: int = 8) -> tuple[AxisTiles, ...]:
    return AxisTiles("M", rows, BLOCK), AxisTiles("N", columns, BLOCK)


@pytest.mark.parametrize("split", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_own_tiles_come_last_and_wait_for_what_is_added_to_them(world, split):
    rows = BLOCK * world * 6
    plan = scattered(rows, world, split)
    schedules = schedule_all(plan, (), axes(rows), writes=WRITES, finish=True)
    for rank, schedule in enumerate(schedules):
        found = finished(plan, schedule, WRITES, Box.whole((rows, 8)))
        assert found is not None
        _, result = pieces(plan, rank, "c")
        assert {piece for piece in found if piece} == {piece for piece in result if not piece.chunk.box.empty}
        for run, piece in zip(schedule.runs, found, strict=True):
            if piece is None:
                assert run.raises and not run.waits
                continue
            assert not run.raises
            assert piece.chunk.box.contains(region_of(schedule, run, WRITES[0], Box.whole((rows, 8))))
            # A flag of a channel stands for those ahead of it: of each peer at least the last that is added.
            waited = {wait.op for wait in run.waits}
            assert {op[0] for op in waited} == {op[0] for op in piece.summands if op is not None}
            for op in (op for op in piece.summands if op is not None):
                assert any(owner == op[0] and index >= op[1] for owner, index in waited)


@pytest.mark.parametrize(
    ("rows", "world", "split"),
    [(26, 2, 1), (30, 3, 1), (BLOCK * 2 + 2, 2, 2), (BLOCK * 6, 2, 4), (7, 5, 1)],
)
def test_tiles_on_an_edge_leave_all_of_it_to_a_sum(rows, world, split):
    plan = scattered(rows, world, split)
    found = [
        finished(plan, schedule, WRITES, Box.whole((rows, 8)))
        for schedule in schedule_all(plan, (), axes(rows), writes=WRITES, finish=True)
    ]
    assert None in found


def test_a_last_block_that_is_cut_short_is_finished():
    rows = BLOCK * 4 - 1  # ranks have 8 and 7 rows
    plan = scattered(rows, 2)
    for rank in range(2):
        schedule = schedule_rank(plan, (), axes(rows), rank, writes=WRITES, finish=True)
        assert finished(plan, schedule, WRITES, Box.whole((rows, 8)))


def test_no_rows_are_nothing_to_finish():
    plan = scattered(0, 2)
    schedule = schedule_rank(plan, (), axes(0), 0, writes=WRITES, finish=True)
    assert finished(plan, schedule, WRITES, Box.whole((0, 8))) == ()


@pytest.mark.parametrize(
    "plan", [two_shot((16, 8), 0, 2), one_shot((16, 8), 2), exchange((16, 8), 2)], ids=lambda p: p.name
)
def test_what_is_sent_on_or_only_brought_is_left(plan):
    window = Box.whole((16, 8)) if plan.name != "exchange" else Box((0, 0), (8, 8))
    windows = {"c": window}
    grid = (AxisTiles("M", window.shape[0], BLOCK), AxisTiles("N", window.shape[1], BLOCK))
    schedule = schedule_rank(plan, (), grid, 0, writes=WRITES, windows=windows, finish=True)
    assert finished(plan, schedule, WRITES, window) is None


def test_several_ways_to_write_are_left():
    plan = scattered(BLOCK * 4, 2)
    schedule = schedule_rank(plan, (), axes(BLOCK * 4), 0, writes=WRITES, finish=True)
    assert finished(plan, schedule, (*WRITES, TensorWrite("c", ("M", None))), Box.whole((BLOCK * 4, 8))) is None


@pytest.mark.parametrize("world", [1, 2, 4])
def test_what_tiles_add_no_sum_adds(world):
    plan = scattered(BLOCK * 4 * world, world, 2)
    by_rank = [tuple(pieces(plan, rank, "c")[1]) for rank in range(world)]
    steps = [launch_steps(plan, rank, produced=["c"], finished=by_rank[rank]) for rank in range(world)]
    verify_steps(steps, plan, ["c"])
    for rank, own in enumerate(steps):
        assert not any(isinstance(step, Sum) for step in own)
        (kernel,) = (step for step in own if isinstance(step, Kernel))
        assert kernel.finished == by_rank[rank]
    part = [launch_steps(plan, rank, produced=["c"], finished=by_rank[rank][:1]) for rank in range(world)]
    verify_steps(part, plan, ["c"])
    assert world == 1 or all(any(isinstance(step, Sum) for step in own) for own in part)


def test_a_piece_that_is_added_twice_or_not_kept_is_refused():
    plan = scattered(16, 2)
    own, other = (pieces(plan, rank, "c")[1] for rank in range(2))
    for wrong in (other, (*own, *own)):
        steps = [launch_steps(plan, rank, produced=["c"], finished=wrong if rank == 0 else ()) for rank in range(2)]
        with pytest.raises(ScheduleError, match="no part of its own|no sum adds up"):
            verify_steps(steps, plan, ["c"])


def test_the_table_says_where_tiles_begin_that_are_finished_and_what_is_added():
    plan = scattered(BLOCK * 4, 2, 2)
    schedule = schedule_rank(plan, (), axes(BLOCK * 4), 0, writes=WRITES, finish=True)
    found = finished(plan, schedule, WRITES, Box.whole((BLOCK * 4, 8)))
    assert found is not None
    begins = [-1 if piece is None else 30 + i for i, piece in enumerate(found)]
    words = to_words(schedule, 4, summed=begins)
    first = next(run.first for run, piece in zip(schedule.runs, found, strict=True) if piece is not None)
    assert words[table.H_FINISHED] == first > 0
    records = [words[table.HEADER_WORDS + i * table.RUN_WORDS :] for i in range(len(schedule.runs))]
    assert [record[table.R_WAY] for record in records] == begins
    assert to_words(schedule, 4)[table.H_FINISHED] == sum(run.tiles for run in schedule.runs)


@pytest.mark.parametrize("split", [1, 2, 3, ((1,), (1,), (1, 3))])
@pytest.mark.parametrize(
    ("rows", "world"), [(24, 1), (48, 2), (44, 2), (40, 2), (26, 2), (72, 3), (60, 3), (0, 2), (7, 5)]
)
def test_parts_of_a_plan_are_what_schedules_say_tiles_finish(rows, world, split):
    """Without schedules: the same parts in the same order, with all that is added to each, where every rank's tiles can."""
    plan = scattered(rows, world, split)
    schedules = schedule_all(plan, (), axes(rows), writes=WRITES, finish=True)
    by_run = [finished(plan, schedule, WRITES, Box.whole((rows, 8))) for schedule in schedules]
    found = parts_added(plan, "c", (BLOCK, BLOCK))
    assert (found is None) == (None in by_run)
    for parts, runs in zip(found or (), by_run, strict=False):
        pieces_here = list(dict.fromkeys(piece for piece in runs or () if piece is not None))
        assert [(chunk.box, set(ops)) for chunk, ops in parts] == [
            (piece.chunk.box, {op for op in piece.summands if op is not None}) for piece in pieces_here
        ]


@pytest.mark.parametrize(
    "plan", [two_shot((16, 8), 0, 2), one_shot((16, 8), 2), exchange((16, 8), 2), ring_scatter((24, 8), 0, 3)]
)
def test_plans_of_more_than_a_step_that_adds_have_no_such_parts(plan):
    assert parts_added(plan, plan.tensors[0].name, (BLOCK, BLOCK)) is None


def test_what_is_added_in_another_type_is_left():
    plan = scattered(16, 2)
    ops = tuple(tuple(replace(op, reduce=Reduction("sum", "fp64")) for op in own) for own in plan.ops)
    assert parts_added(plan, "c", (BLOCK, BLOCK)) and parts_added(replace(plan, ops=ops), "c", (BLOCK, BLOCK)) is None


def test_tiles_that_do_not_wait_for_what_they_add_are_refused():
    plan = scattered(16, 2)
    schedules = schedule_all(plan, (), axes(16), writes=WRITES, finish=True)
    verify_schedule(schedules, plan, (), axes(16), writes=WRITES, finish=(0, 1))
    plain = schedule_all(plan, (), axes(16), writes=WRITES)
    verify_schedule((plain[0], schedules[1]), plan, (), axes(16), writes=WRITES, finish=(1,))
    with pytest.raises(ScheduleError, match="without a wait"):
        verify_schedule((plain[0], schedules[1]), plan, (), axes(16), writes=WRITES, finish=(0, 1))


@pytest.mark.parametrize("world", [2, 3])
def test_work_of_schedules_and_of_a_plan_finish_the_same_tiles(world):
    plan = scattered(BLOCK * 4 * world, world, 2)
    schedules = schedule_all(plan, (), axes(BLOCK * 4 * world), writes=WRITES, finish=True)
    tiles = sum(run.tiles for run in schedules[0].runs)
    parts = parts_added(plan, "c", (BLOCK, BLOCK))
    exact = work_of_schedules(plan, schedules, 1.0, adding=0.25)
    shared = work_per_chunk(plan, tiles, 1.0, produced=["c"], parts=parts, adding=0.25)
    for own, guessed in zip(exact, shared, strict=True):
        assert own.finished and guessed.finished
        kept = [(run.tiles, run.seconds) for run in own.runs if not run.feeds]
        assert (
            kept
            == [(run.tiles, run.seconds) for run in guessed.runs if not run.feeds]
            == [(4, 1 + 0.25 * (world - 1))] * 2
        )
        assert [run.feeds for run in own.runs] == [run.feeds for run in guessed.runs]
        assert all(set(a.waits) <= set(b.waits) for a, b in zip(own.runs, guessed.runs, strict=True))
    plain = work_of_schedules(plan, schedule_all(plan, (), axes(BLOCK * 4 * world), writes=WRITES), 1.0, adding=0.25)
    assert not any(own.finished for own in plain) and {run.seconds for own in plain for run in own.runs} == {1.0}
