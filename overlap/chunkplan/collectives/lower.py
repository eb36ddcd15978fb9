"""A collective step to a plan, by one of the three paths of the paper's Listing 3."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

from overlap.errors import PlanError

from ..document import nearest
from ..links import Links
from ..plan import CommPlan
from ..promise import verify_kind
from ..verify import verify_plan
from .direct import direct_plan
from .network import Network
from .step import PROMISES, CollectiveStep
from .synth import synth_plan
from .templated import template_plan

Path = Literal["direct", "template", "synth"]


def lower_collective(
    step: CollectiveStep,
    *,
    path: str = "template",
    links: Links | None = None,
    switched: Collection[str] = (),
    direction: Literal["pull", "push"] = "push",
    template: str | None = None,
) -> CommPlan:
    """The plan of a collective. It is not verified: see `verify_collective`.

    Args:
        path: ``direct`` (one operation that a library carries out), ``template`` (a shipped template, as P2P) or
            ``synth`` (P2P made for the links).
        links: the link table of all global ranks. ``synth`` needs it; of several templates it chooses.
        switched: classes of links that go through a switch, besides those of which the table says so.
        direction: who carries an operation out, the source (push) or the destination (pull).
        template: the template to take (``template`` only).

    Raises:
        PlanError: an unknown path; ``synth`` without links; links of another world, or that do not join the group;
            templates that go where there is no link.
    """
    check_path(path, template)
    network = network_of(step, links, switched)
    if path == "direct":
        return direct_plan(step)
    if path == "template":
        return template_plan(step, network, direction, template)
    if network is None:
        raise PlanError(f"{step.kind}: nothing to make a plan for", help='`path="synth"` takes `links`, a link table')
    return synth_plan(step, network, direction)


def check_path(path: str, template: str | None = None) -> None:
    """Raises PlanError unless there is such a path, and a template goes with it."""
    if path not in get_args(Path):
        raise PlanError(f"unknown path `{path}`", help=nearest(path, get_args(Path)))
    if template is not None and path != "template":
        raise PlanError(f"template `{template}` with the path `{path}`", help='a template goes with `path="template"`')


def network_of(step: CollectiveStep, links: Links | None, switched: Collection[str] = ()) -> Network | None:
    """The links as synthesis and prediction see them; None where none are given.

    Raises:
        PlanError: links of another world than the step's, or a switched class that no link is of.
    """
    if links is None:
        if switched:
            raise PlanError("switched links without a link table", help="give `links`")
        return None
    if links.world != step.world:
        raise PlanError(
            f"{step.kind} in a world of {step.world}, with links of a world of {links.world}",
            help="give the link table of all global ranks",
        )
    return Network(links, switched)


def verify_collective(plan: CommPlan, step: CollectiveStep) -> None:
    """Returns if the plan is sound and does what the step asks for.

    Raises:
        PlanError: it is not, or does not.
    """
    verify_plan(plan)
    verify_kind(plan, step.tensor.name, PROMISES[step.kind], dim=step.dim, to_dim=step.to_dim, ranks=step.ranks or None)
