"""Slots of a group for packets, and the words that their kernels read besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overlap.language.packets import LINE_BYTES, MOST_PROGRAMS
from overlap.schedule.table import S_FAULT, SLOT_WORDS

from ..protocol import Runtime
from .lines import SIDES, STEPS


class PacketMemory:
    """Slots and words of a group for pieces of up to ``capacity`` lines. Made on all ranks at once."""

    def __init__(self, runtime: Runtime, capacity: int) -> None:
        self.capacity = capacity
        world = runtime.world
        self.slots: torch.Tensor = runtime.symmetric(
            [SIDES * STEPS * world * capacity * LINE_BYTES // 8], torch.int64, zero=True
        )
        self.addresses = [runtime.peer(self.slots, p).data_ptr() for p in range(world)]
        self.peers = runtime.table(self.addresses, bits=64)
        self.calls = runtime.table([0] * MOST_PROGRAMS, bits=64)
        self.state = runtime.table([0] * (S_FAULT + 1) * SLOT_WORDS, bits=64)
        self.fault = runtime.watch(self.state, packets=True)
        self.captured = False
        self.launches: dict[Any, Callable[..., None]] = {}

    def sender(self, address: int, world: int, rank: int) -> int:
        """The rank whose line is at ``address`` of this rank's slots."""
        return (address - self.addresses[rank]) // LINE_BYTES // self.capacity % world
