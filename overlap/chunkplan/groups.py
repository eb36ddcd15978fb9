"""Groups of ranks that do the same, each with a tensor of its own: a collective along one axis of a mesh.

    mesh: [node, gpu]
    groups: {tensor: node}               # ranks of one node share a tensor; another node has another one of that name

In a plan made in Python `TensorSpec.groups` says it. `over_axis` makes such a plan of one for a single group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from overlap.errors import PlanError

from .collectives.placed import place_plan
from .mesh import Mesh
from .order import name_op
from .plan import P2P, CommPlan, TensorSpec


def groups_of(spec: TensorSpec, world: int) -> list[tuple[int, ...]]:
    """The ranks of each group of a tensor, in the order of their numbers; all ranks where it has no groups."""
    found: dict[int, list[int]] = {}
    for rank in range(world):
        found.setdefault(spec.group(rank), []).append(rank)
    return [tuple(found[number]) for number in sorted(found)]


def check_spec(plan: CommPlan, spec: TensorSpec) -> None:
    """`groups` and `parts` of a tensor name one group and one part for each rank.

    Raises:
        PlanError: they do not.
    """
    for what, row in (("groups", spec.groups), ("parts", spec.parts)):
        if row and (len(row) != plan.world or min(row) < 0):
            raise PlanError(
                f"plan {plan.name}: `{what}` of {spec.name} is {list(row)} in a world of {plan.world}",
                where=plan.where(),
                help=f"give each rank a number, counted from 0: that of {_SAID[what]}",
            )
    for ranks in groups_of(spec, plan.world) if spec.parts else ():
        held = {spec.parts[rank] for rank in ranks}
        if held != set(range(len(held))):
            among = f" among ranks {', '.join(map(str, ranks))}" if spec.groups else f" in a world of {plan.world}"
            raise PlanError(
                f"plan {plan.name}: `parts` of {spec.name} is {[spec.parts[rank] for rank in ranks]}{among}",
                where=plan.where(),
                help="give each rank the number of the part it holds, counted from 0 without a gap",
            )


_SAID = {"groups": "the group it is in", "parts": "the part it holds"}


def check_groups(plan: CommPlan) -> None:
    """No operation takes a tensor from one group to another, whose tensor is a different one.

    Raises:
        PlanError: one does.
    """
    grouped = {spec.name: spec for spec in plan.tensors if spec.groups}
    if not grouped:
        return
    for op_id, op in plan.items():
        if isinstance(op, P2P):
            ranks: Sequence[int] = (op.src_rank, op.dst_rank)
            tensors = {op.src.tensor} & {op.dst.tensor} & set(grouped)
        else:
            ranks, tensors = op.ranks, {op.src.tensor, op.dst.tensor} & set(grouped)
        for name in sorted(tensors):
            group = grouped[name].group
            other = next((rank for rank in ranks if group(rank) != group(ranks[0])), None)
            if other is not None:
                raise PlanError(
                    f"plan {plan.name}: {name_op(plan, op_id)} takes {name} from rank {ranks[0]} of group "
                    f"{group(ranks[0])} to rank {other} of group {group(other)}",
                    where=plan.where(op_id),
                    help="groups hold different tensors under one name: move inside a group, or into another tensor",
                )


def over_axis(plan: CommPlan, mesh: Mesh, axis: str) -> CommPlan:
    """A plan that every group along an axis of a mesh carries out, each on its own tensor.

    Args:
        plan: for as many ranks as the axis has; its rank i is local rank i along the axis.
        mesh: the grid of all ranks.
        axis: the name of the axis; ranks of one group differ along it only.

    Raises:
        PlanError: there is no such axis, or the plan is for another number of ranks.
    """
    size = mesh.sizes[mesh.axis(axis)]
    if plan.world != size:
        raise PlanError(
            f"plan {plan.name} is for {plan.world} ranks, and {axis} of mesh {mesh} has {size}",
            where=plan.where(),
            help=f"build it for {size} ranks",
        )
    groups = list(dict.fromkeys(mesh.group(axis, rank) for rank in range(mesh.world)))
    at = {rank: (number, i) for number, ranks in enumerate(groups) for i, rank in enumerate(ranks)}
    places = [at[rank] for rank in range(mesh.world)]
    placed = [place_plan(plan, ranks, mesh.world) for ranks in groups]
    own = [placed[number] for number, _ in places]
    return replace(
        plan,
        world=mesh.world,
        tensors=tuple(_spread(spec, plan.world, places) for spec in plan.tensors),
        before=tuple(of.before[rank] for rank, of in enumerate(own)),
        after=tuple(of.after[rank] for rank, of in enumerate(own)),
        ops=tuple(of.ops[rank] for rank, of in enumerate(own)),
        spans=tuple(of.spans[rank] for rank, of in enumerate(own)) if plan.spans else (),
        mesh=mesh,
    )


def _spread(spec: TensorSpec, size: int, places: Sequence[tuple[int, int]]) -> TensorSpec:
    """The tensor for all groups; those that it had inside one stay apart."""
    inner = max(spec.groups, default=0) + 1
    return replace(
        spec,
        parts=tuple(spec.parts[i] for _, i in places) if spec.parts else (),
        groups=tuple(number * inner + spec.group(i) for number, i in places) if len(places) > size else spec.groups,
    )
