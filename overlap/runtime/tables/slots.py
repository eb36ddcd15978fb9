"""The table of the places where tiles are stored, in kernels that store them into other ranks' memory.

    lowest place | steps to the highest | addresses of all ranks' state words | run 0: every way | run 1: ... |

A way is what leads from an element of the kernel's own result to the same element in a slot: the distance in elements; for
descriptors what leads there from the lowest place, in steps of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from overlap.backends import backend
from overlap.backends.capabilities import Need, require
from overlap.chunkplan.plan import P2P, OpId
from overlap.chunkplan.region import Box
from overlap.errors import UnsupportedError
from overlap.schedule.pushes import Pushes
from overlap.schedule.table import HIGH_BYTES, LOW_BYTES

from ..memory.layout import MARGIN
from ..memory.part import Part
from ..operator import Operator

if TYPE_CHECKING:
    from ..instance import Instance

ALIGNED = 16
"""Elements that every shift is a multiple of: `overlap.language.shift` tells the compiler so."""


@dataclass(frozen=True, eq=False)
class Slots:
    """Where the tiles of a launch are stored.

    ``words``: the table, on the device. ``ways``: places of one tile and counters it counts into, at most. ``lowest``: bytes from
    the result's own memory to the lowest place; ``steps``: of `HIGH_BYTES`, that reach the highest.
    """

    words: Any
    ways: int
    lowest: int = 0
    steps: int = 1
    _made: dict[Any, Any] = field(default_factory=dict)

    def anywhere(self, described: Any) -> Any:
        """The host-made descriptor that reaches every place, for ``described``, that of the result's own memory."""
        shape, strides, block = described.shape, described.strides, described.block_shape
        key = (described.base.data_ptr(), described.base.dtype, *shape, *strides, *block, described.padding)
        if key not in self._made:
            size = described.base.dtype.itemsize
            self._made[key] = replace(
                described,
                base=_Address(described.base, self.lowest),
                shape=[self.steps, HIGH_BYTES // LOW_BYTES, *shape],
                strides=[HIGH_BYTES // size, LOW_BYTES // size, *strides],
                block_shape=[1, 1, *block],
            )
        return self._made[key]


class _Address:
    """An address that is no tensor's, as descriptors take it: so many bytes from a tensor's."""

    def __init__(self, tensor: Any, distance: int) -> None:
        self.dtype = tensor.dtype
        self.device = tensor.device
        self._address = tensor.data_ptr() + distance

    def data_ptr(self) -> int:
        return self._address


def store_arguments(operator: Operator, slots: Slots, arguments: Mapping[str, Any], tiles: int = 1) -> dict[str, Any]:
    """What a kernel that stores its tiles where they go is given for it, by parameter.

    Args:
        arguments: of the launch.
        tiles: of the launch; without any there may be no descriptor of the result.
    """
    found = {operator.stores: slots.words}
    if ways := operator.parameter("ways"):
        found[ways] = slots.ways
    if anywhere := operator.parameter("anywhere"):
        (made,) = (comm.param for comm in operator.comms if comm.produced)
        found[anywhere] = slots.anywhere(arguments[made]) if tiles else None
    return found


def slots_of(instance: Instance, pushed: Pushes) -> Slots:
    """The places of an instance's tiles.

    Raises:
        UnsupportedError: tiles on the edge of a chunk that are larger than the margin of slots, or a device that is too old.
    """
    shifts: dict[OpId | None, int] = {None: 0}
    part = instance.made
    for ways, boxes in zip(pushed.ways, pushed.boxes, strict=True):
        for op in ways:
            if op not in shifts:
                assert op is not None
                shifts[op] = _shift(part, op)
            if op is not None:
                _check(part, op, boxes)
    storer = backend(instance.operator.carriers.storing or "")
    if part.tensor.device.type == "cuda":
        here = torch.cuda.get_device_capability(part.tensor.device)
        require(storer, Need(f"`{instance.operator.name}`", part.name, moves="result", capability=here))
    size = part.tensor.element_size()
    lowest, highest = min(shifts.values()), max(shifts.values())
    steps = (highest - lowest) * size // HIGH_BYTES + 1
    if storer.writer == "tma store":
        shifts = {op: (there - lowest) * size // LOW_BYTES for op, there in shifts.items()}
    words = [lowest, steps, *instance.memory.addresses, *(shifts[op] for ways in pushed.ways for op in ways)]
    most = max((len(several) for several in (*pushed.ways, *pushed.tells)), default=1)
    return Slots(instance.workspace.table(words, bits=64), most, lowest * size, steps)


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
