"""Slots of results in words: elements of a line, lines of every rank, what a line that did not come was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from overlap.chunkplan.region import Box
from overlap.errors import UnsupportedError
from overlap.language.packets import LINE_BYTES, MOST_PROGRAMS
from overlap.runtime.tables.inline_words import InlineWords, lines_in, words_for
from overlap.schedule.pushes import Pushes
from tests.unit.schedule.plans import one_shot, reduce_scatter

FIRST = 8 * MOST_PROGRAMS


def words(plan, rank=0, dtype=torch.bfloat16, window=None):
    """The words of a rank; the kernels of all ranks make ``window``, by default all of the tensor."""
    shape = plan.tensors[0].shape
    layout = SimpleNamespace(window=SimpleNamespace(box=window or Box.whole(shape)))
    part = SimpleNamespace(name="c", shape=shape, dtype=dtype, layouts=[layout] * plan.world)
    return InlineWords(plan, part, rank)


@pytest.mark.parametrize(
    "columns,dim,dtype,elements",
    [
        (64, 0, torch.bfloat16, 4), (66, 0, torch.bfloat16, 2), (67, 0, torch.float16, 1), (64, 0, torch.float32, 2),
        (63, 0, torch.float32, 1), (64, 0, torch.float64, 1), (24, 1, torch.bfloat16, 4), (20, 1, torch.bfloat16, 1),
        (64, 0, torch.int8, 4),
    ],
)  # fmt: skip
def test_a_line_holds_what_divides_every_row(columns, dim, dtype, elements):
    """Of what a rank is left with too: 20 columns on 3 ranks are 7, 7 and 6."""
    plan = reduce_scatter((8, columns), dim, 3) if dtype != torch.int8 else reduce_scatter((8, columns), dim, 1)
    assert words(plan, dtype=dtype).elements == elements


def test_a_kernel_that_makes_a_part_of_rows_has_lines_of_that():
    assert words(reduce_scatter((8, 64), 0, 2), window=Box((0, 2), (8, 64))).elements == 2


def test_slots_lie_one_behind_the_other():
    found = words(reduce_scatter((7, 8), 0, 3))
    assert [lines.begins for lines in found.lines] == [(3, 9, 15), (3, 9, 15), (3, 5, 7)], (
        "3 rows, 3, 1, of 2 lines each"
    )
    assert [lines.end for lines in found.lines] == [21, 21, 9] and found.most == 21
    assert lines_in(found.words) == 21 and lines_in(words_for(5)) == 5
    assert found.lines[1].begin(2, (2, 1), Box((4, 0), (5, 8))) == (15, Box((3, 0), (6, 8)))


def test_who_is_sent_a_run():
    found = words(one_shot((4, 8), 3), rank=1)
    sent = found.receivers(Pushes((((1, 0), (1, 1), None), (None,)), ((), ()), ((), ())))
    assert [sorted(rank for rank, _ in run) for run in sent] == [[0, 1, 2], [1]]
    assert all(found.lines[rank].slots[number].source == 1 for run in sent for rank, number in run)


@pytest.mark.parametrize("side", [0, 1])
def test_a_line_that_did_not_come_is_named(side):
    plan = reduce_scatter((7, 8), 0, 3)
    found = words(plan, rank=1)
    size = words_for(50)

    def said(line):
        return found.sender(FIRST + (side * 50 + line) * LINE_BYTES, size, plan)

    assert said(2) == ("rank 2 to begin the launch", None)
    what, op = said(15)
    assert what.startswith("words of c[3:6, 0:8] from rank 2 (rank 2 operation ") and op == (2, 1)
    assert said(9) == ("words of c[3:6, 0:8] from rank 1", None)
    assert said(30) is None, "no slot"


def test_what_lies_elsewhere_is_no_line():
    plan = reduce_scatter((7, 8), 0, 3)
    found = words(plan)
    assert found.sender(FIRST - 8, found.words, plan) is None, "an epoch"
    assert found.sender(-8, found.words, plan) is found.sender(8 * found.words, found.words, plan) is None


@pytest.mark.parametrize(
    "plan,dtype,said",
    [
        (reduce_scatter((4, 2, 2, 2), 0, 2), torch.bfloat16, "`c` has 4 dimensions"),
        (reduce_scatter((4, 2), 0, 2), torch.complex128, "`c` has elements of 16 bytes"),
        (reduce_scatter((4, 2), 0, 2), torch.int32, "cannot be added"),
    ],
)
def test_what_words_do_not_carry(plan, dtype, said):
    with pytest.raises(UnsupportedError, match=said) as caught:
        words(plan, dtype=dtype)
    assert caught.value.help
