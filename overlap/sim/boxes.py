"""What small boxes of `overlap.language.boxes` do on simulated ranks: rows go by TMA, and have landed when waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from overlap.errors import AlignmentError
from overlap.language.boxes import copy_assembly, memory_assembly
from overlap.schedule.moves import BOX_WORDS, SMALL_BOX_ROWS

from .asm import register

if TYPE_CHECKING:
    from .world import World

_WORD = np.dtype(np.int32)
_UNIT = 16
"""Bytes that addresses, pitches and sizes of bulk copies are multiples of."""


def _copy(world: World, _: Any, *operands: Any) -> list[np.ndarray]:
    here, there, src_pitch, dst_pitch, rows, size = (int(np.asarray(operand).reshape(-1)[0]) for operand in operands)
    assert rows * size <= SMALL_BOX_ROWS * 4 * BOX_WORDS, "more than the memory holds"
    if rows:
        for what, value in (("source", here), ("destination", there), ("pitch", src_pitch | dst_pitch), ("row", size)):
            if value % _UNIT:
                raise AlignmentError(
                    f"a bulk copy cannot take this box: its {what} is off by {value % _UNIT} from a multiple of {_UNIT} bytes"
                )
        words = np.arange(0, size, _WORD.itemsize)
        steps = np.arange(rows)[:, None]
        memory = world.kernel_memory
        values = memory.load((here + steps * src_pitch + words).astype(np.uint64), None, None, _WORD, tma=True)
        memory.store((there + steps * dst_pitch + words).astype(np.uint64), values, None, _WORD, tma=True, late=True)
    return [np.zeros(1, np.int32)]


register(memory_assembly(), lambda world, *_: [np.zeros(1, np.int32)])
register(copy_assembly(), _copy)
