"""From the pieces of a `Sum` step to the sum kernel's table: the fewest loops and the widest words that all operands allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from overlap.chunkplan.plan import OpId
from overlap.chunkplan.region import Box
from overlap.errors import RuntimeContractError, UnsupportedError
from overlap.schedule.pieces import Piece
from overlap.schedule.table import SLOT_WORDS, flag_base

from ..kernels.reduce import DIMS, PIECE_WORDS, SUMMAND_WORDS
from ..memory.layout import RankLayout, Region

WORD_BYTES = 16
ACCUMULATORS = {"fp32": tl.float32, "fp64": tl.float64}
WARP_ELEMENTS = 512
"""Of a block for each warp: two words a thread of 16-bit elements, of four summands on their way together 32 registers."""


@dataclass(frozen=True)
class Operand:
    """Where an operand of a piece begins, and its strides, in elements."""

    offset: int
    strides: tuple[int, ...]

    @classmethod
    def of(cls, region: Region, box: Box) -> Operand:
        return cls(region.at(box), region.strides)


NOWHERE: Mapping[OpId, Operand] = {}


@dataclass(frozen=True)
class Addition:
    """One piece: its shape, its summands with the state words of their flags (-1: none), and where the sum goes; ``stores``: in
    other ranks' memory, as seen from this rank's."""

    shape: tuple[int, ...]
    summands: tuple[tuple[Operand, int], ...]
    out: Operand | None
    kept: Operand | None
    stores: tuple[Operand, ...] = ()

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Summands, result, kept sum, stores, in that order, as far as there are any."""
        own = (o for o in (self.out, self.kept) if o is not None)
        return (*(o for o, _ in self.summands), *own, *self.stores)


@dataclass(frozen=True)
class SumTable:
    """Arguments of the sum kernel that the shapes decide.

    ``vec``: elements of a word; ``block``: words of a block; ``words``: of the largest piece; ``widest``: the most summands
    of a piece; ``blocks``: of all pieces, so many programs find something to do.
    """

    values: tuple[int, ...]
    pieces: int
    dims: int
    vec: int
    block: int
    words: int
    widest: int
    blocks: int


def addition(
    piece: Piece,
    layout: RankLayout,
    slots: dict[OpId, int],
    world: int,
    held: Box,
    out_strides: tuple[int, ...],
    stores: Mapping[OpId, Operand] = NOWHERE,
) -> Addition:
    """A piece with its addresses.

    Args:
        layout: of this rank's memory.
        slots: this rank's flags.
        held: what of the global tensor the result is.
        out_strides: of the result, in elements.
        stores: of the operations that send the piece, those that the sum stores, with where.
    """
    box = piece.chunk.box
    summands = []
    for op_id in piece.summands:
        if op_id is None:
            summands.append((Operand.of(layout.own(box), box), -1))
            continue
        summands.append((Operand.of(layout.slots[op_id], box), (flag_base(world) + slots[op_id]) * SLOT_WORDS))
    out = None
    if piece.out:
        offset = sum((b - a) * s for b, a, s in zip(box.lo, held.lo, out_strides, strict=True))
        out = Operand(offset, out_strides)
    copied = any(op not in stores for op in piece.ops)
    kept = Operand.of(layout.kept[piece.ops], box) if piece.keep and copied else None
    return Addition(box.shape, tuple(summands), out, kept, tuple(stores[op] for op in piece.ops if op in stores))


