"""What a small plan does, by carrying it out element by element in chosen orders. Knows nothing of the verifier.

Every operation starts once all that it waits for (its lane, its dependencies) has finished, reads and writes while it runs,
and finishes at any later time. Two orders are enough to see everything:

* *hold two*: two operations that touch the same elements never finish until nothing else can go on. If both run then,
  they may run at the same time;
* *rush one*: only what an operation waits for is carried out, and then the operation. What it needs and does not find
  there it does not have in every order.

The value of an element of a reduced tensor is how often it counts each part. What arrives without being ordered with a
reader is not seen by it: the rule of `overlap.chunkplan.plan.P2P`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

from overlap.chunkplan.plan import P2P, Chunk, CommPlan, OpId

Place = tuple[int, str, tuple[int, ...]]
"""A rank, a tensor, an element of it."""

HERE = "data"
"""The value of every element of a tensor that is only moved."""


def places(rank: int, chunk: Chunk) -> list[Place]:
    """A chunk's elements on a rank, in row-major order."""
    index = product(*(range(lo, hi) for lo, hi in zip(chunk.box.lo, chunk.box.hi, strict=True)))
    return [(rank, chunk.tensor, element) for element in index]


class PlanModel:
    """A structurally sound plan of P2P operations, ready to be carried out in chosen orders."""

    def __init__(self, plan: CommPlan) -> None:
        self.plan = plan
        self.ops: dict[OpId, P2P] = dict(plan.items())
        self.reduced = {op.dst.tensor for op in self.ops.values() if op.reduce}
        self.waits: dict[OpId, list[OpId]] = {}
        lanes: dict[tuple[int, int], OpId] = {}
        for op_id, op in self.ops.items():
            lane = (op_id[0], op.channel)
            self.waits[op_id] = [*op.depends, *([lanes[lane]] if lane in lanes else [])]
            lanes[lane] = op_id
        self.sources = {op_id: places(op.src_rank, op.src) for op_id, op in self.ops.items()}
        self.targets = {op_id: places(op.dst_rank, op.dst) for op_id, op in self.ops.items()}
        self.summed = self._feeding(self.reduced)
        """Tensors whose values are told apart by what they count."""
        self.start: dict[Place, object] = {
            place: Counter({(chunk.tensor, *self.kind(chunk.tensor, rank)): 1}) if chunk.tensor in self.summed else HERE
            for rank, chunks in enumerate(plan.before)
            for chunk in chunks
            for place in places(rank, chunk)
        }
        self._carried: dict[OpId, list[object]] = {}

    def _feeding(self, tensors: set[str]) -> set[str]:
        found = set(tensors)
        while more := {op.src.tensor for op in self.ops.values() if op.dst.tensor in found} - found:
            found |= more
        return found

    def kind(self, tensor: str, rank: int) -> tuple[int, int]:
        """The rank's group, and which part of its group's sum it holds."""
        spec = self.plan.tensor(tensor)
        return spec.group(rank), spec.parts[rank] if spec.parts else rank

    def is_whole(self, place: Place, counted: Counter) -> bool:
        """Whether a value counts one part of each kind: the tensor's own, or where no rank holds that, another one's."""
        rank, tensor, element = place
        kinds = {self.kind(tensor, r): False for r in range(self.plan.world)}
        kinds = {kind: own for kind, own in kinds.items() if kind[0] == self.plan.tensor(tensor).group(rank)}
        for r in range(self.plan.world):
            if (r, tensor, element) in self.start and self.kind(tensor, r) in kinds:
                kinds[self.kind(tensor, r)] = True
        for kind, own in kinds.items():
            found = [name for name, *other in counted if tuple(other) == kind]
            if len(found) != 1 or (found[0] == tensor) != own:
                return False
        return len(counted) == len(kinds)

    # Orders

    def hold(self, held: set[OpId]) -> tuple[set[OpId], set[OpId]]:
        """(operations that run, operations that finished) when those in ``held`` start as early as they can and no other
        one can go on."""
        finished: set[OpId] = set()
        running: set[OpId] = set()
        moved = True
        while moved:
            moved = False
            for op_id, waits in self.waits.items():
                if op_id not in finished and op_id not in running and finished.issuperset(waits):
                    (running if op_id in held else finished).add(op_id)
                    moved = True
        return running, finished

    def rush(self, last: OpId | None) -> list[OpId]:
        """What is carried out ahead of ``last`` in an order that carries out no more than must be; None: everything.

        The plan has no cycle.
        """
        order: list[OpId] = []
        seen: set[OpId] = set()

        def carry_out(op_id: OpId) -> None:
            if op_id not in seen:
                seen.add(op_id)
                for before in self.waits[op_id]:
                    carry_out(before)
                order.append(op_id)

        for op_id in self.ops if last is None else self.waits[last]:
            carry_out(op_id)
        return order

    # What goes wrong

    def faults(self) -> frozenset[str]:
        """All kinds of faults of the plan, in a few words each; empty where it keeps its promise in every order."""
        if len(self.hold(set())[1]) < len(self.ops):
            return frozenset(["never finishes"])
        found = {"race" for pair in self._conflicts() if self.hold(set(pair))[0] == set(pair)}
        found |= self._unheld() | self._owned()
        return frozenset(found) or self._promise()

    def _conflicts(self) -> Iterator[tuple[OpId, OpId]]:
        """Pairs of operations that may not run at the same time."""
        adds = {op_id: op.reduce is not None for op_id, op in self.ops.items()}
        reads = {op_id: set(found) for op_id, found in self.sources.items()}
        writes = {op_id: set(found) for op_id, found in self.targets.items()}
        for a, b in combinations(self.ops, 2):
            writing = not (adds[a] and adds[b]) and writes[a] & writes[b]
            reading = (not adds[a] and writes[a] & reads[b]) or (not adds[b] and writes[b] & reads[a])
            if writing or reading:
                yield a, b

    def _memory(self, order: list[OpId]) -> dict[Place, object]:
        """Everything that is anywhere after ``order``."""
        memory = dict(self.start)
        for op_id in order:
            for target, value in zip(self.targets[op_id], self.carried(op_id), strict=True):
                here = memory.get(target)
                both = self.ops[op_id].reduce and isinstance(value, Counter) and isinstance(here, Counter)
                memory[target] = here + value if both else value  # type: ignore[operator]
        return memory

    def carried(self, op_id: OpId) -> list[object]:
        """What an operation finds at its source, element by element, at the earliest; None: nothing."""
        if op_id not in self._carried:
            memory = self._memory(self.rush(op_id))
            self._carried[op_id] = [memory.get(place) for place in self.sources[op_id]]
        return self._carried[op_id]

    def _unheld(self) -> set[str]:
        for op_id, op in self.ops.items():
            memory = self._memory(self.rush(op_id))
            needed = [*self.sources[op_id], *(self.targets[op_id] if op.reduce else ())]
            if any(memory.get(place) is None for place in needed):
                return {"reads what is not there"}
        return set()

    def _owned(self) -> set[str]:
        replaced = {
            place
            for op_id, op in self.ops.items()
            if not op.reduce and op.dst.tensor not in self.reduced
            for place in self.targets[op_id]
        }
        return {"overwrites what is owned"} if replaced & set(self.start) else set()

    def _promise(self) -> frozenset[str]:
        memory = self._memory(self.rush(None))
        found = set()
        promised = {place for rank, chunks in enumerate(self.plan.after) for c in chunks for place in places(rank, c)}
        for place in promised:
            value = memory.get(place)
            if value is None:
                found.add("never arrives")
            elif place[1] in self.reduced:
                assert isinstance(value, Counter)
                if not self.is_whole(place, value):
                    found.add("a part is missing")
                if max(value.values()) > 1:
                    found.add("counted twice")
        return frozenset(found)


def faults_of(plan: CommPlan) -> frozenset[str]:
    """`PlanModel.faults` of a plan."""
    return PlanModel(plan).faults()
