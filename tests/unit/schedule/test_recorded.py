"""Logs of traced kernels: what is read off words, when chunks were seen, and clocks on one another."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from overlap.annotate.source import SourceUnit
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import TensorSpec
from overlap.errors import ScheduleError, UnsupportedError, UsageError
from overlap.pipeline import Request, compile_source
from overlap.schedule.events import simulate
from overlap.schedule.machine import load_machine
from overlap.schedule.measured import Measured
from overlap.schedule.model import AxisTiles, TensorRead
from overlap.schedule.recorded import RankRecord, log_words, tiles_of
from overlap.schedule.runs import schedule_rank
from overlap.schedule.work import work_of_schedules


def line(waits, ready, begins, ends, program=0, unit=0):
    return [waits, ready, begins, ends, program << 32 | unit, 0, 0, 0]


def test_words_become_times_from_zero():
    words = [*line(0, 0, 110, 150, 3, 77), *line(160, 180, 155, 200, 3, 77)]
    one, other = tiles_of(words, 2, 0, zero=100)
    assert (one.position, one.program, one.unit) == (0, 3, 77)
    assert (one.begins, one.waits, one.ready, one.ends) == pytest.approx((10e-9, 10e-9, 10e-9, 50e-9))
    assert other.ready - other.waits == pytest.approx(20e-9)
    assert one.waited == other.waited == 0  # as short as a look at a flag that is up
    assert tiles_of([], 0, 0, zero=5) == ()


def test_parts_stand_behind_all_tiles_and_a_loop_that_was_not_entered_waits_at_no_time():
    parts = [[120, 125, 130, 150], [0, 0, 140, 141]]
    words = [*line(0, 0, 110, 160), *line(0, 0, 135, 170), *parts[0], *parts[1]]
    assert len(words) == log_words(2, 2)
    one, other = tiles_of(words, 2, 2, zero=100, rate=1.0, loops=2)
    assert one.parts == ((20, 25), (30, 50)) and other.parts == (None, (40, 41))
    assert (one.waited, other.waited) == (25, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (line(0, 0, 0, 150), "tile 0 has not recorded"),
        (line(0, 0, 110, 0), "tile 0 has not recorded"),
        (line(120, 0, 110, 150), "tile 0 has not recorded"),
        (line(120, 115, 110, 150), "run backwards"),
        (line(0, 0, 160, 150), "run backwards"),
        ([], "0 words for 1 tiles"),
    ],
)
def test_a_log_that_is_not_whole_is_refused(words, said):
    with pytest.raises(ScheduleError, match=said):
        tiles_of(words, 1, 0, zero=100)


@pytest.mark.parametrize("parts", [[120, 125, 0, 0], [0, 0, 0, 0], [120, 0, 130, 135]])
def test_a_loop_that_was_left_half_way_is_refused(parts):
    with pytest.raises(ScheduleError, match="has not recorded"):
        tiles_of([*line(0, 0, 110, 160), *parts], 1, 2, zero=0)


def gathered(world=2, rows=256, columns=64):
    """A gather of rows, schedules of its tiles of 64 x 64, and the predicted timeline."""
    plan = build_plan(
        find_template("all_gather_1d")[1], world=world, tensor=TensorSpec("a", (rows, 64)), dim=0, direction="pull"
    )
    axes = (AxisTiles("M", rows, 64), AxisTiles("N", columns, 64))
    reads = (TensorRead("a", ("M", None), (False, False)),)
    schedules = [schedule_rank(plan, reads, axes, rank) for rank in range(world)]
    timeline = simulate(plan, load_machine("h100-nvlink"), work_of_schedules(plan, schedules, 1e-6), itemsize=2)
    return plan, schedules, timeline


def record_of(schedule, words, **more):
    tiles = tiles_of(words, len(words) // 8, 0, zero=0)
    names = tuple(f"M {t.position}" for t in tiles)
    return RankRecord(schedule.rank, schedule, None, names, tiles, end=1e-6, **more)


def microseconds(*lines):
    """Words of lines whose times are microseconds."""
    return [word for each in lines for word in line(*(1000 * moment for moment in each[:4]), *each[4:])]


def test_a_chunk_came_when_the_first_tile_that_used_it_had_waited():
    plan, schedules, _ = gathered()
    own, peers = schedules[0].runs
    assert (own.tiles, peers.tiles) == (2, 2)
    words = microseconds((105, 105, 100, 200), (105, 106, 100, 210, 1), (220, 300, 215, 400, 1), (205, 290, 204, 390))
    record = record_of(schedules[0], words)
    (arrival,) = record.arrivals().values()
    assert arrival.op == peers.chunk and arrival.seen == pytest.approx(290e-6)
    assert (arrival.tile, arrival.waited) == (3, True)
    # Whoever watched the flag knew before.
    assert replace(record, watched={arrival.op: 250e-6}).came() == {arrival.op: 250e-6}
    assert record.came()[arrival.op] == arrival.seen
    spent = replace(record, end=450e-6).spent()
    assert sum(spent.values()) == pytest.approx(450e-6)
    assert list(spent.values()) == pytest.approx([100e-6, (290 + 300 - 165) / 2 * 1e-6, 82.5e-6, 5e-6, 50e-6])
    # The look of the second tile is no wait.
    assert record.waited == pytest.approx((85 + 80) / 2 * 1e-6)
    looked = microseconds((105, 105, 100, 200), (105, 106, 100, 210, 1), (300, 301, 215, 400, 1), (290, 290, 204, 390))
    assert [arrival.waited for arrival in record_of(schedules[0], looked).arrivals().values()] == [False]


def test_a_wait_ahead_of_the_last_tiles_store_lies_inside_its_slice():
    """As in flattened loops, where a program waits for its next tile first."""
    plan, schedules, timeline = gathered()
    flattened = microseconds(
        (105, 105, 100, 330), (105, 106, 100, 210, 1), (220, 300, 215, 400, 1), (205, 290, 204, 390)
    )
    records = (record_of(schedules[0], flattened), replace(record_of(schedules[1], flattened), rank=1))
    trace = json.loads(Measured("t", plan, records, timeline).trace())

    def spans(thread):
        slices = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1 and e["tid"] == thread]
        return {(e["cat"], e["name"]): (round(e["ts"]), round(e["ts"] + e["dur"])) for e in slices}

    assert spans(2)["tile", "M 0"] == (105, 330) and spans(2)["tile", "M 3"] == (330, 390)
    assert spans(2)["wait", "for a[128:256, 0:64]"] == (205, 290)
    assert spans(3)["look", "looks for own chunk"] == (105, 106)


def test_trace_is_1_or_0_and_nothing_without_it(repo):
    unit = SourceUnit.from_file(str(repo / "templates/kernels/grouped_gemm.py"))

    def text(**settings):
        return compile_source(Request(unit, "all_gather_1d", "a[M]", settings=settings)).module.text

    assert "log" not in text() and text(trace="0").count("ol_log") == 0
    assert text(trace="1").count("ol.log_ends(ol_log, ol_line)") == 1
    with pytest.raises(UsageError, match="trace must be 1 or 0"):
        text(trace="2")


def test_a_tile_that_may_be_left_in_its_middle_is_refused(repo, tmp_path):
    text = (repo / "templates/kernels/persistent_gemm.py").read_text()
    marked = text.replace(
        "        off_m = pid_m * BLOCK_M\n",
        "        if pid_m > 3:\n            continue\n        off_m = pid_m * BLOCK_M\n",
    )
    assert marked != text
    path = tmp_path / "kernel.py"
    path.write_text(marked)
    request = Request(SourceUnit.from_file(str(path)), "all_gather_1d", "a[M]", settings={"trace": "1"})
    compile_source(replace(request, settings={}))
    with pytest.raises(UnsupportedError, match="may leave a tile at a `continue`"):
        compile_source(request)
