"""Flags: the slot of each, and the fewest that a run must wait for.

    lane   copy A | flag A | copy B | flag B          who sees flag B sees A's data: no wait for A
"""

from __future__ import annotations

from collections.abc import Iterable

from overlap.chunkplan.plan import CommPlan, OpId

from .cost import in_order, predecessors


def assign_slots(plan: CommPlan, rank: int) -> dict[OpId, int]:
    """Slot 0, 1, ... of the flag of every operation that lands on ``rank``, read by tiles or not.

    Slots depend on the plan alone, so whoever raises a flag of another rank finds its slot there.
    """
    return {op: slot for slot, op in enumerate(sorted(plan.arriving(rank)))}


def channel_order(plan: CommPlan, rank: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """``(channel, (index, ...))`` for each channel of ``rank``: the order in which its operations run."""
    lanes: dict[int, list[int]] = {}
    for index, op in enumerate(plan.ops[rank]):
        lanes.setdefault(op.channel, []).append(index)
    return tuple((channel, tuple(lanes[channel])) for channel in sorted(lanes))


class ImpliedFlags:
    """Which flags another flag implies.

    With ``ordered`` (copy engine: a flag is raised in stream order, and a lane that awaits an operation does so by
    its flag) whoever sees the flag of B also sees all that happens before B in the plan. Without it (any
    realization whose flags may overtake each other) no flag implies another.
    """

    def __init__(self, plan: CommPlan, *, ordered: bool = True) -> None:
        self._ordered = ordered
        self._bit = {op: 1 << i for i, op in enumerate(in_order(plan))}
        self._past: dict[OpId, int] = {}
        before = predecessors(plan)
        for op in self._bit:
            past = 0
            for pred in before[op]:
                past |= self._past[pred] | self._bit[pred]
            self._past[op] = past

    def implied(self, earlier: OpId, later: OpId) -> bool:
        """Whether a wait for ``later`` stands for a wait for ``earlier``, two operations landing on one rank."""
        return self._ordered and bool(self._past[later] & self._bit[earlier])

    def fewest(self, ops: Iterable[OpId]) -> tuple[OpId, ...]:
        """The operations of ``ops``, in their order, that no other of them implies."""
        ops = tuple(ops)
        if not self._ordered:
            return ops
        past = 0
        for op in ops:
            past |= self._past[op]
        return tuple(op for op in ops if not past & self._bit[op])
