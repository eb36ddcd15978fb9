"""From plan text to `CommPlan`: read, bind to a tensor, expand, split.

find_template("all_gather_1d") -> path, text
build_plan(text, world=4, tensor=TensorSpec("a", (1000, 64)), dim=0, split=2) -> CommPlan
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from overlap.errors import PlanError

from .bind import Bound, bound_by_itself, bound_to
from .countskey import check_limits
from .cuts import Split, by_turn, parts_in, split_of, weights_at
from .expand import Expansion
from .mesh import Mesh
from .plan import CommPlan, TensorSpec
from .reader import read_template
from .split import split_plan

DIRECTIONS = ("pull", "push")

_template = lru_cache(maxsize=64)(read_template)
"""A plan whose sizes change from call to call is read once."""


def build_plan(
    source: str,
    *,
    world: int,
    tensor: TensorSpec,
    dim: int,
    to_dim: int | None = None,
    split: Split = 1,
    direction: str = "pull",
    path: str = "plan.yaml",
    mesh: Mesh | None = None,
    counts: Mapping[str, Any] | None = None,
    split_dim: int | None = None,
) -> CommPlan:
    """The plan in ``source`` for ``world`` ranks and one tensor. It is not verified: see `verify_plan`.

    Args:
        source: text of a template or of a concrete plan.
        tensor: the global tensor the plan is applied to. A plan that declares one tensor takes this one's name.
        dim: the dimension in which the tensor is sharded (before an all-to-all).
        to_dim: the dimension in which it is sharded after an all-to-all; None for any other plan.
        split: how every transfer is cut (`cuts`); 1: as the plan's own key `split` says. A plan that uses the symbol `split`
            does that itself.
        split_dim: the dimension it is cut along; None is ``dim``. Parts along another dimension go round (`split_plan`).
        direction: what `move` becomes: ``pull`` (the destination carries it out) or ``push`` (the source).
        path: shown in errors.
        mesh: the grid in which the ranks stand, of ``world`` ranks; a plan for a mesh of one axis needs none.
        counts: by name the sizes that the plan leaves to a call (its key `counts`): `CountArray`, lists in lists, or arrays.

    Raises:
        PlanError: the text is malformed, or is for another world, mesh, dimension or shape, with line and column.
    """
    if world < 1:
        raise PlanError(f"a world of {world} ranks", help="a world has 1 rank or more")
    split = split_of(split)
    if direction not in DIRECTIONS:
        raise PlanError(f"unknown direction `{direction}`", help=f"there is {', '.join(DIRECTIONS)}")
    if not 0 <= dim < len(tensor.shape):
        raise PlanError(
            f"tensor {tensor} has no dimension {dim}", help=f"its dimensions are 0 to {len(tensor.shape) - 1}"
        )
    if to_dim is not None and (to_dim == dim or not 0 <= to_dim < len(tensor.shape)):
        raise PlanError(
            f"tensor {tensor} cannot go from dimension {dim} to dimension {to_dim}",
            help=f"give two different dimensions, 0 to {len(tensor.shape) - 1}",
        )
    template = _template(source, path)
    bound = bound_to(template, world=world, tensor=tensor, dim=dim, to_dim=to_dim, mesh=mesh, counts=counts)
    return _expanded(bound, split, direction, split_dim)


def load_plan(text: str, path: str = "plan.yaml", counts: Mapping[str, Any] | None = None) -> CommPlan:
    """A concrete plan: one that says its world and the sizes of its tensors. The inverse of `dump_plan`.

    ``counts`` are as in `build_plan`; what `dump_plan` writes needs none.

    Raises:
        PlanError: the text is malformed or leaves a size open, with line and column.
    """
    return _expanded(bound_by_itself(_template(text, path), counts), 1, "pull")


def _expanded(bound: Bound, split: Split, direction: str, split_dim: int | None = None) -> CommPlan:
    template, asked = bound.template, split != 1
    if not asked and template.split is not None:
        split = template.split({**bound.symbols, "world": bound.world})
    if template.uses_split and by_turn(split):
        raise PlanError(
            f"plan {template.name} cuts shards itself, by the symbol `split`, and so all of them alike",
            where=template.document.span(template.document.root),
            help="give a number of parts, or weights for all transfers, as 1:2:1",
        )
    symbols = {**bound.symbols, "split": parts_in(split)}
    check_limits(template, symbols)
    tensors = bound.tensors if by_turn(split) else replace(bound.tensors, weights=weights_at(split))
    expansion = Expansion(template, bound.world, tensors, symbols, direction, bound.mesh)
    plan = expansion.plan(bound.specs)
    if template.uses_split:
        split = 1
    own = {} if asked else expansion.splits
    if split == 1 and not own:
        return plan
    along = bound.dim if split_dim is None else split_dim
    cut_dim = along if len(bound.specs) == 1 else None
    return split_plan(plan, split, dim=cut_dim, around=along != bound.dim, own=own)
