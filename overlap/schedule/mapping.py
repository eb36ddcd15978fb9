"""The user's own order of tiles, evaluated on the host: is it a bijection on a run's counts?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from operator import index

from overlap.errors import ScheduleError

TileMap = Callable[[int, tuple[int, ...]], Sequence[int]]
"""``(tile, counts) -> coordinates``: the dispatch region of the kernel on a grid of ``counts`` tiles."""


class TileMapCheck:
    """Evaluates a mapping once for each counts it is asked for."""

    def __init__(self, tile_map: TileMap) -> None:
        self._map = tile_map
        self._known: dict[tuple[int, ...], bool] = {}

    def __call__(self, counts: tuple[int, ...]) -> bool:
        """Whether the mapping numbers every tile of a box of ``counts`` exactly once.

        Raises:
            ScheduleError: the mapping gives something that is no tuple of one integer an axis.
        """
        if counts not in self._known:
            self._known[counts] = self._is_bijection(counts)
        return self._known[counts]

    def _is_bijection(self, counts: tuple[int, ...]) -> bool:
        tiles = 1
        for count in counts:
            tiles *= count
        seen = bytearray(tiles)
        for tile in range(tiles):
            try:
                coordinates = self._map(tile, counts)
            except ArithmeticError:
                # Such as a division by a number of groups that is zero on a box this small.
                return False
            at = 0
            try:
                for coordinate, count in zip(coordinates, counts, strict=True):
                    coordinate = index(coordinate)
                    if not 0 <= coordinate < count:
                        return False
                    at = at * count + coordinate
            except (TypeError, ValueError):
                raise ScheduleError(
                    f"the tile mapping gives {coordinates!r} for tile {tile} of {counts}",
                    help=f"it must give {len(counts)} integers, one coordinate for each tile axis",
                ) from None
            if seen[at]:
                return False
            seen[at] = 1
        return True


def row_major(origin: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Coordinates of a box of tiles, the last axis fastest."""
    return product(*(range(lo, lo + count) for lo, count in zip(origin, counts, strict=True)))
