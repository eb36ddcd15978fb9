"""Whether one more warp fits beside a grid that fills the device: what a spinning grid waits for must become resident.

A multiprocessor is full when its threads, registers, shared memory or block slots are. Persistent kernels often take
all of its shared memory, of which every block, also one that uses none, needs a reserved kilobyte.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Multiprocessor:
    """What one multiprocessor has: counts, and shared memory in bytes. ``reserved`` is taken by every block."""

    threads: int
    registers: int
    shared: int
    reserved: int
    blocks: int


@dataclass(frozen=True)
class Block:
    """What one block takes, registers a thread; ``shared`` in bytes, without the reserved part."""

    threads: int
    registers: int
    shared: int

    def allocated(self) -> int:
        """Registers of the block: whole warps, in units of 256."""
        warps = -(-self.threads // 32)
        return warps * (-(-self.registers * 32 // 256) * 256)


def room_beside(device: Multiprocessor, block: Block, resident: int, one: Block) -> str:
    """Why ``one`` more block does not fit beside ``resident`` blocks of a kernel on a multiprocessor; empty if it fits."""
    if resident + 1 > device.blocks:
        return f"{resident} blocks take every block slot"
    if resident * block.threads + one.threads > device.threads:
        return f"{resident} x {block.threads} threads leave no room for a warp (of {device.threads})"
    if resident * block.allocated() + one.allocated() > device.registers:
        return f"{resident} x {block.allocated()} registers leave {device.registers - resident * block.allocated()}"
    shared = resident * (block.shared + device.reserved)
    if shared + one.shared + device.reserved > device.shared:
        return f"{resident} x {block.shared} bytes of shared memory leave {device.shared - shared} of {device.shared}"
    return ""
