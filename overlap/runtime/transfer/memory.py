"""Memory of a plan without a kernel: in which boxes ranks give and get tensors, where they lie, what it takes in all.

Pure; every rank computes every rank's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from overlap.chunkplan.plan import P2P, Chunk, CommPlan
from overlap.chunkplan.region import Box, bounding, union_size
from overlap.schedule.pieces import Values
from overlap.schedule.resources import Resources, launch_resources
from overlap.schedule.transfer import TensorSums, transfer_steps, transfer_sums
from overlap.schedule.turned import pulled_sums, push_instead

from ..memory.layout import RankLayout, transfer_layout


def boxes_of(chunks: Iterable[Chunk], tensor: str, ndim: int) -> tuple[Box, ...]:
    """The boxes in which a rank's chunks of a tensor change hands: one where they make up a box, else each by itself.

    A rank with nothing has one empty box, of the sizes that the plan gives it.
    """
    found = [chunk.box for chunk in chunks if chunk.tensor == tensor]
    full = list(dict.fromkeys(box for box in found if not box.empty))
    around = bounding(full)
    if around is None:
        if not found:
            return (Box((0,) * ndim, (0,) * ndim),)
        lo = tuple(map(min, zip(*(box.lo for box in found), strict=True)))
        hi = tuple(map(max, zip(*(box.hi for box in found), strict=True)))
        return (Box(lo, hi) if Box(lo, hi).empty else found[0],)
    return (around,) if union_size(full) == around.size else tuple(full)


def tensor_layout(plan: CommPlan, tensor: str, rank: int, values: Values, sums: TensorSums) -> RankLayout:
    """A rank's memory of one tensor.

    Args:
        sums: of the rank, as `transfer_sums`.
    """
    kept, result = sums[tensor]
    own = [*boxes_of(plan.before[rank], tensor, len(plan.tensor(tensor).shape))]
    for op_id, op in plan.items():
        if isinstance(op, P2P) and (op.src_rank, op.src.tensor) == (rank, tensor) and values.in_place(op_id):
            own.append(op.src.box)
    for piece in (*result, *(piece for made in kept.values() for piece in made)):
        if any(summand is None or plan.op(summand).reduce is None for summand in piece.summands):
            own.append(piece.chunk.box)
    groups = [(ops, bounding([piece.chunk.box for piece in made]) or made[0].chunk.box) for ops, made in kept.items()]
    return transfer_layout(plan, tensor, rank, own, groups)


def transfer_resources(plan: CommPlan, itemsizes: Mapping[str, int]) -> list[Resources]:
    """What a transfer by ``plan`` takes of every rank, in rank order.

    All ranks make as much symmetric memory for a tensor as the one that needs most.

    Args:
        itemsizes: bytes an element, by tensor.

    Raises:
        PlanError: the plan is cyclic, or a rank sends or ends with what it never had.
        UnsupportedError: a collective, or sums that are not carried out.
    """
    values = Values(plan)
    carried = push_instead(plan, pulled_sums(plan, values))
    if carried is not plan:
        values = Values(carried)
    memory = {spec.name: 0 for spec in plan.tensors}
    for rank in range(plan.world):
        sums = transfer_sums(carried, rank, values)
        for name in memory:
            size = itemsizes[name] * tensor_layout(carried, name, rank, values, sums).size
            memory[name] = max(memory[name], size)
    return [
        launch_resources(carried, rank, transfer_steps(carried, rank, values), memory) for rank in range(plan.world)
    ]
