"""Flags: the slot of each, and the fewest that a run must wait for.

lane   copy A | flag A | copy B | flag B          who sees flag B sees A's data: no wait for A
"""

from __future__ import annotations

from collections.abc import Sequence

from overlap.chunkplan.order import HappensBefore
from overlap.chunkplan.plan import CommPlan, OpId


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


def fewest_flags(ops: Sequence[OpId], order: HappensBefore | None) -> tuple[OpId, ...]:
    """The operations of ``ops``, all landing on one rank, that no other of them implies; in their order.

    Where flags are raised in stream order, and a lane that awaits an operation does so by its flag (copy engine),
    whoever sees the flag of B also sees all that happens before B. ``order`` None: flags may overtake each other, and
    none implies another.
    """
    if order is None:
        return tuple(ops)
    return tuple(op for op in ops if not any(order.before(op, later) for later in ops))
