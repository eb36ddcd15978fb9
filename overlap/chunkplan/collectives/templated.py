"""``path="template"``: a template that ships with the package, as P2P of the group's ranks."""

from __future__ import annotations

from dataclasses import replace

from overlap.errors import PlanError

from ..build import build_plan
from ..library import find_template
from ..plan import P2P, CommPlan
from .network import Network
from .placed import place_plan
from .step import CollectiveStep
from .timing import predicted_seconds

TEMPLATES = {
    "all_gather": ("all_gather_1d", "all_gather_ring", "all_gather_ring_both_ways"),
    "reduce_scatter": ("reduce_scatter_1d", "reduce_scatter_ring"),
    "all_reduce": ("all_reduce_two_shot", "all_reduce_one_shot", "all_reduce_ring"),
    "all_to_all": ("all_to_all_1d",),
}
"""Templates of each kind for ranks in a row, the usual one first."""

MESH_TEMPLATES = {
    "all_gather": ("all_gather_2d", "all_gather_double_ring"),
    "reduce_scatter": ("reduce_scatter_2d",),
    "all_reduce": ("all_reduce_2d",),
    "all_to_all": ("all_to_all_2d",),
}
"""Those for a mesh of two axes, the usual one first."""


def templates_for(step: CollectiveStep) -> tuple[str, ...]:
    """The templates that serve a step: of a group in a mesh of two axes, those of two levels first."""
    two_levels = step.mesh is not None and len(step.mesh.sizes) == 2
    return (*(MESH_TEMPLATES[step.kind] if two_levels else ()), *TEMPLATES[step.kind])


def template_plan(
    step: CollectiveStep, network: Network | None = None, direction: str = "push", template: str | None = None
) -> CommPlan:
    """A template applied to the group: the one that `chosen` names. Arguments and errors are its own."""
    return chosen(step, network, direction, template)[1]


def chosen(
    step: CollectiveStep, network: Network | None = None, direction: str = "push", template: str | None = None
) -> tuple[str, CommPlan]:
    """The name of a template, and the plan that it makes for the group.

    Args:
        network: the links; of several templates, the one that ends first over them is taken. Without, the usual one.
        template: the name of a template, or a file; without, those known for the kind are tried.

    Raises:
        PlanError: no template keeps to the pairs of ranks that are joined, or the named one is none.
    """
    names = (template,) if template else templates_for(step)
    plans = [_built(step, name, direction) for name in (names if network else names[:1])]
    if network is None:
        return names[0], plans[0]
    gaps = [_gap(plan, network) for plan in plans]
    joined = [(name, plan) for name, plan, gap in zip(names, plans, gaps, strict=True) if gap is None]
    if not joined:
        raise PlanError(
            f"{step.kind}: {', '.join(names)} would go from rank {gaps[0][0]} to rank {gaps[0][1]}, "  # type: ignore[index]
            "between which there is no link",
            help='use `path="synth"`, or list the group\'s ranks in an order in which neighbours are joined',
        )
    return min(joined, key=lambda found: predicted_seconds(found[1], network, itemsize=step.itemsize))


def _built(step: CollectiveStep, name: str, direction: str) -> CommPlan:
    path, text = find_template(name)
    plan = build_plan(
        text,
        world=len(step.group),
        tensor=step.tensor,
        dim=step.dim,
        to_dim=step.to_dim,
        split=step.split,
        direction=direction,
        path=path,
        mesh=step.mesh,
    )
    return replace(place_plan(plan, step.group, step.world), tensors=(step.spec,))


def _gap(plan: CommPlan, network: Network) -> tuple[int, int] | None:
    """A pair of ranks that the plan uses and no link joins."""
    for _, op in plan.items():
        if isinstance(op, P2P) and op.src_rank != op.dst_rank and not network.links.between(op.src_rank, op.dst_rank):
            return op.src_rank, op.dst_rank
    return None
