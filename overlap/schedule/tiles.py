"""What a product's tiles lose against the ones that a machine's rate was measured with.

A step of a tile's loop takes the longest of

    its arithmetic                at the machine's rate, less where a warp group's instruction covers few columns
    its loads, (stages - 1) of    `LATENCY_S` and the bytes of a stage at `STREAM_BYTES_PER_S`, as one unit gets them
    them under way

and a tile has `EDGE_S` besides, where its pipeline fills and its result leaves.

The numbers come from a fit to bench/results/gemm/gemm_blocks_h100.json (155 products of 20 shapes in 11 tiles), and none from
what `overlap tune` measured (bench/results/tuning). Of products with 512 rows and more they are off by 6 % at the root mean
square, which `tests/unit/schedule/test_tiles.py` holds them to; of fewer rows (`FEWEST_ROWS`) memory decides, which is not theirs
to say.
"""

from __future__ import annotations

from dataclasses import dataclass

LATENCY_S = 0.49e-6
STREAM_BYTES_PER_S = 56.5e9
EDGE_S = 1.85e-6
NARROW = {256: 1.0, 128: 0.91, 64: 0.6}
"""Share of the rate, by the columns that one instruction of a warp group covers."""
ROWS = 64
"""Of such an instruction."""
WARPS = 4
"""Of a warp group."""


@dataclass(frozen=True)
class Tile:
    """A tile of ``block_m`` x ``block_n``, and how its loop over K goes: ``block_k`` a step."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int

    def seconds(self, k: int, itemsize: int, rate: float) -> float:
        """How long a unit works on one tile of a product along ``k``.

        Args:
            rate: floating-point operations a second of one unit.
        """
        rows = max(1, self.warps // WARPS) * ROWS
        # Warp groups stand side by side where a tile has no rows for all of them.
        columns = self.block_n if self.block_m >= rows else self.block_n * self.block_m // rows
        share = next((share for n, share in NARROW.items() if columns >= n), NARROW[64])
        work = 2.0 * self.block_m * self.block_n * self.block_k / (rate * share)
        loads = LATENCY_S + (self.block_m + self.block_n) * self.block_k * itemsize / STREAM_BYTES_PER_S
        return -(-k // self.block_k) * max(work, loads / max(1, self.stages - 1)) + EDGE_S

    def slowness(self, k: int, itemsize: int, rate: float) -> float:
        """Time for each operation, over that of the tile that rates are measured with."""
        ours, usual = (tile.seconds(k, itemsize, rate) / (tile.block_m * tile.block_n) for tile in (self, USUAL))
        return ours / usual


USUAL = Tile(128, 256, 64, 8, 3)
FEWEST_ROWS = 512
