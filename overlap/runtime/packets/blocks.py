"""Collectives of medium size by blocks of dense data with a flag behind each (`block_kernels`)."""

from __future__ import annotations

from typing import Any

import torch

from .block_kernels import exchange_blocks_kernel, sum_blocks_kernel, two_step_blocks_kernel
from .boxes import Boxes, scaled, unit_of, whole
from .limits import below
from .memory import BlockMemory, SlotMemory
from .transport import SUMMED, UNITS, Form, Transport

BLOCK_BYTES = 8 << 10
"""That a program moves at a time and a flag stands for."""
HALVED_BYTES = 256 << 10
"""Of a rank's part, up to which sums in two steps go by blocks of half as many bytes, in programs of half as many threads: added
and sent on by twice as many multiprocessors."""
THREADS = 256
"""Of a program."""
REGISTERS = 65536 // (2 * THREADS)
"""Of a thread of a program that would take a few more: two programs a multiprocessor."""
WIDEST = 16
"""Bytes of the widest access."""


class Blocks(Transport):
    """Collectives by blocks."""

    name = "blocks"

    def exchange(self, src: torch.Tensor, boxes: Boxes, out: torch.Tensor, to: Boxes, piece: int) -> Form:
        unit = min(unit_of(src, boxes, WIDEST), unit_of(out, to, WIDEST))
        word = UNITS[min(unit, 8)]
        options: dict[str, Any] = {"FLAT": boxes.rows == 1, "TO_FLAT": to.rows == 1, "PARTS": not boxes.whole}
        numbers = scaled(boxes, src.element_size(), unit)
        numbers |= {f"to_{name}": n for name, n in scaled(to, src.element_size(), unit).items()}
        options |= self._units(unit, word)
        return Form(exchange_blocks_kernel, options, numbers, word, word, piece, self._runtime.world, THREADS)

    def sum(self, src: torch.Tensor, boxes: Boxes, out: torch.Tensor, piece: int) -> Form:
        unit = max(unit_of(src, boxes, WIDEST), src.element_size())
        options = {"FLAT": boxes.rows == 1, "PARTS": not boxes.whole, **self._sums(src), **self._units(unit, src.dtype)}
        numbers = scaled(boxes, src.element_size(), unit)
        work = max(1, self._runtime.world - 1) if not boxes.whole else 1
        return Form(sum_blocks_kernel, options, numbers, src.dtype, out.dtype, piece, work, THREADS)

    def two_steps(self, src: torch.Tensor, out: torch.Tensor) -> Form:
        world, size = self._runtime.world, src.numel() * src.element_size()
        unit = max(unit_of(src, whole(tuple(src.shape)), WIDEST), src.element_size())
        # Whole accesses of the widest kind, so that every rank's part begins where one can.
        part = -(-size // (world * WIDEST)) * WIDEST
        numbers = {"chunk": part // unit, "total": size // unit}
        share = 2 if part <= HALVED_BYTES else 1
        options = {**self._sums(src), **self._units(unit, src.dtype, share)}
        work, threads = max(1, world - 1), THREADS // share
        return Form(two_step_blocks_kernel, options, numbers, src.dtype, out.dtype, part, work, threads, 2, REGISTERS)

    def _sums(self, src: torch.Tensor) -> dict[str, Any]:
        return {"ACCUMULATOR": SUMMED[src.dtype][1], "SENDERS": 4 if self._runtime.world > 2 else 2}

    def _units(self, unit: int, word: torch.dtype, share: int = 1) -> dict[str, Any]:
        """The kernel's parameters of units of so many bytes, moved as ``word``, in blocks of a ``share``-th."""
        ranks = max(2, 1 << (self._runtime.world - 1).bit_length())
        size = BLOCK_BYTES // share
        return {"VEC": unit // word.itemsize, "UNITS": size // unit, "BYTES": size, "RANKS": ranks,
                "LANES": max(THREADS // share, ranks)}  # fmt: skip

    def _needed(self, form: Form) -> int:
        size: int = form.options["BYTES"]
        return form.steps * self._tiles(form) * size

    def _tiles(self, form: Form) -> int:
        return max(1, -(-form.piece // form.options["BYTES"]))

    def _allowed(self) -> int:
        """A block more for each of two steps, which are made of whole ones."""
        return (-(-below() // max(1, self._runtime.world - 1) // BLOCK_BYTES) + 2) * BLOCK_BYTES

    def _made(self, capacity: int) -> SlotMemory:
        return BlockMemory(self._runtime, capacity, BLOCK_BYTES // 2)
