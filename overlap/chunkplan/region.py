"""Region algebra: half-open integer boxes, the shape of every chunk.

A `Box` names elements of a global tensor. Empty boxes are ordinary (a rank may own nothing) and a
0-dimensional box holds one element. Nothing here rounds to a block size: blocks belong to the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from operator import eq

from .cuts import cut


@dataclass(frozen=True)
class Box:
    """The elements ``lo[d] <= index[d] < hi[d]``, one entry a dimension, in elements.

    Raises:
        ValueError: ``lo`` and ``hi`` differ in length, or ``lo[d] > hi[d]`` somewhere.
    """

    lo: tuple[int, ...]
    hi: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.lo) != len(self.hi):
            raise ValueError(f"a box with {len(self.lo)} lower and {len(self.hi)} upper bounds")
        for low, high in zip(self.lo, self.hi, strict=True):
            if low > high:
                raise ValueError(f"a box whose lower bound {low} lies above its upper bound {high}")

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """The box of a whole tensor of that shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def ndim(self) -> int:
        return len(self.lo)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(high - low for low, high in zip(self.lo, self.hi, strict=True))

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def empty(self) -> bool:
        return any(map(eq, self.lo, self.hi))

    def intersect(self, other: Box) -> Box:
        """The elements in both; an empty box where there are none."""
        self._same_ndim(other)
        lo = tuple(map(max, self.lo, other.lo))
        return Box(lo, tuple(map(max, lo, map(min, self.hi, other.hi))))

    def overlaps(self, other: Box) -> bool:
        """Whether at least one element is in both."""
        self._same_ndim(other)
        for a, b, c, d in zip(self.lo, other.lo, self.hi, other.hi, strict=True):
            if (a if a > b else b) >= (c if c < d else d):
                return False
        return True

    def contains(self, other: Box) -> bool:
        """Whether every element of ``other`` is in this box. An empty box is contained in all."""
        self._same_ndim(other)
        return other.empty or all(
            a <= b and d <= c for a, b, c, d in zip(self.lo, other.lo, self.hi, other.hi, strict=True)
        )

    def subtract(self, other: Box) -> list[Box]:
        """This box without ``other``, as disjoint boxes that are not empty (at most two a dimension)."""
        if self.empty:
            return []
        if not self.overlaps(other):
            return [self]
        pieces = []
        lo, hi = list(self.lo), list(self.hi)
        for d in range(self.ndim):
            if lo[d] < other.lo[d]:
                pieces.append(Box(tuple(lo), (*hi[:d], other.lo[d], *hi[d + 1 :])))
                lo[d] = other.lo[d]
            if other.hi[d] < hi[d]:
                pieces.append(Box((*lo[:d], other.hi[d], *lo[d + 1 :]), tuple(hi)))
                hi[d] = other.hi[d]
        return pieces

    def translate(self, offset: Sequence[int]) -> Box:
        """This box moved by ``offset`` elements in each dimension."""
        if len(offset) != self.ndim:
            raise ValueError(f"an offset of {len(offset)} dimensions for a box of {self.ndim}")
        return Box(
            tuple(a + o for a, o in zip(self.lo, offset, strict=True)),
            tuple(b + o for b, o in zip(self.hi, offset, strict=True)),
        )

    def with_interval(self, dim: int, lo: int, hi: int) -> Box:
        """This box with another interval in dimension ``dim``."""
        return Box((*self.lo[:dim], lo, *self.lo[dim + 1 :]), (*self.hi[:dim], hi, *self.hi[dim + 1 :]))

    def split(self, dim: int, parts: int | tuple[int, ...]) -> list[Box]:
        """As many boxes along ``dim``, by the rule of `shard_interval`, or one a weight by that of `cuts.cut`.

        Those at the end may be short or empty.
        """
        low = self.lo[dim]
        weights = (1,) * parts if isinstance(parts, int) else parts
        return [self.with_interval(dim, low + a, low + b) for a, b in cut(self.hi[dim] - low, weights)]

    def _same_ndim(self, other: Box) -> None:
        if len(self.lo) != len(other.lo):
            raise ValueError(f"boxes of {self.ndim} and {other.ndim} dimensions")

    def __str__(self) -> str:
        return "[" + (", ".join(f"{a}:{b}" for a, b in zip(self.lo, self.hi, strict=True)) or "()") + "]"


def shard_interval(extent: int, world: int, rank: int) -> tuple[int, int]:
    """The half-open interval of ``rank``'s shard when ``extent`` elements are cut over ``world`` ranks.

    The rule of ``torch.chunk``: ceil(extent / world) elements a rank, so later ranks may be short or empty
    (an empty one lies at the end).

    Raises:
        ValueError: no such rank, or a negative extent.
    """
    if extent < 0 or not 0 <= rank < world:
        raise ValueError(f"shard {rank} of {world} over {extent} elements")
    width = -(-extent // world)
    return min(rank * width, extent), min((rank + 1) * width, extent)


def bounding(boxes: Iterable[Box]) -> Box | None:
    """The smallest box that contains all boxes that are not empty; None when there is none."""
    full = [box for box in boxes if not box.empty]
    if not full:
        return None
    return Box(
        tuple(map(min, zip(*(box.lo for box in full), strict=True))),
        tuple(map(max, zip(*(box.hi for box in full), strict=True))),
    )


def uncovered(boxes: Iterable[Box], box: Box) -> list[Box]:
    """What of ``box`` lies in none of ``boxes``, as disjoint boxes."""
    left = [] if box.empty else [box]
    for cover in boxes:
        if not left:
            break
        left = [piece for old in left for piece in old.subtract(cover)]
    return left


def covers(boxes: Iterable[Box], box: Box) -> bool:
    """Whether the union of ``boxes`` contains ``box``."""
    return not uncovered(boxes, box)


def union_size(boxes: Iterable[Box]) -> int:
    """Number of elements in at least one of the boxes."""
    disjoint: list[Box] = []
    for box in boxes:
        disjoint += uncovered(disjoint, box)
    return sum(box.size for box in disjoint)


def overlap_of(boxes: Sequence[Box]) -> list[tuple[int, int, Box]]:
    """All pairs of boxes that share elements, as ``(i, j, shared)`` with ``i < j``, sorted.

    A sweep along the dimension that separates the boxes best, so disjoint shards cost n log n.
    """
    live = [i for i, box in enumerate(boxes) if not box.empty]
    if len(live) < 2:
        return []
    ndim = boxes[live[0]].ndim
    if ndim == 0:
        return [(i, j, boxes[i]) for k, i in enumerate(live) for j in live[k + 1 :]]
    dim = max(range(ndim), key=lambda d: len({boxes[i].lo[d] for i in live}))
    live.sort(key=lambda i: boxes[i].lo[dim])
    found = []
    open_boxes: list[int] = []
    for j in live:
        start = boxes[j].lo[dim]
        open_boxes = [i for i in open_boxes if boxes[i].hi[dim] > start]
        for i in open_boxes:
            if boxes[i].overlaps(boxes[j]):
                found.append((min(i, j), max(i, j), boxes[i].intersect(boxes[j])))
        open_boxes.append(j)
    return sorted(found, key=lambda pair: pair[:2])
