"""Happens-before of a plan: which operation is complete whenever another one starts.

Two things order operations: the list order inside one channel of one rank, and ``depends``. A collective starts
on a rank when all its ranks have come to it, so it is behind whatever any of them is behind.

Each (rank, channel) is a chain, and an operation is described by how many operations of every other chain are
complete when it starts (a vector clock), so a question costs one comparison.
"""

from __future__ import annotations

from collections import defaultdict, deque

from overlap.errors import PlanError

from .plan import Collective, CommPlan, OpId

Lane = tuple[int, int]
Edge = tuple[OpId, str]
"""A predecessor and why it is one."""


def name_op(plan: CommPlan, op_id: OpId) -> str:
    """An operation in words, for errors: ``rank 0 operation 2 (pull a[0:4, 0:8] from rank 1)``."""
    rank, index = op_id
    return f"rank {rank} operation {index} ({plan.op(op_id)})"


def also_at(plan: CommPlan, op_id: OpId, than: OpId) -> str:
    """A line for the help of an error at ``than``: where the other of two operations stands, if elsewhere in the file."""
    place = plan.where(op_id)
    if place is None or place == plan.where(than):
        return ""
    return f"\nrank {op_id[0]} operation {op_id[1]} stands in line {place.line}"


def collective_groups(plan: CommPlan) -> list[tuple[OpId, ...]]:
    """The entries that make up each collective call: the k-th of a kind over the same ranks, on every rank."""
    seen: dict[tuple[int, object], int] = defaultdict(int)
    groups: dict[object, list[OpId]] = defaultdict(list)
    for op_id, op in plan.items():
        if isinstance(op, Collective):
            call = (op.kind, op.ranks, op.reduce, op.dst.tensor)
            groups[call, seen[op_id[0], call]].append(op_id)
            seen[op_id[0], call] += 1
    return [tuple(members) for members in groups.values()]


class HappensBefore:
    """The order of a plan's operations.

    Raises:
        PlanError: the plan is cyclic; the chain is named operation by operation.
    """

    def __init__(self, plan: CommPlan) -> None:
        self.plan = plan
        self._lane: dict[OpId, int] = {}
        self._position: dict[OpId, int] = {}
        self.predecessors = self._edges()
        self.order = self._sorted()
        self._clock = self._clocks()

    def before(self, a: OpId, b: OpId) -> bool:
        """Whether ``a`` is complete whenever ``b`` starts. An operation is not before itself."""
        if self._lane[a] == self._lane[b]:
            return self._position[a] < self._position[b]
        return self._clock[b][self._lane[a]] > self._position[a]

    def ordered(self, a: OpId, b: OpId) -> bool:
        """Whether the two never run at the same time."""
        return self.before(a, b) or self.before(b, a)

    def _edges(self) -> dict[OpId, list[Edge]]:
        lanes: dict[Lane, int] = {}
        last: dict[Lane, OpId] = {}
        edges: dict[OpId, list[Edge]] = {}
        for op_id, op in self.plan.items():
            lane = (op_id[0], op.channel)
            number = lanes.setdefault(lane, len(lanes))
            found: list[Edge] = []
            self._position[op_id] = 0
            if lane in last:
                found.append((last[lane], f"behind it on channel {op.channel}"))
                self._position[op_id] = self._position[last[lane]] + 1
            found += [(dep, "depends on it") for dep in op.depends]
            self._lane[op_id] = number
            last[lane] = op_id
            edges[op_id] = found
        self._lanes = len(lanes)
        for members in collective_groups(self.plan):
            joint = [edge for member in members for edge in edges[member]]
            for member in members:
                edges[member] = joint
        return edges

    def _sorted(self) -> list[OpId]:
        waiting = {op_id: len(edges) for op_id, edges in self.predecessors.items()}
        followers: dict[OpId, list[OpId]] = defaultdict(list)
        for op_id, edges in self.predecessors.items():
            for before, _ in edges:
                followers[before].append(op_id)
        ready = deque(op_id for op_id, count in waiting.items() if count == 0)
        order: list[OpId] = []
        while ready:
            op_id = ready.popleft()
            order.append(op_id)
            for follower in followers[op_id]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    ready.append(follower)
        if len(order) < len(waiting):
            raise self._cycle_error({op_id for op_id, count in waiting.items() if count})
        return order

    def _clocks(self) -> dict[OpId, list[int]]:
        clocks: dict[OpId, list[int]] = {}
        nothing = [0] * self._lanes
        for op_id in self.order:
            clock = nothing
            for before, _ in self.predecessors[op_id]:
                known = clocks[before]
                if self._lane[before] != self._lane[op_id]:
                    known = list(known)
                    known[self._lane[before]] = self._position[before] + 1
                if clock is nothing:
                    clock = known
                elif clock is not known:
                    clock = list(map(max, clock, known))
            clocks[op_id] = clock
        return clocks

    def _cycle_error(self, stuck: set[OpId]) -> PlanError:
        cycle = self._cycle(stuck)
        steps = []
        for (op_id, reason), (before, _) in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            steps.append(f"{name_op(self.plan, op_id)} waits for rank {before[0]} operation {before[1]} ({reason})")
        first = cycle[0][0]
        return PlanError(
            f"plan {self.plan.name} never finishes, {len(cycle)} operation{'s wait' if len(cycle) > 1 else ' waits'} "
            f"in a cycle: {'; '.join(steps)}",
            where=self.plan.where(first),
            help="remove one of these dependencies, or move an operation to another channel",
        )

    def _cycle(self, stuck: set[OpId]) -> list[Edge]:
        """A shortest cycle through one operation: each with why it waits for the next (the last for the first)."""
        at = min(stuck)
        seen: set[OpId] = set()
        while at not in seen:
            seen.add(at)
            at = next(before for before, _ in self.predecessors[at] if before in stuck)
        start = at
        came: dict[OpId, tuple[OpId, str]] = {}
        queue = deque([start])
        while queue:
            at = queue.popleft()
            for before, reason in self.predecessors[at]:
                if before == start:
                    chain: list[Edge] = [(at, reason)]
                    while at != start:
                        at, reason = came[at]
                        chain.append((at, reason))
                    return chain[::-1]
                if before in stuck and before not in came:
                    came[before] = (at, reason)
                    queue.append(before)
        raise AssertionError("an operation on a cycle is reached from itself")


def happens_before(plan: CommPlan) -> HappensBefore:
    """The order of ``plan``'s operations; ``.before(a, b)`` answers for two ids.

    Raises:
        PlanError: the plan is cyclic.
    """
    return HappensBefore(plan)
