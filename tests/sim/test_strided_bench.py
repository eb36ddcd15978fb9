"""The measurement of strided pieces, without a GPU: the launch that it times moves what it should, and what it concludes."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from overlap import settings
from overlap.runtime.tables.moves import LEAST_WIDTH
from overlap.schedule.moves import BOXES, P_KIND, PIECE_WORDS
from overlap.schedule.table import S_EPOCH, SLOT_WORDS


@pytest.fixture
def strided(repo, monkeypatch):
    monkeypatch.syspath_prepend(str(repo / "bench"))
    for name in ("common", "record", "strided"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__("strided")


@pytest.mark.parametrize("width", [4, 100, 256])
@pytest.mark.parametrize("way", ["ldst_reserved", "ldst_inline"])
def test_all_programs_together_move_the_rows_and_nothing_else(strided, way, width):
    rows, programs = 70, 3
    src = torch.randint(0, 250, (rows, width), dtype=torch.uint8)
    wide = torch.full((rows, strided.PITCH * width), 255, dtype=torch.uint8)
    state = torch.zeros(strided.WORDS, dtype=torch.int64)
    state[S_EPOCH * SLOT_WORDS] = 7
    words = strided.table_of(wide[:, :width], src, programs, state[strided.FLAG :].data_ptr(), boxes=False)
    strided.move[(programs,)](torch.tensor(words), state, strided.PROGRAMS[way])
    assert bool((wide[:, :width] == src).all()) and bool((wide[:, width:] == 255).all())
    assert state[strided.COUNTER] == programs and state[strided.FLAG] == 7


@pytest.mark.parametrize("width", [LEAST_WIDTH - 16, LEAST_WIDTH])
def test_tma_is_measured_where_tma_copies(strided, width):
    src, dst = torch.zeros(64, width, dtype=torch.uint8), torch.zeros(64, 2 * width, dtype=torch.uint8)[:, :width]
    words = strided.table_of(dst, src, 2, 0, boxes=True)
    kinds = {words[at + P_KIND] for at in range(words[5 + 2 * 4 + 2], len(words), PIECE_WORDS)}
    assert (kinds == {BOXES}) == (width >= LEAST_WIDTH)


def test_a_crossing_is_where_a_copy_engine_is_as_fast(strided):
    def row(width, way, us, direction="pull"):
        return {"row_bytes": width, "bytes": 1 << 20, "strided": "source", "direction": direction, "way": way, "us": us}

    rows = [row(w, strided.COPY_ENGINE, us) for w, us in ((64, 90), (128, 50), (256, 30))]
    rows += [row(w, "ldst_reserved", us) for w, us in ((64, 40), (128, 40), (256, 40))]
    assert strided.crossing(rows) == {"ldst_reserved": 256}
    rows += [row(128, strided.COPY_ENGINE, 50, "push"), row(128, "ldst_reserved", 60, "push")]
    assert strided.crossing(rows) == {"ldst_reserved": 256}
    rows += [row(256, "tma_reserved", 20)]
    assert strided.crossing(rows) == {"ldst_reserved": 256, "tma_reserved": None}
    assert strided.crossing(rows[:3]) == {}
    rows += [row(256, strided.COPY_ENGINE, 30, "push"), row(256, "ldst_reserved", 29.5, "push")]
    assert strided.crossing(rows)["ldst_reserved"] == 256
    smaller = [{**each, "bytes": 1 << 10, "us": each["us"] / 9} for each in rows if each["way"] == "ldst_reserved"]
    smaller += [{**each, "bytes": 1 << 10} for each in rows if each["way"] == strided.COPY_ENGINE]
    assert strided.crossing(rows + smaller) == strided.crossing(rows)


def test_the_default_is_what_was_measured(strided, repo):
    for path in (repo / "bench" / "results" / "strided").glob("*.json"):
        found = strided.crossing(json.loads(path.read_text())["rows"])
        assert found["ldst_reserved"] == settings.get("strided_row_bytes"), path.name
