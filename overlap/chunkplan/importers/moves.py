"""Transfers of one tensor, written down one after the other; what each has to come after is found here.

A move comes after what brought its source there. One that replaces comes after whatever read or wrote the elements
that it replaces. Dependencies only point at moves that were written down earlier, so no cycle can arise.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ..plan import P2P, Chunk, Collective, CommOp, CommPlan, OpId, TensorSpec
from ..reduction import Reduction
from ..region import Box

Direction = Literal["pull", "push"]
Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]


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
        self.direction: Direction = direction  # type: ignore[assignment]
        self.ops: list[list[CommOp]] = [[] for _ in range(world)]
        self._arrived = [_Seen(len(tensor.shape)) for _ in range(world)]
        self._read = [_Seen(len(tensor.shape)) for _ in range(world)]
        self._channel = 0
        """The first channel of what is placed next."""
        self._placed: list[tuple[_Seen, Box, OpId]] = []
        """What was placed since the last `close`."""

    def move(self, src: int, dst: int, box: Box, reduce: Reduction | None = None) -> None:
        """``box`` from rank ``src`` to rank ``dst``, replacing what is there or merged into it. Empty boxes stay out."""
        if box.empty:
            return
        owner = dst if self.direction == "pull" else src
        op_id = (owner, len(self.ops[owner]))
        earlier = self._arrived[src].touching(box)
        if reduce is None:
            earlier += self._arrived[dst].touching(box) + self._read[dst].touching(box)
        chunk = Chunk(self.tensor.name, box)
        depends = self._last(owner, 0, earlier)
        self.ops[owner].append(P2P(self.direction, src, dst, chunk, chunk, depends, reduce=reduce))
        self._arrived[dst].add(box, op_id)
        self._read[src].add(box, op_id)

    def collective(
        self,
        kind: Kind,
        ranks: Sequence[int],
        given: Sequence[Box],
        left: Sequence[Box],
        reduce: Reduction | None = None,
    ) -> None:
        """A collective that a library carries out, of what each of ``ranks`` gives and is left with."""
        for rank, src, dst in zip(ranks, given, left, strict=True):
            earlier = self._arrived[rank].touching(src) + self._touched(rank, dst)
            depends = self._last(rank, 0, earlier)
            op = Collective(kind, tuple(ranks), self._chunk(src), self._chunk(dst), depends, reduce=reduce)
            op_id = (rank, len(self.ops[rank]))
            self.ops[rank].append(op)
            self._placed += [(self._arrived[rank], dst, op_id), (self._read[rank], src, op_id)]

    def place(self, plan: CommPlan, corner: Sequence[int]) -> None:
        """The operations of a plan of some ranks, its tensor lying at ``corner``, in channels of their own.

        Among each other they come in the plan's order; each comes after what touched its data before the last `close`.
        """
        base = [len(ops) for ops in self.ops]

        def moved(op_id: OpId) -> OpId:
            return op_id[0], base[op_id[0]] + op_id[1]

        lanes = {moved(op_id): self._channel + op.channel for op_id, op in plan.items()}
        for old, op in plan.items():
            assert isinstance(op, P2P)
            chunk = self._chunk(op.dst.box.translate(corner))
            earlier = [moved(dep) for dep in op.depends]
            earlier += self._arrived[op.src_rank].touching(chunk.box) + self._touched(op.dst_rank, chunk.box)
            op_id = moved(old)
            depends = self._last(op_id[0], lanes[op_id], earlier, lanes)
            self.ops[op_id[0]].append(replace(op, src=chunk, dst=chunk, depends=depends, channel=lanes[op_id]))
            self._placed.append((self._arrived[op.dst_rank], chunk.box, op_id))
            self._placed.append((self._read[op.src_rank], chunk.box, op_id))

    def close(self) -> None:
        """What is placed from here on comes after what was placed so far."""
        for seen, box, op_id in self._placed:
            seen.add(box, op_id)
        self._placed.clear()
        self._channel = 1 + max((op.channel for ops in self.ops for op in ops), default=-1)

    def _chunk(self, box: Box) -> Chunk:
        return Chunk(self.tensor.name, box)

    def _touched(self, rank: int, box: Box) -> list[OpId]:
        return self._arrived[rank].touching(box) + self._read[rank].touching(box)

    def _last(
        self, owner: int, channel: int, earlier: Sequence[OpId], lanes: Mapping[OpId, int] | None = None
    ) -> tuple[OpId, ...]:
        """The last of each list and channel among ``earlier``; what stands before it in its own is there anyway.

        Args:
            lanes: channels of operations that are not in their lists yet.
        """
        last: dict[tuple[int, int], int] = {}
        for op_id in earlier:
            rank, index = op_id
            lane = lanes[op_id] if lanes and op_id in lanes else self.ops[rank][index].channel
            if (rank, lane) != (owner, channel):
                last[rank, lane] = max(index, last.get((rank, lane), index))
        return tuple(sorted((rank, index) for (rank, _), index in last.items()))

    def plan(self, name: str, before: Sequence[Box], after: Sequence[Box], meta: Mapping[str, str]) -> CommPlan:
        """The plan of all moves, from one box a rank to one box a rank."""
        held = [tuple((Chunk(self.tensor.name, box),) for box in boxes) for boxes in (before, after)]
        return CommPlan(
            name, self.world, (self.tensor,), held[0], held[1], tuple(map(tuple, self.ops)), meta=dict(meta)
        )
