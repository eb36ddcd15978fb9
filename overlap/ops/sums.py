"""Where an operator's sums are made: by tiles, or while its kernel runs, by a rule of thumb in the place of a model.

The multiprocessors that are left free must be done with all sums but the last round's by the time the product is, and what no
longer follows the kernel must be more than the waves of tiles that they cost. That is what was measured when sums ran on those
alone; since they spread to all multiprocessors it asks for more than it must.
"""

from __future__ import annotations

from overlap.chunkplan.cuts import Split, cut, weights_at
from overlap.schedule.tile_sums import worth_adding

SHARE = 32
"""One multiprocessor of so many is left free. On 132, 4 were better than 8 and 16 (2 x H200, bench/results/sums)."""
FLOPS_BYTES = 1e13
"""Operations a second of a multiprocessor, times the bytes of an operand."""
DRAW = 75e9
"""Bytes a second that a multiprocessor which adds reads and writes."""
MEMORY, LINK = 3e12, 350e9
"""Bytes a second that all of them do, and that leave a rank: what follows the kernel otherwise."""
TILE = 128 * 256
LEAST_SECONDS = 1e-4
LEAST_EARLY = 0.5
"""Of a result whose sums are not sent on, so much must be added up early. Half of it gained 2 to 4 % on 4 x H200, for four shapes
(bench/results/sums/gemm_rs_h200x4.json)."""


def offered_sums(
    rows: int,
    columns: int,
    depth: int,
    *,
    world: int,
    itemsize: int,
    moved: int,
    again: bool,
    split: Split,
    units: int,
    exchanged: bool = False,
) -> int:
    """Multiprocessors that are left to sums of a product's result; 0: sums follow the kernel. The same on every rank.

    Args:
        rows, columns: of a rank's product, of the largest where they differ.
        depth: of this rank's product.
        itemsize: bytes of an element of the operands; ``moved``: of the result as it travels.
        again: a sum is sent on, so that it is written twice.
        split: chunks that each rank's part is cut into.
        units: multiprocessors of the device.
        exchanged: ranks exchange pieces of their results, so that a sum moves one piece of every rank.
    """
    weights = weights_at(split, 1, 3)
    free = units // SHARE
    if world < 2 or len(weights) < 2 or free < 1:
        return 0
    early = 1 - weights[-1] / sum(weights)
    part = rows * columns / world * moved * early
    touched = part * (2 * world if exchanged else world + (2 if again else 1))
    product = 2.0 * rows * columns * depth / (FLOPS_BYTES / itemsize * (units - free))
    if product < max(LEAST_SECONDS, touched / (DRAW * free)) or not (again or early >= LEAST_EARLY):
        return 0
    gain = touched / MEMORY + (part * (world - 1) / LINK if again else 0.0)
    waves = [-(-max(1, rows * columns // TILE) // programs) for programs in (units, units - free)]
    return free if gain > product * (waves[1] / waves[0] - 1) else 0


def tiles_in_time(tiles: int, world: int, split: Split, units: int) -> bool:
    """Whether tiles add where nobody says (`worth_adding`).

    Args:
        tiles: of this rank's product, the same on every rank.
        split: chunks that each rank's part is cut into.
        units: multiprocessors of the device.
    """
    weights = weights_at(split, 1, 3)
    return worth_adding(tiles, world, units, max(weights) / sum(weights))


def in_whole_tiles(rows: int, world: int, split: Split, block: int) -> bool:
    """Whether no tile makes parts of two chunks of a result whose rows are scattered, so that each can be added up by its tiles.

    Args:
        rows: of the result of every rank.
        split: of a rank's piece; ``block``: rows of a tile.
    """
    piece = -(-rows // max(1, world))
    pieces = [min(piece, max(0, rows - rank * piece)) for rank in range(world)]
    if any(rank * piece % block for rank in range(world) if pieces[rank]):
        return False
    cuts = {weights_at(split, place, world - 1) for place in range(world - 1)}
    return not any(
        end % block for size in set(pieces) for weights in cuts for _, end in cut(size, weights) if end < size
    )
