"""What a kernel is given whose tiles add what other ranks have sent of the rank's own part: where that lies, and where it goes.

    record of a piece   where the rank's part begins and ends in what the kernel makes | strides of slots | address of every slot

`overlap.schedule.table` names the words, `overlap.language.tile_sums` reads them. Runs of one piece share a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from overlap.schedule.pieces import Piece
from overlap.schedule.table import F_ENDS, F_FIRST, F_SLOTS, F_STRIDES, MOST_DIMS

from ..memory.part import Part

if TYPE_CHECKING:
    from ..calls.resolve import Bound
    from ..instance import Instance, LaunchTable

ALIGNED = 16
"""Bytes: of TMA, and of the widest load."""
PART_BYTES = 32 << 10
"""Of a part of a tile that is added at once: what comes of it is brought into the tile's layout through as much shared memory,
and stages of the product's loop leave no more (227 KiB on sm_90)."""
PART_ELEMENTS = 64
"""Of such a part a thread's elements, at most: beside them registers hold a summand's and the rest of the tile."""
MANY = 4
"""Summands from elsewhere, beyond which parts are a quarter as large: more are on their way at a time."""


def summand_records(instance: Instance, finished: Sequence[Piece | None]) -> tuple[Any, list[int]]:
    """The table of what tiles add, on the device, and by run where its record begins; -1 for tiles that are sent."""
    part = instance.made
    begins: dict[Piece, int] = {}
    words: list[int] = []
    for piece in finished:
        if piece is not None and piece not in begins:
            begins[piece] = len(words)
            words += _record(instance, part, piece)
    table = instance.workspace.table(words or [0], bits=64)
    return table, [-1 if piece is None else begins[piece] for piece in finished]


def _record(instance: Instance, part: Part, piece: Piece) -> list[int]:
    window, held, size = part.window, part.held, part.dtype.itemsize
    ops = [op for op in piece.summands if op is not None]
    slots = [part.layout.slots[op] for op in ops]
    strides = slots[0].strides if slots else (1,) * window.ndim
    words = [0] * (F_SLOTS + len(slots))
    for d in range(min(window.ndim, MOST_DIMS)):
        words[F_FIRST + d] = held.lo[d] - window.lo[d]
        words[F_ENDS + d] = held.hi[d] - window.lo[d]
        words[F_STRIDES + d] = strides[d]
    for number, slot in enumerate(slots):
        before = sum((low - at) * step for low, at, step in zip(slot.box.lo, window.lo, strides, strict=True))
        words[F_SLOTS + number] = part.view(slot).data_ptr() - before * size
    return words


def can_finish(instance: Instance, table: LaunchTable, out: torch.Tensor) -> bool:
    """Whether tiles may finish a result: every piece of it by its tiles, all of one kind, in rows that TMA and wide loads take.

    Args:
        table: made with ``finish``.
        out: this rank's part of the result, as a call brings it.
    """
    part = instance.made
    if table.finished is None or out.dtype != part.dtype or not out.numel() or out.dim() > MOST_DIMS:
        return False
    if tuple(out.shape) != part.held.shape or out.data_ptr() % ALIGNED or out.stride(-1) != 1:
        return False
    if any(step * out.element_size() % ALIGNED for step in out.stride()[:-1]) or 0 in out.stride():
        return False
    return all(_slots_fit(instance, part, piece) for piece in dict.fromkeys(table.finished) if piece is not None)


def _slots_fit(instance: Instance, part: Part, piece: Piece) -> bool:
    ops = [op for op in piece.summands if op is not None]
    if len(ops) != instance.runtime.world - 1 or any(op not in part.layout.slots for op in ops):
        return False
    slots, size = [part.layout.slots[op] for op in ops], part.dtype.itemsize
    rows = [(slot.strides, part.view(slot).data_ptr() % ALIGNED) for slot in slots]
    if any(found != (slots[0].strides, 0) for found in rows) or slots and slots[0].strides[-1] != 1:
        return False
    return all(step * size % ALIGNED == 0 for slot in slots for step in slot.strides[:-1])


def finish_arguments(instance: Instance, table: LaunchTable, bound: Bound, out: torch.Tensor | None) -> dict[str, Any]:
    """By parameter of ours, what such a kernel is given.

    Args:
        out: this rank's part of the result; None where a sum kernel adds, and no tile reads what is given.
    """
    operator = instance.operator
    (param,) = (comm.param for comm in operator.comms if comm.produced)
    described = bound.arguments[param]
    given: dict[str, Any] = {"result": None, "sums": table.records, "summands": instance.runtime.world - 1}
    if out is None:
        given["sums"] = instance.state
    if hasattr(described, "block_shape"):
        block = list(described.block_shape)
        block[-1] //= parts_of(
            block, instance.made.dtype.itemsize, int(bound.options.get("num_warps", 4)), instance.runtime.world - 1
        )
        base = described.base if out is None else out
        shape, strides = (described.shape, described.strides) if out is None else (list(out.shape), list(out.stride()))
        given["result"] = replace(described, base=base, shape=list(shape), strides=list(strides), block_shape=block)
    return {operator.parameter(name): value for name, value in given.items()}


def parts_of(block: Sequence[int], itemsize: int, warps: int, summands: int) -> int:
    """In how many parts of its columns, a power of two, a tile is added up: two at least, so that it takes no more shared memory
    than the tile's own store.

    Args:
        block: of the tile; ``itemsize``: bytes of an element.
        summands: that come from elsewhere.
    """
    elements = prod(int(extent) for extent in block)
    most = min(PART_BYTES // itemsize, PART_ELEMENTS * 32 * warps) // (4 if summands > MANY else 1)
    parts = 1
    while (parts < 2 or elements // parts > most) and int(block[-1]) // (2 * parts) * itemsize >= ALIGNED:
        parts *= 2
    return parts
