"""A product on one rank, as the event model sees it: tiles of a size, and how long one takes."""

from __future__ import annotations

from dataclasses import dataclass

from overlap.errors import PlanError

from .machine import Machine
from .tiles import FEWEST_ROWS, USUAL, Tile

TILES = (
    USUAL,
    Tile(128, 128, 64, 4, 4),
    Tile(64, 256, 64, 4, 4),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 64, 64, 4, 5),
    Tile(32, 128, 64, 4, 4),
    Tile(32, 64, 64, 4, 5),
    Tile(16, 128, 64, 4, 4),
    Tile(16, 64, 64, 4, 5),
    Tile(16, 32, 64, 4, 5),
)
"""What a product may be cut into, the tile with the least traffic for its work first."""
BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of an element, by dtype."""


def itemsize_of(dtype: str) -> int:
    """Bytes of an element.

    Raises:
        PlanError: an unknown dtype.
    """
    if dtype not in BYTES:
        raise PlanError(f"unknown dtype `{dtype}`", help=f"there is {', '.join(sorted(BYTES))}")
    return BYTES[dtype]


@dataclass(frozen=True)
class Gemm:
    """A product [m, k] x [k, n] on one rank, in tiles of ``block_m`` x ``block_n``, which take ``slowness`` times as long for
    each operation as those that rates are measured with."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    block_m: int = 128
    block_n: int = 256
    slowness: float = 1.0

    @property
    def tiles(self) -> int:
        return -(-self.m // self.block_m) * -(-self.n // self.block_n)

    def tile_seconds(self, machine: Machine) -> float:
        """How long a unit works on a tile: its arithmetic, or its share of what the product reads and writes of memory.

        A tile that hangs over the edge costs as much as any other.
        """
        if not self.tiles:
            return 0.0
        waves = -(-self.tiles // machine.units)
        moved = (self.m * self.k + self.k * self.n + self.m * self.n) * itemsize_of(self.dtype)
        work = 2 * self.block_m * self.block_n * self.k * self.slowness
        return max(work * machine.units / machine.rate(self.dtype), moved / machine.memory / waves)

    def seconds(self, machine: Machine) -> float:
        """The whole product: full waves of tiles."""
        return -(-self.tiles // machine.units) * self.tile_seconds(machine)


def best_blocks(m: int, n: int, k: int, machine: Machine, dtype: str = "bf16") -> Gemm:
    """The product with the blocks that the model likes best; of equals, those with the least traffic.

    Small tiles fill the last wave better and lose more on the way (`tiles`); of few rows, where memory decides, they lose
    nothing.
    """
    itemsize, rate = itemsize_of(dtype), machine.rate(dtype) / machine.units
    many = m >= FEWEST_ROWS
    found = [
        Gemm(m, n, k, dtype, tile.block_m, tile.block_n, tile.slowness(k, itemsize, rate) if many and k else 1.0)
        for tile in TILES
    ]
    return min(found, key=lambda gemm: gemm.seconds(machine))
