"""What a sum is made of: which parts there are of every tensor, and which of them a promised sum must count.

A sum of a tensor counts one part for each kind of rank in its group. Where no rank of a kind holds the tensor at the start,
the part is that of another tensor which operations bring into it:

    c held by rank 0 only, p by ranks 0 and 1      c on rank 0 = c of rank 0 + p of rank 1
"""

from __future__ import annotations

from .plan import CommPlan, TensorSpec
from .region import Box, uncovered

Kind = tuple[int, int]
"""A rank's group, and which part of its group's tensor it holds."""


class Summands:
    """The parts of a plan's tensors, numbered. Numbers are bits of masks."""

    def __init__(self, plan: CommPlan) -> None:
        self._plan = plan
        self._kinds = {spec.name: _kinds(spec, plan.world) for spec in plan.tensors}
        numbers: dict[tuple[str, Kind], int] = {}
        self.numbers = {
            name: tuple(numbers.setdefault((name, kind), len(numbers)) for kind in row)
            for name, row in self._kinds.items()
        }
        """By tensor, the number of each rank's part: ranks of one kind share it."""
        self._number = numbers
        self._held: dict[tuple[str, Kind], list[Box]] = {}
        for rank, chunks in enumerate(plan.before):
            for chunk in chunks:
                if not chunk.box.empty:
                    boxes = self._held.setdefault((chunk.tensor, self._kinds[chunk.tensor][rank]), [])
                    if chunk.box not in boxes:
                        boxes.append(chunk.box)
        self._feeding = {spec.name: _feeding(plan, spec.name) for spec in plan.tensors}
        self._alone: dict[tuple[str, int], int] = {}

    def cut(self, tensor: str, rank: int, box: Box) -> list[Box]:
        """``box`` in pieces whose elements are sums of the same parts."""
        found = [box]
        if self._feeding[tensor]:
            for kind in self._of_group(tensor, rank):
                for held in self._held.get((tensor, kind), ()):
                    inside = [piece.intersect(held) for piece in found if piece.overlaps(held)]
                    found = [*inside, *(rest for piece in found for rest in piece.subtract(held))]
        return found

    def wanted(self, tensor: str, rank: int, box: Box, mask: int) -> int:
        """What a sum of ``box`` on ``rank`` must count, where it counts ``mask``; ``box`` is a piece of `cut`."""
        feeding = self._feeding[tensor]
        if not feeding:
            group = self._plan.tensor(tensor).group(rank)
            if (tensor, group) not in self._alone:
                self._alone[tensor, group] = sum(1 << self._number[tensor, k] for k in self._of_group(tensor, rank))
            return self._alone[tensor, group]
        found = 0
        for kind in self._of_group(tensor, rank):
            number = self._number[tensor, kind]
            if uncovered(self._held.get((tensor, kind), ()), box):
                others = [self._number[name, kind] for name in feeding if (name, kind) in self._held]
                number = next((other for other in others if mask >> other & 1), others[0] if others else number)
            found |= 1 << number
        return found

    def _of_group(self, tensor: str, rank: int) -> list[Kind]:
        """All kinds of ranks in the rank's group."""
        group = self._kinds[tensor][rank][0]
        return list(dict.fromkeys(kind for kind in self._kinds[tensor] if kind[0] == group))


def _kinds(spec: TensorSpec, world: int) -> tuple[Kind, ...]:
    groups = spec.groups or (0,) * world
    parts = spec.parts or tuple(groups[:rank].count(group) for rank, group in enumerate(groups))
    return tuple(zip(groups, parts, strict=True))


def _feeding(plan: CommPlan, tensor: str) -> list[str]:
    """Tensors that operations bring into ``tensor``, directly or through others, in the order of the plan's list."""
    found = {tensor}
    while more := {op.src.tensor for _, op in plan.items() if op.dst.tensor in found} - found:
        found |= more
    return [spec.name for spec in plan.tensors if spec.name in found and spec.name != tensor]
