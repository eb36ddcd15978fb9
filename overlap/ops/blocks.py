"""Block sizes of the GEMM kernels by shape and dtype.

    kernel       dtype        M         N         blocks          warps  stages
    descriptors  16 bit    > 64     > 128     128 x 256 x 64       8       3
    descriptors  16 bit    > 64      any      128 x 128 x 64       4       4
    descriptors  16 bit   <= 64     > 64       64 x 128 x 128      4       4
    descriptors  16 bit   <= 64      any       64 x 64 x 128       4       5
    pointers     16 bit     ...       ...     up to 128 x 128 x 64
    pointers     fp32       ...       ...     up to 64 x 64 x 32   (IEEE products on the ordinary units)

Large blocks only where they still give most multiprocessors a tile. bench/gemm_blocks.py compares those for descriptors with
others and with cuBLAS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from overlap.autotune.config import Config

SHARED_BYTES = 227 * 1024
"""Shared memory that a program may have on sm_90, the first device that takes descriptors."""
BARRIERS = 1024
"""Of it for what is no tile, at most."""


@dataclass(frozen=True)
class Blocks:
    """Constexpr block sizes and launch options of a GEMM."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    group_m: int = 8

    def tiles(self, batch: int, rows: int, columns: int) -> int:
        """Tiles of ``batch`` products of ``rows`` by ``columns``."""
        return batch * -(-rows // self.m) * -(-columns // self.n)

    def fit(self, itemsize: int, result: int) -> bool:
        """Whether a kernel by descriptors has shared memory for its stages and for a tile of the result.

        Args:
            itemsize, result: bytes of an element of the operands and of the result.
        """
        stages = self.stages * (self.m + self.n) * self.k * itemsize
        return stages + self.m * self.n * result + BARRIERS <= SHARED_BYTES

    def arguments(self) -> dict[str, int]:
        """As keyword arguments of a launch."""
        return {
            "BLOCK_M": self.m,
            "BLOCK_N": self.n,
            "BLOCK_K": self.k,
            "GROUP_M": self.group_m,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


_DESCRIPTORS = (
    Blocks(128, 256, 64, 8, 3),
    Blocks(128, 128, 64, 4, 4),
    Blocks(64, 128, 128, 4, 4),
    Blocks(64, 64, 128, 4, 5),
)
_POINTERS_16 = (
    Blocks(128, 128, 64, 8, 3),
    Blocks(64, 128, 64, 4, 3),
    Blocks(64, 64, 64, 4, 3),
    Blocks(32, 64, 64, 4, 3),
    Blocks(16, 64, 64, 4, 3),
)
_POINTERS_32 = (
    Blocks(64, 64, 32, 4, 2),
    Blocks(32, 64, 32, 4, 2),
    Blocks(16, 32, 32, 4, 2),
)


def choose_blocks(
    *, descriptors: bool, itemsize: int, batch: int, rows: int, columns: int, multiprocessors: int, result: int = 0
) -> Blocks:
    """The largest blocks that are not mostly padding and keep at least half of the multiprocessors busy.

    Args:
        itemsize, result: bytes of an element of the operands and of the result; 0: as many.
    """
    table: tuple[Blocks, ...] = _DESCRIPTORS if descriptors else _POINTERS_16 if itemsize <= 2 else _POINTERS_32
    if descriptors and result > itemsize:
        table = tuple(blocks for blocks in table if blocks.fit(itemsize, result))
    for blocks in table[:-1]:
        padded = rows <= blocks.m // 2 or columns <= blocks.n // 2
        if not padded and 2 * blocks.tiles(batch, rows, columns) >= multiprocessors:
            return blocks
    fitting = [b for b in table if rows > b.m // 2]
    return fitting[-1] if fitting else table[-1]


def most_tiles(rows: int, columns: int) -> int:
    """Tiles of a result by descriptors, of up to so many rows in all its matrices and so many columns, at most: of matrices that
    are higher than a tile, so that no more than half of the rows of tiles is padding."""
    return 2 * max(blocks.tiles(1, rows, columns) for blocks in _DESCRIPTORS)


def parts_of(blocks: Blocks) -> tuple[Blocks, ...]:
    """Smaller blocks by descriptors that divide ``blocks``."""
    return tuple(
        each
        for each in _DESCRIPTORS
        if blocks.m % each.m == 0 and blocks.n % each.n == 0 and each.m * each.n < blocks.m * blocks.n
    )


def blocks_of(config: Config | None) -> Blocks | None:
    """The blocks that a tuned config names, or None where it leaves them open."""
    if config is None:
        return None
    realization, meta = config.realization, dict(config.realization.meta)
    if not {"BLOCK_M", "BLOCK_N", "BLOCK_K"} <= set(meta):
        return None
    return Blocks(
        meta["BLOCK_M"],
        meta["BLOCK_N"],
        meta["BLOCK_K"],
        realization.num_warps or 4,
        realization.num_stages or 3,
        meta.get("GROUP_M", 8),
    )


def blocks_tried(*, descriptors: bool, itemsize: int) -> tuple[Blocks, ...]:
    """Blocks that a tuner tries: those above, and each with other depths of its pipeline and other groups of rows."""
    table = _DESCRIPTORS if descriptors else _POINTERS_16 if itemsize <= 2 else _POINTERS_32
    found = list(table)
    if descriptors:
        found.append(Blocks(256, 128, 64, 8, 3))
    found += [replace(b, stages=stages) for b in table for stages in (b.stages - 1, b.stages + 1)]
    found += [replace(b, group_m=group) for b in table for group in (4, 16)]
    return tuple(dict.fromkeys(found))
