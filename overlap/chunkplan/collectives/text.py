"""A collective as the text of a plan, for whoever takes plans as text: ``path=`` on the command line and in a request.

template    the text of the shipped template itself, which serves any world and shape
synth       the plan written out, for one world, shape and direction
direct      one operation, for one world and any shape
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from overlap.errors import PlanError

from ..document import nearest
from ..dump import dump_plan
from ..library import find_template
from ..links import Links
from ..reduction import Reduction
from .lower import check_path, lower_collective, network_of
from .step import PROMISES, CollectiveStep, Kind
from .templated import chosen

KINDS: dict[str, Kind] = {
    "gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
}
"""Collectives by the kind of communication that they are."""

_DIRECT = {
    "all_gather": ("shard(rank)", "whole"),
    "reduce_scatter": ("whole", "shard(rank)"),
    "all_reduce": ("whole", "whole"),
    "all_to_all": ("shard(rank)", "across(rank)"),
}


def collective_kind(name: str) -> Kind:
    """The collective of that name.

    Raises:
        PlanError: there is none.
    """
    if name not in PROMISES:
        raise PlanError(
            f"`{name}` is no collective, which a path leads to",
            help=f"{nearest(name, PROMISES)}; or leave the path out, where `{name}` is a plan",
        )
    return name  # type: ignore[return-value]


def collective_text(
    step: CollectiveStep,
    *,
    path: str,
    links: Links | None = None,
    direction: Literal["pull", "push"] = "push",
    template: str | None = None,
) -> tuple[str, str]:
    """The name of a plan, or of its file, and its text. `build_plan` with the step's own split makes the plan of it.

    Args:
        step: what to do. Its ``split`` is left to whoever builds the plan.
        path, links, direction, template: as `lower_collective` takes them.

    Raises:
        PlanError: as `lower_collective`.
    """
    check_path(path, template)
    if path == "template":
        name, _ = chosen(step, network_of(step, links), direction, template)
        return find_template(name)
    if path == "direct":
        return f"{step.kind}_direct", direct_text(step.kind, step.world, step.reduction)
    plan = lower_collective(step, path=path, links=links, direction=direction)
    # Where its ranks stand decides what is far, and with it in which order chunks are used.
    return plan.name, dump_plan(plan if step.ranks else replace(plan, mesh=step.mesh))


def direct_text(kind: Kind, world: int | None = None, reduction: Reduction | None = None) -> str:
    """A collective as a plan of one operation, over all ranks of a world, or of any.

    Args:
        reduction: of summands, a sum in fp32 where none is given.
    """
    given, left = _DIRECT[kind]
    lines = [f"plan: {kind}_direct", f"before: {given}", f"after: {left}", "ops:"]
    if world is not None:
        lines.insert(1, f"world: {world}")
    lines += [f"  - collective: {kind}", f"    chunk: {given}", f"    into: {left}"]
    if world is not None:
        lines.append(f"    ranks: [{', '.join(map(str, range(world)))}]")
    if kind in ("reduce_scatter", "all_reduce"):
        reduction = reduction or Reduction()
        lines.append(f"    reduce: {{op: {reduction.op}, accumulate: {reduction.accumulate}}}")
    return "\n".join(lines) + "\n"
