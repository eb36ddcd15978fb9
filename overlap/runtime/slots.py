"""The table of the places where tiles are stored, in kernels that store them into other ranks' memory.

    addresses of all ranks' state words | run 0: shift of every way | run 1: ... |

A shift is what leads from an element of the kernel's own result to the same element in a slot, in elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap.chunkplan.plan import P2P, OpId
from overlap.chunkplan.region import Box
from overlap.errors import UnsupportedError
from overlap.schedule.pushes import Pushes

from .layout import MARGIN
from .part import Part

if TYPE_CHECKING:
    from .instance import Instance

ALIGNED = 16
"""Elements that every shift is a multiple of: `overlap.language.shift` tells the compiler so."""


def slot_words(instance: Instance, pushed: Pushes) -> list[int]:
    """The table as int64 words.

    Raises:
        UnsupportedError: tiles on the edge of a chunk that are larger than the margin of slots.
    """
    shifts: dict[OpId | None, int] = {None: 0}
    words = list(instance.memory.addresses)
    part = instance.made
    for ways, boxes in zip(pushed.ways, pushed.boxes, strict=True):
        for op in ways:
            if op not in shifts:
                assert op is not None
                shifts[op] = _shift(part, op)
            if op is not None:
                _check(part, op, boxes)
            words.append(shifts[op])
    return words


def _shift(part: Part, op_id: OpId) -> int:
    op = part.plan.op(op_id)
    assert isinstance(op, P2P)
    region = part.layouts[op.dst_rank].slots[op_id]
    there = part.view(region, op.dst_rank).data_ptr()
    here = part.tensor
    size = here.element_size()
    steps = zip(part.window.lo, region.box.lo, region.strides, strict=True)
    distance = there - here.data_ptr() + size * sum((a - b) * s for a, b, s in steps)
    if distance % (size * ALIGNED):
        raise UnsupportedError(
            f"the slot of {op.dst} on rank {op.dst_rank} is not aligned with the kernel's own result",
            help='backend="copy_engine"',
        )
    return distance // size


def _check(part: Part, op_id: OpId, boxes: tuple[Box, ...]) -> None:
    op = part.plan.op(op_id)
    assert isinstance(op, P2P)
    room = part.layouts[op.dst_rank].slots[op_id].box
    for box in boxes:
        if not room.contains(box):
            raise UnsupportedError(
                f"tiles on the edge of {op.dst} write more than {MARGIN} rows outside of it, and slots have that margin",
                help='smaller blocks, or backend="copy_engine"',
            )
