"""The sum kernel's table, carried out by a plain loop over what it says, against sums of the pieces themselves."""

import itertools
import random

import pytest
import torch

from overlap.chunkplan.plan import Chunk
from overlap.chunkplan.region import Box
from overlap.errors import RuntimeContractError, UnsupportedError
from overlap.runtime.kernels.reduce import DIMS, PIECE_WORDS, SUMMAND_WORDS
from overlap.runtime.memory.layout import RankLayout, Region, dense_strides
from overlap.runtime.tables.sums import Addition, Operand, addition, check_pieces, sum_table
from overlap.schedule.pieces import Piece
from overlap.schedule.table import SLOT_WORDS, flag_base

WORLD = 3


def carried_out(table, data, out):
    """What the kernel does, word by word."""
    values, data = table.values, list(data)
    for number in range(table.pieces):
        record = values[number * PIECE_WORDS : (number + 1) * PIECE_WORDS]
        words, extents, count, first = record[0], record[1:5], record[5], record[6]
        rows = [values[first + i * SUMMAND_WORDS : first + (i + 1) * SUMMAND_WORDS] for i in range(count)]
        assert words == extents[0] * extents[1] * extents[2] * extents[3]
        assert table.dims == DIMS or extents[: DIMS - table.dims] == (1,) * (DIMS - table.dims)
        for index in itertools.product(*map(range, extents)):

            def place(record, lane, index=index):
                return record[0] + sum(i * s for i, s in zip(index, record[1:5], strict=True)) + lane

            for lane in range(table.vec):
                total = sum(data[place(row, lane)] for row in rows)
                if record[8] >= 0:
                    out[place(record[8:13], lane)] = total
                if record[13] >= 0:
                    data[place(record[13:18], lane)] = total
    return data, out


def layout_of(shape, order, slots, kept=()):
    window = Region("partial", 0, Box.whole(shape), order)
    end = 1024
    found = {}
    for op, box in slots.items():
        found[op] = Region("slot", end, box, tuple(range(len(shape))))
        end += 1024
    sums = {}
    for ops, box in kept:
        sums[ops] = Region("kept", end, box, tuple(range(len(shape))))
        end += 1024
    return RankLayout(window, None, found, sums), end


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("columns", [8, 6, 5, 1])
@pytest.mark.parametrize("out_order", [(0, 1), (1, 0)])
def test_a_table_adds_what_its_pieces_say(order, columns, out_order):
    shape, held = (9, columns), Box((3, 0), (6, columns))
    slots = {(0, 0): held, (2, 1): held, (1, 0): Box((3, 0), (5, columns))}
    layout, size = layout_of(shape, order, slots, [(((1, 5),), held)])
    top, rest = Box((3, 0), (5, columns)), Box((5, 0), (6, columns))
    made = [
        Piece(Chunk("c", top), ((0, 0), None, (1, 0), (2, 1)), out=True),
        Piece(Chunk("c", rest), ((0, 0), None, (2, 1)), keep=True, out=True, ops=((1, 5),)),
    ]
    flags = {op: number for number, op in enumerate(sorted(slots))}
    strides = dense_strides(held.shape, out_order)
    additions = [addition(p, layout, flags, WORLD, held, strides) for p in made]
    table = sum_table(additions, itemsize=2, warps=8)
    data = [random.Random(0).randrange(1000) for _ in range(size)]
    before = list(data)
    data, out = carried_out(table, data, [None] * held.size)

    def value(region, i, j):
        return before[region.at(Box((i, j), (i + 1, j + 1)))]

    for i, j in itertools.product(range(3, 6), range(columns)):
        wanted = value(layout.window, i, j) + value(layout.slots[0, 0], i, j) + value(layout.slots[2, 1], i, j)
        if i < 5:
            wanted += value(layout.slots[1, 0], i, j)
        else:
            assert data[layout.kept[((1, 5),)].at(Box((i, j), (i + 1, j + 1)))] == wanted
        assert out[(i - 3) * strides[0] + j * strides[1]] == wanted
    rows = [table.values[table.values[6] + i * SUMMAND_WORDS :][5] for i in range(4)]
    assert rows == [(flag_base(WORLD) + 0) * SLOT_WORDS, -1, *((flag_base(WORLD) + n) * SLOT_WORDS for n in (1, 2))]


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "itemsize", "vec", "dims"),
    [
        pytest.param((4, 64), (64, 1), 0, 2, 8, 1, id="one run of words"),
        pytest.param((4, 64), (96, 1), 0, 2, 8, 2, id="rows of a wider tensor"),
        pytest.param((4, 64), (96, 1), 4, 2, 4, 2, id="begins at half a word"),
        pytest.param((4, 64), (99, 1), 0, 2, 1, 2, id="rows that begin anywhere"),
        pytest.param((4, 63), (96, 1), 0, 2, 1, 2, id="odd rows"),
        pytest.param((4, 64), (64, 1), 0, 4, 4, 1, id="fp32"),
        pytest.param((4, 64), (64, 1), 0, 1, 16, 1, id="fp8"),
        pytest.param((4, 64), (1, 4), 0, 2, 8, 1, id="columns that lie dense"),
        pytest.param((1, 1), (7, 3), 0, 2, 1, 1, id="one element"),
        pytest.param((3, 2, 5, 2), (1000, 100, 12, 2), 0, 2, 1, 4, id="four loops"),
    ],
)
def test_words_are_as_wide_and_loops_as_few_as_all_operands_allow(shape, strides, offset, itemsize, vec, dims):
    operand = Operand(offset, strides)
    added = Addition(shape, ((operand, -1), (operand, -1)), operand, None)
    table = sum_table([added], itemsize, 8)
    assert (table.vec, table.dims) == (vec, dims)
    wide = Addition((4, 64), ((Operand(0, (64, 1)), -1),), Operand(0, (64, 1)), None)
    assert sum_table([wide, added], itemsize, 8).vec == vec, "one piece decides for all"


def test_five_loops_are_refused():
    operand = Operand(0, (10000, 1000, 100, 12, 2))
    with pytest.raises(UnsupportedError, match="takes 5 loops"):
        sum_table([Addition((2, 2, 2, 2, 2), ((operand, -1),), operand, None)], 2, 8)


def test_pieces_are_dealt_out_one_behind_the_other():
    operand = Operand(0, (4096, 1))
    added = Addition((5, 4096), ((operand, -1),), operand, None)
    table = sum_table([added, added], 2, 8)
    assert [table.values[7], table.values[PIECE_WORDS + 7]] == [0, 5]
    assert table.blocks == 10


def piece_of(combine="sum", accumulate="fp32", summands=(None, (1, 0))):
    return Piece(Chunk("c", Box((0,), (4,))), summands, accumulate, out=True, combine=combine)


def test_what_is_not_added_by_this_runtime_is_refused():
    assert str(check_pieces([piece_of()], torch.bfloat16)) == "fp32"
    assert str(check_pieces([piece_of(accumulate="fp64")], torch.float32)) == "fp64"
    assert check_pieces([piece_of(summands=((1, 0),))], torch.int32), "what is moved alone may be anything"
    with pytest.raises(UnsupportedError, match="torch.int32 cannot be added"):
        check_pieces([piece_of()], torch.int32)
    with pytest.raises(UnsupportedError, match="`reduce: max` in fp32"):
        check_pieces([piece_of(combine="max")], torch.float32)
    with pytest.raises(RuntimeContractError, match="different types"):
        check_pieces([piece_of(), piece_of(accumulate="fp64")], torch.float32)
