"""Kernels whose results go in words: where tiles are sent, and where what comes is added up."""

from __future__ import annotations

import pytest

from overlap.backends.base import Realization
from overlap.codegen.passes import add_words, produce
from overlap.errors import UnsupportedError

from .test_passes import SOURCE, after
from .test_produce import STORE, persistent

WORDS = {"on": "c[M]", "realization": Realization("words_inline")}
GIVEN = "ol_table, ol_run, ol_slots, ol_words, ol_made, ol_unit, ol_lanes, 0, 1, i * BM, BM, j * BN, BN"
SUMS = "    # This program's share of the rank's part of c: words of all ranks, in rank order.\n    ol.sum_words("
END = "    # @overlap.dispatch begin\n"


def test_a_tile_is_sent_behind_its_store():
    text = after(produce.run, **WORDS)
    behind = text.split(STORE)[1]
    assert behind.startswith("    # Send the tile of c to the ranks that add it up, in words.\n    ol.send_words(")
    assert " ".join(behind.split("ol.send_words(")[1].split(")")[0].split()) == GIVEN


def test_sums_stand_at_every_end():
    assert after(add_words.run, **WORDS).count(SUMS) == 1
    early = SOURCE.replace(END, f"    if pid >= M:\n        return\n{END}")
    text = after(add_words.run, early, **WORDS)
    assert text.count("ol.sum_words(") == 2
    assert f"    if pid >= M:\n    {SUMS.replace(chr(10), chr(10) + '    ')}" in text
    on_a_line = after(add_words.run, SOURCE.replace(END, f"    if pid >= M: return\n{END}"), **WORDS)
    assert on_a_line.count("ol.sum_words(") == 2


def test_sums_stand_behind_the_loop_over_tiles():
    text = after(add_words.run, persistent(), **WORDS)
    assert text.count(SUMS) == 1 and f"\n{SUMS}" in text


def test_kernels_whose_results_go_otherwise_pass_through():
    for backend in ("copy_engine", "ldst_inline"):
        assert after(add_words.run, on="c[M]", realization=Realization(backend)) == SOURCE


@pytest.mark.parametrize("statement", ["i = i * BM", "i += 1", "i: tl.int32 = 0"])
def test_coordinates_that_change_are_refused(statement):
    """The tile is stored where the first ones say."""
    line = "    n = j * BN + tl.arange(0, BN)\n"
    with pytest.raises(UnsupportedError, match="`i` is assigned to behind the dispatch region") as caught:
        after(produce.run, SOURCE.replace(line, f"{line}    {statement}\n"), **WORDS)
    assert "a name of its own" in caught.value.help
