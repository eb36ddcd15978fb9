"""Transfers of one tensor, written down one after the other; what each has to come after is found here.

A move comes after what brought its source there. One that replaces comes after whatever read or wrote the elements
that it replaces. Dependencies only point at moves that were written down earlier, so no cycle can arise.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from ..plan import P2P, Chunk, CommPlan, OpId, TensorSpec
from ..reduction import Reduction
from ..region import Box


class _Seen:
    """Operations by the boxes that they touched on one rank. A question costs as much as there are answers, about."""

    def __init__(self, ndim: int) -> None:
        self._boxes: dict[Box, list[OpId]] = {}
        self._cuts: list[list[tuple[int, int]]] = [[] for _ in range(ndim)]
        """By dimension: where each box begins, in order, and its number."""
        self._widest = [0] * ndim
        self._by_number: list[tuple[Box, list[OpId]]] = []

    def add(self, box: Box, op_id: OpId) -> None:
        if box not in self._boxes:
            self._boxes[box] = []
            for dim, cut in enumerate(self._cuts):
                insort(cut, (box.lo[dim], len(self._by_number)))
                self._widest[dim] = max(self._widest[dim], box.hi[dim] - box.lo[dim])
            self._by_number.append((box, self._boxes[box]))
        self._boxes[box].append(op_id)

    def touching(self, box: Box) -> list[OpId]:
        """Operations on boxes that share elements with ``box``."""
        near: Sequence[int] = range(len(self._by_number))
        for dim, cut in enumerate(self._cuts):
            first = bisect_left(cut, (box.lo[dim] - self._widest[dim] + 1,))
            last = bisect_left(cut, (box.hi[dim],))
            if last - first < len(near):
                near = [number for _, number in cut[first:last]]
        return [op for number in near if self._by_number[number][0].overlaps(box) for op in self._by_number[number][1]]


class Moves:
    """Transfers of ``tensor`` in a world of ``world`` ranks, each a pull or a push as ``direction`` says."""

    def __init__(self, tensor: TensorSpec, world: int, direction: str = "pull") -> None:
        self.tensor = tensor
        self.world = world
        self.direction = direction
        self.ops: list[list[P2P]] = [[] for _ in range(world)]
        self._arrived = [_Seen(len(tensor.shape)) for _ in range(world)]
        self._read = [_Seen(len(tensor.shape)) for _ in range(world)]

    def move(self, src: int, dst: int, box: Box, reduce: Reduction | None = None) -> None:
        """``box`` from rank ``src`` to rank ``dst``, replacing what is there or merged into it. Empty boxes stay out."""
        if box.empty:
            return
        owner = dst if self.direction == "pull" else src
        op_id = (owner, len(self.ops[owner]))
        earlier = self._arrived[src].touching(box)
        if reduce is None:
            earlier += self._arrived[dst].touching(box) + self._read[dst].touching(box)
        last: dict[int, int] = {}
        for rank, index in earlier:
            if rank != owner:  # a rank's own list is in order anyway
                last[rank] = max(index, last.get(rank, index))
        chunk = Chunk(self.tensor.name, box)
        depends = tuple(sorted(last.items()))
        self.ops[owner].append(P2P(self.direction, src, dst, chunk, chunk, depends, reduce=reduce))  # type: ignore[arg-type]
        self._arrived[dst].add(box, op_id)
        self._read[src].add(box, op_id)

    def plan(self, name: str, before: Sequence[Box], after: Sequence[Box], meta: Mapping[str, str]) -> CommPlan:
        """The plan of all moves, from one box a rank to one box a rank."""
        held = [tuple((Chunk(self.tensor.name, box),) for box in boxes) for boxes in (before, after)]
        return CommPlan(
            name, self.world, (self.tensor,), held[0], held[1], tuple(map(tuple, self.ops)), meta=dict(meta)
        )
