"""Boxes with the ranks that their values count, and how values are merged into them.

Sets of ranks are bit masks: bits stand for parts, as `summands.Summands` numbers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .plan import OpId
from .region import Box, overlap_of, uncovered


class Twice(NamedTuple):
    """Ranks that an operation counts once more: in ``box`` of a tensor on a rank (``at``), behind ``writers``.

    ``call`` is the collective entry in which that happens, where it is one.
    """

    mask: int
    op: OpId
    at: tuple[int, str] | None = None
    box: Box | None = None
    writers: tuple[OpId, ...] = ()
    call: OpId | None = None


Parts = list[tuple[Box, int, Twice | None]]
"""Disjoint boxes, each with the ranks it counts, and what it counts twice: that goes along until it is replaced."""


def ranks_of(mask: int) -> list[int]:
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


def initial(box: Box, own: Iterable[Box], rank: int) -> Parts:
    """A rank's own part where it holds one, nothing elsewhere."""
    parts: Parts = []
    left = [box]
    for held in own:
        if held.contains(box):
            return [(box, 1 << rank, None)]
    for held in own:
        parts += [(piece.intersect(held), 1 << rank, None) for piece in left if piece.overlaps(held)]
        left = [rest for piece in left for rest in piece.subtract(held)]
    return parts + [(piece, 0, None) for piece in left]


def put(
    parts: Parts, box: Box, mask: int, adding: bool, op: OpId, once: bool = False, carried: Twice | None = None
) -> Parts:
    """``parts`` with ``mask`` added to, or in place of, what is in ``box``; with ``once`` nothing counts twice.

    Args:
        carried: what ``mask`` itself counts twice.
    """
    found: Parts = []
    for part, counted, twice in parts:
        if part != box and not part.overlaps(box):
            found.append((part, counted, twice))
            continue
        if part == box:
            shared = box
        else:
            shared = part.intersect(box)
            found += [(rest, counted, twice) for rest in part.subtract(box)]
        if not adding:
            found.append((shared, mask, carried))
        elif counted & mask and not once:
            found.append((shared, counted | mask, twice or carried or Twice(counted & mask, op)))
        else:
            found.append((shared, counted | mask, twice or carried))
    return found


def placed(parts: Parts, at: tuple[int, str], writers: tuple[OpId, ...] = (), call: OpId | None = None) -> Parts:
    """``parts`` of a tensor on a rank, where what they count twice has not been counted twice before."""
    return [
        (box, mask, twice if twice is None or twice.at else twice._replace(at=at, box=box, writers=writers, call=call))
        for box, mask, twice in parts
    ]


def together(groups: dict[Box, list[OpId]]) -> list[tuple[list[Box], list[OpId]]]:
    """Boxes that share elements, directly or through others, with all their operations."""
    boxes = list(groups)
    root = list(range(len(boxes)))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for i, j, _ in overlap_of(boxes):
        root[find(i)] = find(j)
    found: dict[int, tuple[list[Box], list[OpId]]] = {}
    for i, box in enumerate(boxes):
        members, writers = found.setdefault(find(i), ([], []))
        members.append(box)
        writers.extend(groups[box])
    return list(found.values())


def disjoint(boxes: Sequence[Box]) -> list[Box]:
    found: list[Box] = []
    for box in boxes:
        found += uncovered(found, box)
    return found
