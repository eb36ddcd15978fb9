"""Launches whose programs send a result in low-latency words and add it up: slots in symmetric memory, and the kernels' table.

    words of a rank   epochs, one a program | side 0: hello of every rank, slots of parts | side 1
    a line            8 bytes of a row of the result, or what divides its rows: ``unit``

Every rank computes every rank's slots (`overlap.schedule.words`), from shapes alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import CommPlan, OpId
from overlap.chunkplan.region import Box
from overlap.errors import UnsupportedError
from overlap.language.packets import DATA_BYTES, LINE_BYTES, MOST_PROGRAMS
from overlap.schedule.pieces import Piece, Values
from overlap.schedule.pushes import Pushes
from overlap.schedule.words import DIMS, HEADER_WORDS, LANES, PIECE_WORDS, Slot, slots, summed

from ..memory.part import Part
from .sums import ACCUMULATORS, check_pieces

if TYPE_CHECKING:
    from ..calls.resolve import Bound
    from ..instance import Instance, LaunchTable
    from ..operator import Operator

MOST_ELEMENTS = 4
"""Of a line: so many sums a thread holds."""
SIZES = (1, 2, 4, 8)
LINE_WORDS = LINE_BYTES // 8
USUAL_WARPS = 4
"""Of a program, where nobody says how many: Triton's own number."""
ALONE = {"num_warps": LANES // 32}
"""Launch options of `overlap.runtime.kernels.entry.word_sums_kernel`."""


Receiver = tuple[int, int]
"""A slot: its rank, and its number there."""


@dataclass(frozen=True)
class Lines:
    """Where the lines of a rank's slots begin, in lines of a side: ``slots`` as `overlap.schedule.words` lists them.

    ``end``: lines of a side that a launch writes.
    """

    slots: tuple[Slot, ...]
    begins: tuple[int, ...]
    end: int

    def begin(self, source: int, op_id: OpId | None, box: Box) -> tuple[int, Box]:
        """First line and box of the slot that holds ``box`` of what an operation brings, or ``source`` itself makes."""
        for slot, begin in zip(self.slots, self.begins, strict=True):
            if (slot.source, slot.op) == (source, op_id) and slot.box.contains(box):
                return begin, slot.box
        raise AssertionError(f"no slot for {box} of rank {source}")

    def at(self, line: int) -> Slot | None:
        """The slot that a line is part of; None of a hello, and outside of all."""
        found = [slot for slot, begin in zip(self.slots, self.begins, strict=True) if begin <= line < self.end]
        return found[-1] if found else None


class InlineWords:
    """The words of an instance: of the one result that its kernel makes.

    Raises:
        UnsupportedError: the plan, the dtype or the number of dimensions is none that words carry.
    """

    def __init__(self, plan: CommPlan, part: Part, rank: int) -> None:
        if part.dtype.itemsize not in SIZES or len(part.shape) > DIMS:
            what = (
                f"elements of {part.dtype.itemsize} bytes"
                if len(part.shape) <= DIMS
                else f"{len(part.shape)} dimensions"
            )
            raise UnsupportedError(
                f"words_inline sends elements of 1, 2, 4 or 8 bytes of results of up to {DIMS} dimensions; "
                f"`{part.name}` has {what}",
                help='backend="copy_engine"',
            )
        values = Values(plan)
        self.rank = rank
        self._world = plan.world
        self.pieces: tuple[Piece, ...] = summed(plan, rank, part.name, values)[1]
        self.accumulator = check_pieces(self.pieces, part.dtype)
        arriving = [slots(plan, each, part.name, values) for each in range(plan.world)]
        self.elements = elements_of(part, arriving)
        """Of a line."""
        self.lines = [self._laid(found) for found in arriving]
        """By rank."""
        self.most = max(lines.end for lines in self.lines)
        """Lines of a side, on any rank."""

    @property
    def words(self) -> int:
        """int64 words of symmetric memory."""
        return words_for(self.most)

    def _laid(self, arriving: Sequence[Slot]) -> Lines:
        begins, end = [], self._world
        for slot in arriving:
            begins.append(end)
            end += slot.box.size // self.elements
        return Lines(tuple(arriving), tuple(begins), end)

    def sender(self, distance: int, words: int, plan: CommPlan) -> tuple[str, OpId | None] | None:
        """What comes, and from whom, in the line so many bytes from the first of ``words`` int64 words; None: in none.

        Returns also the operation that brings it, where one does.
        """
        line = (distance // 8 - MOST_PROGRAMS) // LINE_WORDS
        if not 0 <= distance < 8 * words or line < 0:
            return None
        line %= lines_in(words)
        if line < plan.world:
            return f"rank {line} to begin the launch", None
        slot = self.lines[self.rank].at(line)
        if slot is None:
            return None
        what = f"words of {plan.tensors[0].name}{slot.box} from rank {slot.source}"
        return (what if slot.op is None else f"{what} ({name_op(plan, slot.op)})"), slot.op

    def receivers(self, pushed: Pushes) -> tuple[tuple[Receiver, ...], ...]:
        """By run, the slots that its tiles are sent into."""
        own = [(self.rank, number) for number, slot in enumerate(self.lines[self.rank].slots) if slot.op is None]
        of: dict[OpId | None, list[Receiver]] = {None: own}
        for rank, lines in enumerate(self.lines):
            for number, slot in enumerate(lines.slots):
                if slot.op is not None:
                    of.setdefault(slot.op, []).append((rank, number))
        return tuple(tuple(receiver for op in ways for receiver in of.get(op, ())) for ways in pushed.ways)


def elements_of(part: Part, arriving: Sequence[Sequence[Slot]]) -> int:
    """Elements of a line: as many as divide whatever any rank sends of a row, and 8 bytes hold.

    Args:
        arriving: in every rank's slots.
    """
    edges = {part.shape[-1]} if part.shape else set()
    for layout in part.layouts:
        edges |= {layout.window.box.lo[-1], layout.window.box.hi[-1]} if part.shape else set()
    edges |= {edge for found in arriving for slot in found for edge in (slot.box.lo[-1:] + slot.box.hi[-1:])}
    return math.gcd(min(MOST_ELEMENTS, DATA_BYTES // part.dtype.itemsize), *edges)


def words_for(lines: int) -> int:
    """int64 words of symmetric memory for so many lines of a side."""
    return MOST_PROGRAMS + 2 * lines * LINE_WORDS


def lines_in(words: int) -> int:
    """Lines of a side in so many int64 words of symmetric memory."""
    return (words - MOST_PROGRAMS) // (2 * LINE_WORDS)


def words_table(instance: Instance, table: LaunchTable, out: torch.Tensor) -> list[int]:
    """The table of a launch (`overlap.schedule.words`).

    Args:
        out: this rank's part of the result.
    """
    words, part, runtime = instance.words, instance.made, instance.runtime
    assert words is not None and table.receivers is not None
    lines = words.lines[runtime.rank]
    capacity = lines_in(instance.memory.room.words)
    begins = [runtime.peer(instance.memory.words, p).data_ptr() + 8 * MOST_PROGRAMS for p in range(runtime.world)]
    hello = [begin + runtime.rank * LINE_BYTES for begin in begins]
    used = list(dict.fromkeys(receiver for several in table.receivers for receiver in several))
    ways = [receiver for several in table.receivers for receiver in several]
    first_receiver = HEADER_WORDS + len(hello) + len(ways)
    records: list[int] = []
    where = {}
    for rank, number in used:
        slot, line = words.lines[rank].slots[number], words.lines[rank].begins[number]
        where[rank, number] = first_receiver + len(records)
        lo, hi = ([a - b for a, b in zip(edge, part.window.lo, strict=True)] for edge in (slot.box.lo, slot.box.hi))
        records += [begins[rank] + line * LINE_BYTES, *_padded(lo, 0), *_padded(hi, 1)]
    first_piece = first_receiver + len(records)
    pieces, summands = _pieces(words, lines, part, out, first_piece)
    strides = _padded(part.tensor.stride(), 0)
    header = [
        capacity * LINE_BYTES, runtime.rank, runtime.world, instance.number, len(words.pieces), first_piece, lines.end,
        capacity, *strides,
    ]  # fmt: skip
    header += [0] * (HEADER_WORDS - len(header))
    return [*header, *hello, *(where[receiver] for receiver in ways), *records, *pieces, *summands]


def _pieces(words: InlineWords, lines: Lines, part: Part, out: torch.Tensor, first: int) -> tuple[list[int], list[int]]:
    """Records of the pieces of a rank's result, which begin at ``first`` of the table, and of their summands."""
    each = words.elements
    found: list[int] = []
    summands: list[int] = []
    behind = first + len(words.pieces) * PIECE_WORDS
    blocks = 0
    for piece in words.pieces:
        box = piece.chunk.box
        shape = _padded(box.shape, 1)
        shape[-1] //= each
        offset = sum((a - b) * step for a, b, step in zip(box.lo, part.held.lo, out.stride(), strict=True))
        steps = _padded(out.stride(), 0)
        aligned = not any(n % each for n in (offset, *steps[:-1])) and not out.data_ptr() % (each * out.element_size())
        whole = out.dtype == part.dtype and steps[-1] == 1 and aligned
        found += [
            math.prod(shape),
            *shape[1:],
            len(piece.summands),
            behind + len(summands),
            blocks,
            offset,
            *steps,
            whole,
        ]
        for op_id in piece.summands:
            source = words.rank if op_id is None else part.plan.op(op_id).src_rank  # type: ignore[union-attr]
            begin, slot = lines.begin(source, op_id, box)
            width, rows = slot.shape[-1] // each if slot.shape else 1, _padded(slot.shape, 1)[1]
            lo = _padded([a - b for a, b in zip(box.lo, slot.lo, strict=True)], 0)
            at = begin + (lo[0] * rows + lo[1]) * width + lo[2] // each
            summands += [at, rows * width, width]
        blocks += -(-math.prod(shape) // LANES)
    return found, summands


def _padded(values: Sequence[int], by: int) -> list[int]:
    return [by] * (DIMS - len(values)) + list(values)


def given_words(
    instance: Instance, table: LaunchTable, results: Mapping[str, torch.Tensor], options: Mapping[str, Any]
) -> dict[str, Any]:
    """What a launch is given for its words, by what its parameters are for.

    Args:
        results: by tensor, this rank's part; written.
        options: of the launch.
    """
    words, part = instance.words, instance.made
    assert words is not None
    out = results[part.name]
    key = ("words", table, out.dtype, out.stride(), out.data_ptr() % 16)
    made = instance.prepared.get(key)
    if made is None:
        made = instance.prepared[key] = instance.workspace.table(words_table(instance, table, out), bits=64)
    return {
        "slots": made,
        "words": instance.memory.words,
        "made": part.tensor,
        "out": out,
        "unit": words.elements * part.dtype.itemsize,
        "lanes": lanes_of(options),
        "sum": words.accumulator,
    }


def word_arguments(operator: Operator, state: torch.Tensor, bound: Bound) -> dict[str, Any]:
    """Stand-ins for what a launch is given for its words, for building without ranks.

    Args:
        state: of the dtype that tables have.
        bound: the launch.
    """
    (result,) = (bound.arguments[comm.param] for comm in operator.comms if comm.produced)
    made = getattr(result, "base", result)
    unit = min(DATA_BYTES, MOST_ELEMENTS * made.element_size())
    given = {"slots": state, "words": state, "made": made, "out": made, "unit": unit}
    given |= {"lanes": lanes_of(bound.options), "sum": ACCUMULATORS["fp32"]}
    return {operator.parameter(name): value for name, value in given.items()}


def lanes_of(options: Mapping[str, Any]) -> int:
    """Lines at a time: one for each thread of a launch with these options."""
    return 32 * int(options.get("num_warps", USUAL_WARPS))


def alone(words: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `overlap.runtime.kernels.entry.word_sums_kernel`, but for the state."""
    names = {"unit": "UNIT", "lanes": "LANES", "sum": "ACCUMULATOR"}
    return {names.get(name, name): value for name, value in {**words, "lanes": lanes_of(ALONE)}.items()}
