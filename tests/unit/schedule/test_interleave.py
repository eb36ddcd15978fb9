"""Moves between tiles: how many are ahead of which wait, and that no ranks wait in a circle, against a model that carries out
every program step by step."""

from __future__ import annotations

import itertools

import pytest

from overlap.chunkplan.order import happens_before
from overlap.errors import ScheduleError
from overlap.schedule.interleave import levels, moves_ahead, pace, verify_interleaved, waits_of
from overlap.schedule.model import AxisTiles, TensorRead
from overlap.schedule.moves import Move, moves_of
from overlap.schedule.runs import schedule_all

from .test_moves import PLANS, plan_of

READS = (TensorRead("a", ("M", None), (False, False)),)


def launch(name, world, rows, *, block=4, ordered=True, **options):
    """A plan, every rank's moves, and its schedule of tiles of rows."""
    plan = plan_of(name, world, rows=rows, **options)
    axes = (AxisTiles("M", rows, block),)
    return plan, [moves_of(plan, rank) for rank in range(world)], schedule_all(plan, READS, axes, ordered=ordered)


def waits(plan, moves, schedules):
    level = levels(happens_before(plan))
    return [waits_of([schedule], own, level) for schedule, own in zip(schedules, moves, strict=True)]


def ends(moves, waits, programs, paced):
    """Whether all programs of all ranks end, each at its own pace, as soon as nothing holds them up.

    Flags only rise, so any order comes as far as this one does.
    """
    steps = {}
    for rank, own in enumerate(moves):
        for program, runs in enumerate(programs[rank]):
            made, line = 0, []
            for tile, run in enumerate(runs):
                ops, ahead = waits[rank][run]
                due = max(ahead, (tile + 1) // paced, made)
                line += [("part", move) for move in own[made:due]]
                made = max(made, min(due, len(own)))
                line.append(("wait", ops))
            steps[rank, program] = line + [("part", move) for move in own[made:]]
    raised, counted, moving = set(), {}, True
    at = dict.fromkeys(steps, 0)
    while moving:
        moving = False
        for (rank, program), line in steps.items():
            while at[rank, program] < len(line):
                kind, what = line[at[rank, program]]
                if not set(what.awaits if kind == "part" else what) <= raised:
                    break
                at[rank, program] += 1
                moving = True
                if kind == "part":
                    counted[what.op] = counted.get(what.op, 0) + 1
                    if counted[what.op] == len(programs[rank]):
                        raised.add(what.op)
    return all(at[key] == len(line) for key, line in steps.items())


def assignments(runs, programs):
    """Ways to deal runs to programs: in turn, each to all, the later ones alone, all to one."""
    yield [list(range(p, runs, programs)) for p in range(programs)]
    yield [list(range(runs))] * programs
    yield [[run] for run in range(runs)][-programs:] or [[]]
    yield [[], list(range(runs))]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("direction", ["push", "pull"])
@pytest.mark.parametrize(("world", "rows", "split"), [(2, 37, 1), (4, 3, 2), (4, 37, 1), (4, 0, 1)])
def test_no_ranks_wait_in_a_circle_however_tiles_are_dealt(name, direction, world, rows, split):
    plan, moves, schedules = launch(name, world, rows, direction=direction, split=split)
    found = waits(plan, moves, schedules)
    verify_interleaved(plan, moves, found)
    for programs, paced in itertools.product((1, 2, 3), (1, 3, 100)):
        for dealt in zip(*(assignments(len(schedule.runs), programs) for schedule in schedules), strict=True):
            assert ends(moves, found, dealt, paced), (programs, paced, dealt)


def test_moves_ahead_of_a_wait_go_as_deep_as_what_it_is_for():
    plan, moves, schedules = launch("all_gather_1d", 4, 16)
    level = levels(happens_before(plan))
    assert [moves_ahead(s, own, level) for s, own in zip(schedules, moves, strict=True)] == [(0, 1, 2, 3)] * 4
    ring, moves, schedules = launch("all_gather_ring", 3, 2)
    level = levels(happens_before(ring))
    # One tile reads all; the third rank's shard is empty, so that rank 0 waits for its neighbour's alone.
    assert [moves_ahead(s, own, level) for s, own in zip(schedules, moves, strict=True)] == [(1,), (2,), (2,)]


@pytest.mark.parametrize("name", ["all_gather_1d", "all_gather_ring"])
def test_every_wait_with_fewer_moves_ahead_is_judged_as_the_model_does(name):
    """Exhaustively: any number of moves ahead of each wait of each rank, small."""
    plan, moves, schedules = launch(name, 3, 3, block=3)
    right = waits(plan, moves, schedules)
    verdicts = set()
    for counts in itertools.product(range(3), repeat=3):
        found = [[(ops, made)] for ((ops, _),), made in zip(right, counts, strict=True)]
        dealt = [[[0]]] * 3
        model = ends(moves, found, dealt, 100)
        try:
            verify_interleaved(plan, moves, found)
        except ScheduleError as error:
            assert "deadlock between tiles and the moves" in error.message and "a wait of rank" in error.message
            assert not model, counts
            verdicts.add(False)
        else:
            assert model, counts
            verdicts.add(True)
    assert verdicts == {True, False}


def test_moves_in_another_order_than_that_of_all_ranks_are_a_circle():
    plan, moves, schedules = launch("all_gather_ring", 3, 12)
    late = [own[::-1] for own in moves]
    with pytest.raises(ScheduleError, match="comes after"):
        verify_interleaved(plan, late, waits(plan, moves, schedules))
    free = [tuple(Move(move.op) for move in own) for own in moves]
    verify_interleaved(plan, free, waits(plan, moves, schedules))


@pytest.mark.parametrize(
    ("tiles", "programs", "moves", "steps"),
    [(3584, 132, 3, 6), (3584, 132, 6, 3), (4, 132, 3, 1), (0, 1, 0, 1), (100, 1, 0, 100), (27, 0, 2, 9)],
)
def test_parts_are_spread_over_the_tiles_of_a_program(tiles, programs, moves, steps):
    assert pace(tiles, programs, moves) == steps
