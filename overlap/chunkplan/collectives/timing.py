"""When the operations of a plan end over a link table, nothing but order and links holding them up.

A link, or a port of a switch, carries one transfer at a time: whoever is ready first goes first, and of those that are
ready at one moment the first in the plan. It is the event model (`overlap.schedule.events`) of a machine on which
nothing takes time but links, for the layers that stand before machines.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from overlap.errors import PlanError

from ..order import HappensBefore, happens_before, name_op
from ..plan import Collective, CommPlan, OpId
from .network import Network, Resource

_ENDS, _ASKS = 0, 1


def link_times(
    plan: CommPlan, network: Network, *, itemsize: int = 2, order: HappensBefore | None = None
) -> dict[OpId, float]:
    """The second at which each operation ends, the launch being 0. An operation without elements takes no time.

    Args:
        itemsize: bytes an element.
        order: the plan's happens-before, where the caller has it already.

    Raises:
        PlanError: the plan is cyclic, uses a pair of ranks without a link, or hands a collective to a library.
    """
    order = order or happens_before(plan)
    if network.world != plan.world:
        raise PlanError(
            f"plan {plan.name} is for a world of {plan.world}, the link table for one of {network.world}",
            help="give a link table of all global ranks",
        )
    followers: dict[OpId, list[OpId]] = defaultdict(list)
    waiting: dict[OpId, int] = {}
    for op_id, edges in order.predecessors.items():
        waiting[op_id] = len(edges)
        for before, _ in edges:
            followers[before].append(op_id)
    # Ends of operations, and at each moment behind them the operations that ask for their link.
    queue = [(0.0, _ASKS, op_id) for op_id, count in waiting.items() if count == 0]
    heapq.heapify(queue)
    free: dict[Resource, float] = defaultdict(float)
    finish: dict[OpId, float] = {}
    while queue:
        at, what, op_id = heapq.heappop(queue)
        if what == _ENDS:
            for follower in followers[op_id]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    heapq.heappush(queue, (at, _ASKS, follower))
            continue
        op = plan.op(op_id)
        if isinstance(op, Collective):
            raise PlanError(
                f"plan {plan.name}: {name_op(plan, op_id)} is timed by the library that carries it out",
                where=plan.where(op_id),
                help='expand it first: `path="template"` or `path="synth"`',
            )
        if op.src_rank != op.dst_rank and not op.src.box.empty:
            used = network.resources(op.src_rank, op.dst_rank)
            start = max(at, *(free[resource] for resource in used))
            at = start + network.link(op.src_rank, op.dst_rank).seconds(op.src.box.size * itemsize)
            for resource in used:
                free[resource] = at
        finish[op_id] = at
        heapq.heappush(queue, (at, _ENDS, op_id))
    return finish


def predicted_seconds(plan: CommPlan, network: Network, *, itemsize: int = 2) -> float:
    """When the last operation ends; 0 of a plan without operations. Errors as `link_times`."""
    return max(link_times(plan, network, itemsize=itemsize).values(), default=0.0)
