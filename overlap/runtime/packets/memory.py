"""Slots of a group for words and for blocks, and the words that their kernels read besides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from overlap.language.packets import LINE_BYTES, MOST_PROGRAMS
from overlap.schedule.table import S_FAULT, SLOT_WORDS

from ..protocol import Runtime
from .block_parts import FLAG_BYTES
from .block_parts import SIDES as BLOCK_SIDES
from .lines import SIDES, STEPS


class SlotMemory(ABC):
    """Slots of ``capacity``, and what a transport's launches are given of them. Made on all ranks at once.

    Args:
        size: bytes of this rank's slots.
    """

    def __init__(self, runtime: Runtime, capacity: int, size: int) -> None:
        self.capacity = capacity
        self.slots: torch.Tensor = runtime.symmetric([size // 8], torch.int64, zero=True)
        self.addresses = [runtime.peer(self.slots, p).data_ptr() for p in range(runtime.world)]
        self.peers = runtime.table(self.addresses, bits=64)
        self.calls = runtime.table([0] * MOST_PROGRAMS, bits=64)
        self.state = runtime.table([0] * (S_FAULT + 1) * SLOT_WORDS, bits=64)
        self.fault = runtime.watch(self.state, packets=True)
        self.captured = False
        self.launches: dict[Any, Callable[..., None]] = {}

    def arguments(self) -> dict[str, Any]:
        """Of kernels, by their names."""
        return {
            "slots": self.slots, "peers": self.peers, "calls": self.calls, "state": self.state, "capacity": self.capacity,
        }  # fmt: skip

    @abstractmethod
    def sender(self, address: int, world: int, rank: int) -> int:
        """The rank whose line or flag is at ``address`` of this rank's slots."""


class PacketMemory(SlotMemory):
    """For pieces of up to ``capacity`` lines."""

    def __init__(self, runtime: Runtime, capacity: int) -> None:
        super().__init__(runtime, capacity, SIDES * STEPS * runtime.world * capacity * LINE_BYTES)

    def sender(self, address: int, world: int, rank: int) -> int:
        return (address - self.addresses[rank]) // LINE_BYTES // self.capacity % world


class BlockMemory(SlotMemory):
    """For pieces of up to ``capacity`` bytes, in blocks of ``least`` bytes or more."""

    def __init__(self, runtime: Runtime, capacity: int, least: int) -> None:
        self.places = capacity // least
        senders = BLOCK_SIDES * runtime.world
        self._flags = senders * capacity
        super().__init__(runtime, capacity, senders * (capacity + self.places * FLAG_BYTES))

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "places": self.places}

    def sender(self, address: int, world: int, rank: int) -> int:
        return (address - self.addresses[rank] - self._flags) // FLAG_BYTES // self.places % world
