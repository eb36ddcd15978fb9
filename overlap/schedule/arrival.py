"""The order in which chunks reach a rank, by the event model: machine, links and bytes, with no tiles in the way.

    all-gather on 2 nodes of 2, rank 0, from every owner at once:
    time     0      10 us                14 us                  23 us
             own    from 1 (NVLink)      from 2 (network)       from 3 (network, behind the one from 2)

Every rank works it out from plan, machine and sizes, never from what it measures, so that all ranks agree.
"""

from __future__ import annotations

from collections.abc import Mapping

from overlap.chunkplan.plan import Collective, CommPlan, OpId

from .events import ItemSize, landing_times
from .machine import Machine, machine_for


def arrival_times(plan: CommPlan, machine: Machine | None = None, itemsize: ItemSize = 2) -> dict[OpId, float]:
    """Seconds from the launch until the flag of each operation is up.

    Args:
        machine: whose links and rates count; None: `machine_for` the plan's ranks.
        itemsize: bytes of an element, of all tensors or of each by its name.

    Raises:
        PlanError: the plan is cyclic, or the machine has not that many ranks.
    """
    return landing_times(plan, machine or machine_for(plan.world, plan.mesh), itemsize=itemsize)


def arrival_order(
    plan: CommPlan, rank: int, machine: Machine | None = None, itemsize: ItemSize = 2
) -> tuple[OpId, ...]:
    """Operations that land on ``rank``, the earliest first; the rank's own chunks come before all of them.

    Operations that land together are taken in rotated order of their source, ``(src - rank) % world``, then in
    the order of the plan, so the answer depends on nothing but plan, machine and sizes. Arguments as `arrival_times`.
    """
    return in_order(plan, rank, arrival_times(plan, machine, itemsize))


def in_order(plan: CommPlan, rank: int, times: Mapping[OpId, float]) -> tuple[OpId, ...]:
    """`arrival_order` for times that are known already."""

    def key(op_id: OpId) -> tuple[float, int, OpId]:
        op = plan.op(op_id)
        return times[op_id], 0 if isinstance(op, Collective) else (op.src_rank - rank) % plan.world, op_id

    return tuple(sorted(plan.arriving(rank), key=key))
