"""``path="synth"``: P2P made for a link table, by `matching`.

    all_gather       chunks spread from their owners
    reduce_scatter   an all-gather over the links turned round, played backwards: where a rank took a chunk once, it
                     now gives its sum of that chunk once, behind all that it takes
    all_reduce       both, one behind the other; or, where all are neighbours, every rank's part straight to every other
    all_to_all       pieces on their shortest ways

Only joined pairs are used; a rank that is not a neighbour, or outside the group, is served or used as a relay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..plan import P2P, Chunk, CommOp, CommPlan, OpId
from ..reduction import Reduction
from ..region import Box
from .matching import Demand, Transfer, match
from .network import Network, Resource
from .step import CollectiveStep
from .timing import predicted_seconds

Direction = Literal["pull", "push"]


def synth_plan(step: CollectiveStep, network: Network, direction: Direction = "push") -> CommPlan:
    """The plan of a step for a link table: the one of those tried that ends first by `link_times`.

    Args:
        direction: who carries operations out, the source (push) or the destination (pull).

    Raises:
        PlanError: links do not lead from every member of the group to every other.
    """
    plans = []
    for patient in (True, False) if len(set(network.links.classes.values())) > 1 else (True,):
        draft = _Draft(step, network, direction, patient)
        if step.kind == "all_to_all":
            draft.exchange()
        if step.reduces:
            draft.reduce()
        if step.kind in ("all_gather", "all_reduce"):
            draft.gather()
        plans.append(draft.plan())
    if step.kind == "all_reduce" and all(network.links.between(a, b) for a in step.group for b in step.group if a != b):
        draft = _Draft(step, network, direction, True)
        draft.broadcast()
        plans.append(draft.plan())
    if len(plans) == 1:
        return plans[0]
    return min(plans, key=lambda plan: predicted_seconds(plan, network, itemsize=step.itemsize))


@dataclass
class _Op:
    """An operation of a draft: what it moves and when, and the operations it comes behind."""

    box: Box
    src: int
    dst: int
    start: float
    finish: float
    reduce: Reduction | None = None
    phase: int = 0
    behind: list[int] = field(default_factory=list)


class _Draft:
    """Operations as they are found; their order in lists and channels comes last."""

    def __init__(self, step: CollectiveStep, network: Network, direction: Direction, patient: bool) -> None:
        self.step = step
        self.network = network
        self.direction: Direction = direction
        self.patient = patient
        self.ops: list[_Op] = []
        self.landed: dict[tuple[int, Box], list[int]] = defaultdict(list)
        """Operations that bring a box to a rank, so far."""
        self.phase = 0

    def _match(
        self, boxes: Sequence[Box], origins: Sequence[int], wants: Sequence[int], network: Network, single: bool = False
    ) -> tuple[Transfer, ...]:
        """Transfers of chunks that are at their origins when all that landed there has, over links used before."""
        ready = []
        for box, origin in zip(boxes, origins, strict=True):
            ready.append(max((self.ops[n].finish for n in self.landed[origin, box]), default=0.0))
        taken: dict[Resource, float] = {}
        for op in self.ops:
            for resource in network.resources(op.src, op.dst):
                taken[resource] = max(taken.get(resource, 0.0), op.finish)
        sizes = tuple(box.size * self.step.itemsize for box in boxes)
        demand = Demand(sizes, tuple(origins), tuple(wants), single, tuple(ready), taken)
        return match(demand, network, patient=self.patient)

    def _shards(self) -> tuple[list[Box], list[int], list[int]]:
        """The chunks of all shards, their owners, and the wish of every member for all."""
        owned = [(box, rank) for i, rank in enumerate(self.step.group) for box in self.step.parts(self.step.shard(i))]
        everything = (1 << len(owned)) - 1
        wants = [everything if rank in self.step.group else 0 for rank in range(self.step.world)]
        return [box for box, _ in owned], [rank for _, rank in owned], wants

    def _add(self, box: Box, src: int, dst: int, start: float, finish: float, reduce: Reduction | None = None) -> None:
        """An operation behind all that brings the box to its source so far."""
        behind = list(self.landed[src, box])
        if reduce is not None and dst not in self.step.group:
            # A relay has no part of its own: what comes first is its value, and the rest is added behind it.
            if self.landed[dst, box]:
                behind.append(self.landed[dst, box][0])
            else:
                reduce = None
        if reduce is None:
            # What was there is replaced, and its readers are behind what leads here.
            self.landed[dst, box].clear()
        self.landed[dst, box].append(len(self.ops))
        self.ops.append(_Op(box, src, dst, start, finish, reduce, self.phase, behind))

    def gather(self) -> None:
        boxes, origins, wants = self._shards()
        for t in self._match(boxes, origins, wants, self.network):
            self._add(boxes[t.chunk], t.src, t.dst, t.start, t.finish)
        self.phase += 1

    def reduce(self) -> None:
        boxes, origins, wants = self._shards()
        found = self._match(boxes, origins, wants, self.network.transposed())
        end = max((t.finish for t in found), default=0.0)
        for t in sorted(reversed(found), key=lambda t: end - t.finish):
            self._add(boxes[t.chunk], t.dst, t.src, end - t.finish, end - t.start, self.step.reduction)
        self.phase += 1

    def exchange(self) -> None:
        step = self.step
        boxes: list[Box] = []
        origins: list[int] = []
        wants = [0] * step.world
        for i, src in enumerate(step.group):
            for j, dst in enumerate(step.group):
                for box in step.parts(step.shard(i).intersect(step.across(j))) if i != j else ():
                    wants[dst] |= 1 << len(boxes)
                    boxes.append(box)
                    origins.append(src)
        for t in self._match(boxes, origins, wants, self.network, True):
            self._add(boxes[t.chunk], t.src, t.dst, t.start, t.finish)

    def broadcast(self) -> None:
        """Every rank's part to every other, without going by way of any: the parts of a box stay apart until then."""
        parts = self.step.parts(self.step.whole)
        free: dict[Resource, float] = defaultdict(float)
        members = self.step.group
        for turn in range(1, len(members)):
            for box in parts:
                for i, src in enumerate(members):
                    dst = members[(i + turn) % len(members)]
                    used = self.network.resources(src, dst)
                    start = max(free[resource] for resource in used)
                    finish = start + self.network.link(src, dst).seconds(box.size * self.step.itemsize)
                    free.update(dict.fromkeys(used, finish))
                    self.ops.append(_Op(box, src, dst, start, finish, self.step.reduction))

    def plan(self) -> CommPlan:
        """The operations in lists: by their start, with a channel for each link (or port) and phase."""
        step, name = self.step, self.step.tensor.name
        order = sorted(range(len(self.ops)), key=lambda n: (self.ops[n].phase, self.ops[n].start, n))
        ids: dict[int, OpId] = {}
        lanes: list[dict[tuple[object, ...], int]] = [{} for _ in range(step.world)]
        counts = [0] * step.world
        for n in order:
            owner = self.ops[n].src if self.direction == "push" else self.ops[n].dst
            ids[n] = (owner, counts[owner])
            counts[owner] += 1
        lists: list[list[CommOp]] = [[] for _ in range(step.world)]
        for n in order:
            op = self.ops[n]
            owner = ids[n][0]
            used = self.network.resources(op.src, op.dst)[0 if self.direction == "push" else -1]
            channel = lanes[owner].setdefault((op.phase, *used), len(lanes[owner]))
            depends = tuple(sorted(ids[before] for before in op.behind))
            chunk = Chunk(name, op.box)
            lists[owner].append(P2P(self.direction, op.src, op.dst, chunk, chunk, depends, channel, op.reduce))
        return CommPlan(
            f"{step.kind}_synth", step.world, (step.spec,), step.before(), step.after(), tuple(map(tuple, lists))
        )
