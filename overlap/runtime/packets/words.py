"""Small collectives by words that carry data and flag together (`kernels`): twice the bytes on the way, and no flag behind."""

from __future__ import annotations

import torch

from overlap.language.packets import DATA_BYTES

from .boxes import Boxes, scaled, unit_of, whole
from .kernels import exchange_kernel, sum_packets_kernel, two_step_kernel
from .limits import below, blocks_from
from .memory import PacketMemory, SlotMemory
from .transport import SUMMED, UNITS, Form, Transport, senders_for

BLOCK = 256
"""Lines that a program moves at a time, one a thread."""


class Words(Transport):
    """Collectives by words."""

    name = "words"

    def exchange(self, src: torch.Tensor, boxes: Boxes, out: torch.Tensor, to: Boxes, piece: int) -> Form:
        unit, to_unit = unit_of(src, boxes), unit_of(out, to)
        options = {
            "UNIT": unit, "TO_UNIT": to_unit, "FLAT": boxes.rows == 1, "TO_FLAT": to.rows == 1, "PARTS": not boxes.whole,
            "BLOCK": BLOCK,
        }  # fmt: skip
        numbers = scaled(boxes, src.element_size(), unit)
        numbers |= {f"to_{name}": n for name, n in scaled(to, src.element_size(), to_unit).items()}
        return Form(exchange_kernel, options, numbers, UNITS[unit], UNITS[to_unit], piece, self._runtime.world, BLOCK)

    def sum(self, src: torch.Tensor, boxes: Boxes, out: torch.Tensor, piece: int) -> Form:
        unit, to_unit = unit_of(src, boxes), 0
        if src.dtype == out.dtype:
            to_unit = unit_of(out, whole(tuple(out.shape)))
        dtype, accumulator = SUMMED[src.dtype]
        options = {
            "UNIT": unit, "TO_UNIT": to_unit, "FLAT": boxes.rows == 1, "PARTS": not boxes.whole,
            "SENDERS": senders_for(self._runtime.world), "DTYPE": dtype, "ACCUMULATOR": accumulator, "BLOCK": BLOCK,
        }  # fmt: skip
        numbers = scaled(boxes, src.element_size(), unit)
        work = max(1, self._runtime.world - 1) if not boxes.whole else 1
        to = UNITS.get(to_unit, out.dtype)
        return Form(sum_packets_kernel, options, numbers, UNITS[unit], to, piece, work, BLOCK)

    def two_steps(self, src: torch.Tensor, out: torch.Tensor) -> Form:
        size, world = src.numel() * src.element_size(), self._runtime.world
        unit, to_unit = (unit_of(tensor, whole(tuple(tensor.shape))) for tensor in (src, out))
        total = -(-size // DATA_BYTES)
        chunk = -(-total // world)
        dtype, accumulator = SUMMED[src.dtype]
        options = {
            "UNIT": unit, "TO_UNIT": to_unit, "SENDERS": senders_for(world), "DTYPE": dtype, "ACCUMULATOR": accumulator,
            "BLOCK": BLOCK,
        }  # fmt: skip
        numbers = {"chunk": chunk, "total": total, "size": size // unit, "to_size": size // to_unit}
        work, piece = max(1, world - 1), chunk * DATA_BYTES
        return Form(two_step_kernel, options, numbers, UNITS[unit], UNITS[to_unit], piece, work, BLOCK, steps=2)

    def _needed(self, form: Form) -> int:
        return max(1, -(-form.piece // DATA_BYTES))

    def _tiles(self, form: Form) -> int:
        return -(-self._needed(form) // BLOCK)

    def _allowed(self) -> int:
        return -(-min(below(), blocks_from()) // max(1, self._runtime.world - 1) // DATA_BYTES)

    def _made(self, capacity: int) -> SlotMemory:
        return PacketMemory(self._runtime, capacity)
