"""Transfers of one tensor, written down one after the other; what each has to come after is found here.

A move comes after what brought its source there. One that replaces comes after whatever read or wrote the elements
that it replaces. Dependencies only point at moves that were written down earlier, so no cycle can arise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..plan import P2P, Chunk, CommPlan, OpId, TensorSpec
from ..reduction import Reduction
from ..region import Box

Seen = list[dict[Box, list[OpId]]]


class Moves:
    """Transfers of ``tensor`` in a world of ``world`` ranks, each a pull or a push as ``direction`` says."""

    def __init__(self, tensor: TensorSpec, world: int, direction: str = "pull") -> None:
        self.tensor = tensor
        self.world = world
        self.direction = direction
        self.ops: list[list[P2P]] = [[] for _ in range(world)]
        self._arrived: Seen = [{} for _ in range(world)]
        self._read: Seen = [{} for _ in range(world)]

    def move(self, src: int, dst: int, box: Box, reduce: Reduction | None = None) -> None:
        """``box`` from rank ``src`` to rank ``dst``, replacing what is there or merged into it. Empty boxes stay out."""
        if box.empty:
            return
        owner = dst if self.direction == "pull" else src
        op_id = (owner, len(self.ops[owner]))
        earlier = _touching(self._arrived[src], box)
        if reduce is None:
            earlier += _touching(self._arrived[dst], box) + _touching(self._read[dst], box)
        last: dict[int, int] = {}
        for rank, index in earlier:
            if rank != owner:  # a rank's own list is in order anyway
                last[rank] = max(index, last.get(rank, index))
        chunk = Chunk(self.tensor.name, box)
        depends = tuple(sorted(last.items()))
        self.ops[owner].append(P2P(self.direction, src, dst, chunk, chunk, depends, reduce=reduce))  # type: ignore[arg-type]
        self._arrived[dst].setdefault(box, []).append(op_id)
        self._read[src].setdefault(box, []).append(op_id)

    def plan(self, name: str, before: Sequence[Box], after: Sequence[Box], meta: Mapping[str, str]) -> CommPlan:
        """The plan of all moves, from one box a rank to one box a rank."""
        held = [tuple((Chunk(self.tensor.name, box),) for box in boxes) for boxes in (before, after)]
        return CommPlan(
            name, self.world, (self.tensor,), held[0], held[1], tuple(map(tuple, self.ops)), meta=dict(meta)
        )


def _touching(seen: dict[Box, list[OpId]], box: Box) -> list[OpId]:
    return [op for other, ops in seen.items() if other == box or other.overlaps(box) for op in ops]