def sum_table(additions: Sequence[Addition], itemsize: int, warps: int) -> SumTable:
    """The kernel's table for pieces of one tensor of ``itemsize`` bytes an element, none of them empty; ``warps`` a program.

    Raises:
        UnsupportedError: a piece takes more than four loops.
    """
    merged = [_merged(a) for a in additions]
    vec = max(1, WORD_BYTES // itemsize)
    for added, (sizes, columns) in zip(additions, merged, strict=True):
        vec = _word(vec, sizes, columns, [operand.offset for operand in added.operands])
    block = WARP_ELEMENTS * warps // vec
    values: list[int] = []
    rows: list[int] = []
    begin = len(additions) * PIECE_WORDS
    blocks = total = dims = 0
    for added, (sizes, columns) in zip(additions, merged, strict=True):
        dims = max(dims, len(sizes))
        extents = [1] * (DIMS - len(sizes)) + [*sizes[:-1], sizes[-1] // vec]
        words = math.prod(extents)
        placed = [
            [operand.offset, *([0] * (DIMS - len(sizes))), *column[:-1], column[-1] * vec]
            for operand, column in zip(added.operands, columns, strict=True)
        ]
        count = len(added.summands)
        rest = placed[count:]
        nothing = [-1] + [0] * DIMS
        out = rest.pop(0) if added.out is not None else nothing
        kept = rest.pop(0) if added.kept is not None else nothing
        first = begin + len(rows)
        stored = first + count * SUMMAND_WORDS
        values += [words, *extents, count, first, blocks, *out, *kept, len(rest), stored]
        for row, (_, flag) in zip(placed[:count], added.summands, strict=True):
            rows += [*row, flag]
        for row in rest:
            rows += [*row, -1]
        blocks += -(-words // block)
        total = max(total, words)
    assert len(values) == begin and len(rows) % SUMMAND_WORDS == 0
    widest = max(len(a.summands) for a in additions)
    return SumTable((*values, *rows), len(additions), dims, vec, block, total, widest, blocks)


def _merged(added: Addition) -> tuple[list[int], list[list[int]]]:
    """Extents, innermost last, and the strides of every operand, neighbours merged where all operands allow it."""
    operands = added.operands
    order = sorted(range(len(added.shape)), key=lambda d: [-operands[0].strides[d], d])
    sizes: list[int] = []
    columns: list[list[int]] = [[] for _ in operands]
    for d in order:
        n = added.shape[d]
        if n == 1:
            continue
        steps = [o.strides[d] for o in operands]
        if sizes and all(column[-1] == n * step for column, step in zip(columns, steps, strict=True)):
            sizes[-1] *= n
            for column, step in zip(columns, steps, strict=True):
                column[-1] = step
        else:
            sizes.append(n)
            for column, step in zip(columns, steps, strict=True):
                column.append(step)
    if len(sizes) > DIMS:
        raise UnsupportedError(
            f"a piece of shape {added.shape} takes {len(sizes)} loops to add up; {DIMS} are written",
            help="make the result contiguous, or shard its outermost dimension",
        )
    if not sizes:
        sizes = [1]
        columns = [[1] for _ in operands]
    return sizes, columns


def _word(vec: int, sizes: list[int], columns: list[list[int]], offsets: list[int]) -> int:
    """Elements, ``vec`` at most, that are neighbours in every operand wherever the piece puts a word."""
    while vec > 1 and (
        any(n % vec for n in (sizes[-1], *offsets))
        or any(column[-1] != 1 or any(s % vec for s in column[:-1]) for column in columns)
    ):
        vec //= 2
    return vec


def check_pieces(pieces: Sequence[Piece], dtype: torch.dtype) -> Any:
    """The accumulator of pieces of a tensor of ``dtype``.

    Raises:
        UnsupportedError: a reduction that the sum kernel does not do, or a dtype that is not added.
    """
    found = {(p.combine, p.accumulate) for p in pieces if len(p.summands) > 1}
    if not found:
        return ACCUMULATORS["fp32"]
    if not dtype.is_floating_point:
        raise UnsupportedError(
            f"ranks' {dtype} cannot be added: sums are in fp32 or fp64",
            help="make the result in a floating-point dtype",
        )
    for combine, accumulate in sorted(found):
        if combine != "sum" or accumulate not in ACCUMULATORS:
            raise UnsupportedError(
                f"`reduce: {combine}` in {accumulate} is not carried out by this runtime",
                help=f"there is sum, in {', '.join(ACCUMULATORS)}",
            )
    if len(found) > 1:
        raise RuntimeContractError(
            "pieces of one tensor that are added in different types", help="name one accumulator"
        )
    return ACCUMULATORS[next(iter(found))[1]]
