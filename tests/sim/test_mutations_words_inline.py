"""Results in low-latency words, with one thing taken away: each is caught. `test_words_inline.py` has the reference runs."""

from __future__ import annotations

import inspect

import pytest
from test_mutations import faults
from test_pushing import compiler

from overlap.language import inline_words

pytestmark = pytest.mark.one_triton

SHAPE = {"M": 70, "N": 64, "K": 16}
FEW_ROWS = {"M": 2, "N": 64, "K": 16}
"""Of three ranks the last has no piece: nothing but a hello goes there."""
SEEDS = range(3)
IMPORT = "import overlap.language as ol\n"
SEND = "    # Send the tile of c to the ranks that add it up, in words.\n"


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    make = compiler(tmp_path_factory, repo)
    return lambda *edits: make(edits=edits, backend="words_inline")


def words(*edits):
    """Edits of a generated module that give it words of its own, edited as well."""
    text = inspect.getsource(inline_words).split("from __future__ import annotations")[1]
    text = text.replace("from .", "from overlap.language.")
    for old, new in edits:
        assert text.count(old) >= 1, old
        text = text.replace(old, new)
    called = tuple((f"    ol.{word}(", f"    {word}(") for word in ("send_words", "sum_words"))
    return ((IMPORT, f"{IMPORT}{text}"), *called)


def found(path, shape=SHAPE, **options):
    return faults(path, seeds=SEEDS, world=3, shape=shape, sms=8, **options)


def test_the_words_as_they_are(generated):
    assert found(generated(*words())) == found(generated(*words()), FEW_ROWS) == ["ok"] * len(SEEDS)


def test_one_side_instead_of_two(generated):
    path = generated(*words(("(epoch & 1)", "(epoch & 0)")))
    assert found(path) == ["race"] * len(SEEDS)


def test_a_mark_that_stays(generated):
    path = generated(*words(("mark = mark_of(epoch)", "mark = mark_of(epoch * 0 + 1)")))
    assert "ok" not in found(path)


def test_no_hello(generated):
    path = generated(*words(("greeted = tl.where(pid == 0, world, 0)", "greeted = tl.where(pid == 0, 0, 0)")))
    assert found(path, FEW_ROWS) == ["race"] * len(SEEDS)


def test_a_hello_that_nobody_hears(generated):
    path = generated(
        *words(("receive(place, there, mark, state)", "receive(place, there & (world == 0), mark, state)"))
    )
    assert found(path, FEW_ROWS) == ["race"] * len(SEEDS)


def test_words_ahead_of_what_they_carry(generated):
    """Sent before the tile is stored, they carry what was there before."""
    given = "ol_table, ol_run, ol_slots, ol_words, ol_made, ol_unit, ol_lanes, 0, 1, pid_m * BLOCK_M, BLOCK_M, pid_n * BLOCK_N, "
    sent, stored = f"    ol.send_words(\n        {given}BLOCK_N\n    )\n", "    c_ptrs = c_ptr"
    path = generated((SEND, ""), (sent, ""), (stored, f"{sent}{stored}"))
    assert "ok" not in found(path)


def test_a_tile_never_sent(generated):
    path = generated(*words(("for way in range(", "for way in range(0) if True else range(")))
    assert found(path) == ["deadlock"] * len(SEEDS)


def test_the_slots_of_the_wrong_rank(generated):
    """The lines of one summand are taken for those of the next, whose own are never looked at."""
    path = generated(*words(("_line(first, j0, count", "_line(first, j0 + 1, count")))
    assert found(path) == ["mismatch"] * len(SEEDS)


def test_a_summand_that_is_not_waited_for(generated):
    path = generated(*words(("(inside & (j0 + 2 < count))", "(inside & (j0 + 2 < count - 1))")))
    assert "ok" not in found(path)


def test_programs_that_stay_behind(generated):
    """Who does not note the epoch sends marks of calls ago."""
    path = generated(*words(("tl.store(words + pid, epoch)", "tl.store(words + pid, epoch, mask=pid == 0)")))
    assert "ok" not in found(path)
