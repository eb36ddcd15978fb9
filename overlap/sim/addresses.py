"""From pointers to buffers: every address a program uses is looked up, and a wild one is a fault with its line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from overlap.errors import StrayAccessFault

from .fibres import Fibre
from .memory import Buffer, Memory
from .shadow import span


def where_in_kernel(fibre: Fibre) -> tuple[str, int]:
    """(path, line) in the kernel's own file of what the running program does now."""
    frame = fibre.frame
    if frame is None:
        code = fibre.kernel.code if fibre.kernel is not None else None
        probe: Any = sys._getframe(1)
        while probe is not None and probe.f_code is not code:
            probe = probe.f_back
        if probe is None:
            return "", 0
        frame = fibre.frame = probe
    return frame.f_code.co_filename, frame.f_lineno


class Addresses:
    """Looks pointers up in the registered memory of a run."""

    def __init__(self, memory: Memory, nodes: tuple[int, ...]) -> None:
        self._memory = memory
        self._nodes = nodes

    def resolve(
        self, fibre: Fibre, ptrs: np.ndarray, mask: np.ndarray | None, itemsize: int, verb: str
    ) -> list[tuple[Buffer, np.ndarray, np.ndarray | None]]:
        """Per buffer: byte offsets, and which of the flattened pointers they are (None: all)."""
        addresses = ptrs.reshape(-1)
        chosen: np.ndarray | None = None
        if mask is not None:
            flat = np.broadcast_to(mask, ptrs.shape).reshape(-1)
            if not flat.all():
                chosen = np.flatnonzero(flat)
                if not len(chosen):
                    return []
                addresses = addresses[chosen]
        low, high = int(addresses.min()), int(addresses.max())
        buffer = self._memory.at(low)
        if buffer is not None and high + itemsize <= buffer.end:
            offsets = (addresses - np.uint64(buffer.start)).astype(np.int64)
            self._aligned(fibre, buffer, offsets, itemsize, verb)
            self.check_reached(fibre, buffer, int(offsets[0]), verb)
            return [(buffer, offsets, chosen)]
        places = np.arange(len(addresses)) if chosen is None else chosen
        return self._spread(fibre, addresses, places, itemsize, verb)

    def _spread(
        self, fibre: Fibre, addresses: np.ndarray, places: np.ndarray, itemsize: int, verb: str
    ) -> list[tuple[Buffer, np.ndarray, np.ndarray | None]]:
        found: list[tuple[Buffer, np.ndarray, np.ndarray | None]] = []
        left = np.ones(len(addresses), bool)
        while left.any():
            lowest = int(addresses[left].min())
            buffer = self._memory.at(lowest)
            inside = None
            if buffer is not None:
                inside = left & (addresses >= np.uint64(buffer.start)) & (addresses <= np.uint64(buffer.end - itemsize))
            if buffer is None or inside is None or not inside.any():
                self._stray(fibre, lowest, int((left & (addresses == np.uint64(lowest))).sum()), itemsize, verb)
                continue
            offsets = (addresses[inside] - np.uint64(buffer.start)).astype(np.int64)
            self._aligned(fibre, buffer, offsets, itemsize, verb)
            self.check_reached(fibre, buffer, int(offsets[0]), verb)
            found.append((buffer, offsets, places[inside]))
            left &= ~inside
        return found

    def _aligned(self, fibre: Fibre, buffer: Buffer, offsets: np.ndarray, itemsize: int, verb: str) -> None:
        if itemsize > 1 and (offsets & (itemsize - 1)).any():
            raise StrayAccessFault(
                f"stray access: {fibre.agent.name} {verb} {buffer.name} of rank {buffer.rank} at an address that is no "
                f"multiple of {itemsize} bytes",
                where=span(where_in_kernel(fibre)),
            )

    def check_reached(self, fibre: Fibre, buffer: Buffer, offset: int, verb: str) -> None:
        """Raises StrayAccessFault for memory of a rank that no pointer reaches from the program's."""
        rank = fibre.agent.rank
        if self._nodes[buffer.rank] != self._nodes[rank]:
            raise StrayAccessFault(
                f"stray access: {fibre.agent.name} {verb} {buffer.element(offset >> buffer.shift)} by pointer, and no pointer of "
                f"rank {rank} (node {self._nodes[rank]}) reaches node {self._nodes[buffer.rank]}",
                where=span(where_in_kernel(fibre)),
                help="NVSHMEM's put and get carry what goes between nodes (overlap.language.nvshmem)",
            )

    def check_box(self, fibre: Fibre, corner: Sequence[int], block: Sequence[int]) -> None:
        """Raises StrayAccessFault for a box wholly below zero in a dimension: seen on an H100 alone, an illegal instruction. One
        that begins below zero is clipped, and one past the end stores nothing."""
        for dim, (low, extent) in enumerate(zip(corner, block, strict=True)):
            if low <= -extent:
                raise StrayAccessFault(
                    f"stray access: {fibre.agent.name} stores by TMA a box that ends at {low + extent} in dimension {dim}, "
                    "wholly below zero: an illegal instruction on an H100",
                    where=span(where_in_kernel(fibre)),
                    help="give a box that is not to be stored a coordinate past the end instead",
                )

    def _stray(self, fibre: Fibre, address: int, count: int, itemsize: int, verb: str) -> None:
        near = self._memory.nearest(address)
        if near is None:
            place = f"address {address:#x}"
        elif address >= near.start:
            past = (address + itemsize - near.end + itemsize - 1) // itemsize
            place = f"{past} element{'s' if past != 1 else ''} past the end of {near.name} of rank {near.rank}"
        else:
            before = -(-(near.start - address) // itemsize)
            place = f"{before} element{'s' if before != 1 else ''} before the start of {near.name} of rank {near.rank}"
        if near is None or min(abs(address - near.start), abs(address - near.end)) > 1 << 32:
            place = f"address {address:#x}, far from every tensor"
        raise StrayAccessFault(f"stray access: {fibre.agent.name} {verb} {place}", where=span(where_in_kernel(fibre)))
