"""When the operations of a plan end over a link table, nothing but order and links holding them up.

As `overlap.schedule.cost.finish_times`, with the duration of each pair's own link, and with links that carry one
transfer at a time: whoever is ready first goes first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from overlap.errors import PlanError

from ..order import HappensBefore, happens_before, name_op
from ..plan import Collective, CommPlan, OpId
from .network import Network, Resource


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
    ready = [(0.0, op_id) for op_id, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    latest: dict[OpId, float] = defaultdict(float)
    free: dict[Resource, float] = defaultdict(float)
    finish: dict[OpId, float] = {}
    while ready:
        at, op_id = heapq.heappop(ready)
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
        for follower in followers[op_id]:
            latest[follower] = max(latest[follower], at)
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (latest[follower], follower))
    return finish


def predicted_seconds(plan: CommPlan, network: Network, *, itemsize: int = 2) -> float:
    """When the last operation ends; 0 of a plan without operations. Errors as `link_times`."""
    return max(link_times(plan, network, itemsize=itemsize).values(), default=0.0)
