"""The table's words, read back by a decoder that knows the layout from docs and from nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.plan import Chunk
from overlap.chunkplan.region import Box
from overlap.errors import ScheduleError
from overlap.schedule import table
from overlap.schedule.model import AxisTiles, Counter, CountIn, RankSchedule, Run, Wait
from overlap.schedule.runs import schedule_rank
from overlap.schedule.table import counter_base, done_base, flag_base, state_words, to_words, way_base
from tests.support.sweep import examples

from .oracle import tiles_of
from .plans import gather, gemm_axes, reads_a

INT = st.integers(0, 2**31 - 1)
SMALL = st.integers(1, 5)


def decode(words: list[int]) -> dict:
    """Header, runs, flags, counters and coordinates of version 5."""
    version, runs, run_base, coordinate_base, flags, axes, tiles, counters, finished = words[:9]
    assert version == 5
    records = [words[run_base + 18 * i : run_base + 18 * (i + 1)] for i in range(runs + 1)]

    def entries(begin, end, size):
        assert 0 <= begin <= end <= len(words) and (end - begin) % size == 0
        return [tuple(words[i : i + size]) for i in range(begin, end, size)]

    return {
        "flags": flags,
        "counters": counters,
        "tiles": tiles,
        "finished": finished,
        "axes": axes,
        "sentinel": records[-1][0],
        "runs": [
            {
                "first": r[0],
                "unit": r[1],
                "waits": entries(r[2], r[3], 2),
                "raises": entries(r[4], r[5], 4),
                "peer": r[6],
                "way": r[7],
                "moves": r[8],
                "own": r[9],
                "origin": tuple(r[10 : 10 + 2 * axes : 2]),
                "counts": tuple(r[11 : 11 + 2 * axes : 2]),
            }
            for r in records[:-1]
        ],
        "coordinates": [tuple(words[i : i + axes]) for i in range(coordinate_base, len(words), axes)]
        if coordinate_base
        else None,
    }


@st.composite
def schedules(draw):
    axes = draw(st.integers(1, 4))
    flags = st.lists(st.builds(Wait, op=st.just((0, 0)), slot=INT, count=SMALL), max_size=4).map(tuple)
    targets = draw(st.lists(INT, max_size=5))
    counts = st.sets(st.sampled_from(range(len(targets))), max_size=4) if targets else st.just(())
    counts = counts.map(lambda slots: tuple(CountIn(slot) for slot in sorted(slots)))
    runs, first = [], 0
    for _ in range(draw(st.integers(0, 5))):
        box = [draw(st.tuples(*[n] * axes)) for n in (st.integers(0, 9), st.integers(1, 3))]
        peer, unit = draw(st.integers(-1, 7)), draw(st.integers(0, 3))
        runs.append(Run(first, box[0], box[1], draw(flags), None, unit, peer, draw(counts), draw(st.booleans())))
        first += runs[-1].tiles
    coordinates = None
    if runs and draw(st.booleans()):
        coordinates = tuple(tile for run in runs for tile in tiles_of(run))
    world = draw(st.integers(1, 16))
    grid = tuple(AxisTiles(f"X{i}", draw(st.integers(1, 99)), draw(SMALL)) for i in range(axes))
    chunk = Chunk("c", Box((0,), (1,)))
    counters = tuple(Counter(slot, chunk, target, ((0, slot),)) for slot, target in enumerate(targets))
    return RankSchedule(0, world, grid, tuple(runs), {}, (), coordinates, counters)


@settings(max_examples=examples(200), deadline=None)
@given(schedules(), st.integers(0, 300))
def test_words_hold_the_schedule(schedule, room):
    moves = [3 * i for i in range(len(schedule.runs))] if room % 2 else []
    found = decode(to_words(schedule, room, moves=moves))
    targets = {counter.slot: counter.target for counter in schedule.counters}
    assert found["runs"] == [
        {
            "first": run.first,
            "unit": run.unit,
            "waits": [(w.slot, w.count) for w in run.waits],
            "raises": [(count.slot, targets[count.slot], -1, -1) for count in run.raises],
            "peer": run.peer,
            "way": way_base(schedule.world),
            "moves": moves[i] if moves else 0,
            "own": int(run.own),
            "origin": run.origin,
            "counts": run.counts,
        }
        for i, run in enumerate(schedule.runs)
    ]
    assert found["tiles"] == sum(run.tiles for run in schedule.runs) and found["axes"] == len(schedule.axes)
    assert found["sentinel"] == 2**31 - 1
    assert found["finished"] == found["tiles"], "none is"
    assert found["flags"] == (4 + 2 * schedule.world) * 4
    assert found["counters"] == (4 + 2 * schedule.world + room) * 4, "counters stand behind room for the flags"
    assert found["coordinates"] == (list(schedule.coordinates) if schedule.coordinates else None)


@pytest.mark.parametrize("mapped", [False, True])
def test_words_of_a_real_schedule_place_every_tile(mapped):
    """As a kernel reads them: the run by its first position, then the coordinate inside it or the listed one."""
    tile_map = (lambda tile, counts: (0, tile)) if mapped else None
    schedule = schedule_rank(gather((136, 8), 0, 4), reads_a(), gemm_axes(136, 100, 32, 64), 2, tile_map=tile_map)
    found = decode(to_words(schedule))
    seen = []
    for position in range(found["tiles"]):
        run = max((r for r in found["runs"] if r["first"] <= position), key=lambda r: r["first"])
        inside = position - run["first"]
        row, column = divmod(inside, run["counts"][1])
        place = (run["origin"][0] + row, run["origin"][1] + column)
        seen.append(found["coordinates"][position] if found["coordinates"] else place)
    assert (found["coordinates"] is not None) == mapped
    assert sorted(seen) == [(m, n) for m in range(5) for n in range(2)]
    assert [r["waits"] for r in found["runs"]] == [[(0, 1)], [(1, 1)], [(2, 1)]]


def test_an_empty_schedule_is_a_header_and_a_sentinel():
    schedule = schedule_rank(gather((0, 8), 0, 4), reads_a(), gemm_axes(0, 8, 4, 4), 2)
    words = to_words(schedule)
    assert len(words) == 9 + 18 and decode(words)["tiles"] == 0 and words[9] == table.SENTINEL


@pytest.mark.parametrize("world", [1, 2, 5])
def test_state_words_are_apart_and_all_there(world):
    """Epoch, counter, spin limit, fault, ready and done of every rank, flags, counters: one 32-byte sector each."""
    slots = [table.S_EPOCH, table.S_COUNTER, table.S_SPIN_LIMIT, table.S_FAULT]
    slots += [table.S_READY + p for p in range(world)]
    slots += [done_base(world) + p for p in range(world)]
    slots += [flag_base(world) + f for f in range(3)]
    slots += [counter_base(world, 3) + c for c in range(2)]
    assert slots == list(range(4 + 2 * world + 5))
    assert table.SLOT_WORDS * 8 == 32
    assert state_words(world, 3, 2) == len(slots) * table.SLOT_WORDS
    assert state_words(world, 3) == (len(slots) - 2) * table.SLOT_WORDS
    schedule = schedule_rank(gather((0, 8), 0, world), reads_a(), gemm_axes(0, 8, 4, 4), 0)
    assert decode(to_words(schedule))["flags"] == flag_base(world) * table.SLOT_WORDS


def test_what_a_table_cannot_hold_is_refused():
    five = tuple(AxisTiles(name, 1, 1) for name in "ABCDE")
    with pytest.raises(ScheduleError, match="5 tile axes; a table holds 4"):
        to_words(RankSchedule(0, 1, five, (), {}, ()))
    run = Run(0, (2**31,), (1,))
    with pytest.raises(ScheduleError, match="32 bits"):
        to_words(RankSchedule(0, 1, five[:1], (run,), {}, ()))
    words = to_words(RankSchedule(0, 1, five[:1], (replace(run, origin=(2**31 - 1,)),), {}, ()))
    assert max(words) == 2**31 - 1
    many = tuple(CountIn(slot) for slot in range(129))
    counted = RankSchedule(0, 1, five[:1], (replace(run, origin=(0,), raises=many[:128]),), {}, ())
    counters = tuple(Counter(slot, Chunk("c", Box((0,), (1,))), 1, ((0, slot),)) for slot in range(129))
    assert len(decode(to_words(replace(counted, counters=counters)))["runs"][0]["raises"]) == 128
    counted = replace(counted, runs=(replace(counted.runs[0], raises=many),), counters=counters)
    with pytest.raises(ScheduleError, match="parts of 129 chunks; 128 can be counted") as raised:
        to_words(counted)
    assert "larger chunks" in raised.value.help
