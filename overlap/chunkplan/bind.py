"""`PlanTemplate` bound to a world and its tensors: every name that a template leaves open has a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .chunkexpr import GIVEN, Tensors, no_second_dimension
from .countskey import bind_counts
from .document import Document
from .environment import rank_env, world_env
from .mesh import Mesh
from .meshkey import mesh_for
from .plan import TensorSpec
from .template import PlanTemplate, TensorDecl


@dataclass(frozen=True)
class Bound:
    """A template and the values of its names.

    ``specs`` are the tensors in the order of the file, ``given`` the one that the plan is applied to. ``symbols`` has the
    integers and counts that every rank knows; what depends on the rank and on ``split`` is added when it is expanded.
    """

    template: PlanTemplate
    world: int
    tensors: Tensors
    specs: tuple[TensorSpec, ...]
    given: TensorSpec
    symbols: dict[str, Any]
    mesh: Mesh | None

    @property
    def dim(self) -> int:
        return self.tensors.dim


def bound_to(
    template: PlanTemplate,
    *,
    world: int,
    tensor: TensorSpec,
    dim: int,
    to_dim: int | None,
    mesh: Mesh | None,
    counts: Mapping[str, Any] | None,
) -> Bound:
    """A template for any tensor, bound to one. Arguments as in `overlap.chunkplan.build.build_plan`.

    Raises:
        PlanError: the plan is for another world, mesh, dimension or shape, or for other counts.
    """
    document = template.document
    if template.across is not None and template.across.across is not None and to_dim is None:
        raise no_second_dimension(template.across.snippet, template.across.across)
    _check_pins(template, world, dim)
    grid = mesh_for(template, world, mesh)
    sizes = world_env(template, world, grid)
    sizes |= bind_counts(template, counts, sizes)
    decls = template.tensors
    applied = next((decl for decl in decls if decl.name == tensor.name), decls[0] if len(decls) == 1 else None)
    if decls and applied is None:
        raise document.error(
            decls[0].node,
            f"plan {template.name} has no tensor `{tensor.name}`",
            help=f"it has {', '.join(decl.name for decl in decls)}",
        )
    if applied is not None:
        _bind(document, template, applied, tensor, sizes)
    tensor = _with_ranks(template, applied.name if applied else GIVEN, tensor, sizes, grid)
    named = {GIVEN: tensor}
    for decl in decls:
        if decl is not applied:
            spec = _spec(template, decl, sizes, tensor)
            named[decl.name] = _with_ranks(template, decl.name, spec, sizes, grid)
        else:
            named[decl.name] = tensor
    specs = tuple(named[decl.name] for decl in decls) or (tensor,)
    return _bound(template, world, Tensors(named, dim, world, to_dim), specs, tensor, sizes, grid)


def bound_by_itself(template: PlanTemplate, counts: Mapping[str, Any] | None) -> Bound:
    """A template that says its world and the sizes of its tensors.

    Raises:
        PlanError: it leaves one open.
    """
    document = template.document
    fixed = template.mesh
    world = template.world or (fixed.world if fixed else None)
    if world is None:
        raise document.error(
            document.root, f"plan {template.name} is for any world", help="add `world: 4`, or give a world"
        )
    if not template.tensors:
        raise document.error(
            document.root,
            f"plan {template.name} declares no tensor",
            help="add `tensors: {x: [1000, 64]}`, or give a tensor",
        )
    grid = mesh_for(template, world, None)
    sizes = world_env(template, world, grid)
    sizes |= bind_counts(template, counts, sizes)
    specs = tuple(
        _with_ranks(template, decl.name, _spec(template, decl, sizes), sizes, grid) for decl in template.tensors
    )
    named = {GIVEN: specs[0], **{spec.name: spec for spec in specs}}
    return _bound(template, world, Tensors(named, template.dim or 0, world), specs, specs[0], sizes, grid)


def _bound(
    template: PlanTemplate,
    world: int,
    tensors: Tensors,
    specs: tuple[TensorSpec, ...],
    given: TensorSpec,
    sizes: Mapping[str, Any],
    mesh: Mesh | None,
) -> Bound:
    dim = tensors.dim
    extent = given.shape[dim] if dim < len(given.shape) else 1
    symbols = {**sizes, "dim": dim, "extent": extent}
    return Bound(template, world, tensors, specs, given, symbols, mesh)


def _with_ranks(
    template: PlanTemplate, name: str, spec: TensorSpec, sizes: Mapping[str, Any], mesh: Mesh | None
) -> TensorSpec:
    """The tensor with what the keys `groups` and `parts` say under ``name``; what they leave out is as it was."""
    given = {key: rows[name] for key, rows in (("groups", template.groups), ("parts", template.parts)) if name in rows}
    envs = [rank_env(template, sizes, mesh, rank) for rank in range(sizes["world"])] if given else []
    groups = given["groups"](envs) if "groups" in given else spec.groups
    parts = given["parts"](envs) if "parts" in given else spec.parts
    return replace(spec, groups=groups, parts=parts)


def _check_pins(template: PlanTemplate, world: int, dim: int) -> None:
    document = template.document
    root = document.root
    if template.world is not None and template.world != world:
        raise document.error(
            document.mapping(root, "a plan")["world"],
            f"plan {template.name} is for a world of {template.world}, not {world}",
            help=f"run it on {template.world} ranks, or take a plan without `world`",
        )
    if template.dim is not None and template.dim != dim:
        raise document.error(
            document.mapping(root, "a plan")["dim"],
            f"plan {template.name} cuts along dimension {template.dim}, not {dim}",
            help="change `dim`, or remove it so that the plan serves any dimension",
        )


def _bind(
    document: Document, template: PlanTemplate, decl: TensorDecl, tensor: TensorSpec, sizes: dict[str, Any]
) -> None:
    """Gives the names in a declared shape the sizes of the tensor the plan is applied to."""
    if decl.dims is None:
        return
    if len(decl.dims) != len(tensor.shape):
        raise document.error(
            decl.node,
            f"plan {template.name} is for a tensor of {len(decl.dims)} dimensions, {tensor} has {len(tensor.shape)}",
            help="declare as many dimensions, or leave `tensors` out",
        )
    for wanted, size in zip(decl.dims, tensor.shape, strict=True):
        if isinstance(wanted, str):
            sizes[wanted] = size
        elif wanted(sizes) != size:
            raise wanted.error(
                f"plan {template.name} is for size {wanted(sizes)} here, {tensor} has {size}",
                "write a name instead of a number, so that the plan serves any size",
            )


def _spec(
    template: PlanTemplate, decl: TensorDecl, sizes: Mapping[str, Any], given: TensorSpec | None = None
) -> TensorSpec:
    """A declared tensor besides the ``given`` one."""
    if decl.dims is None:
        if given is None:
            help = "write its sizes, as in `[1000, 64]`, or give the plan a tensor"
            raise template.document.error(decl.node, f"the sizes of `{decl.name}` are open", help=help)
        return TensorSpec(decl.name, given.shape)
    return TensorSpec(decl.name, _shape(template.document, decl, sizes))


def _shape(document: Document, decl: TensorDecl, sizes: Mapping[str, Any]) -> tuple[int, ...]:
    """The sizes of a declared tensor that no given tensor decides."""
    assert decl.dims is not None
    shape = []
    for wanted in decl.dims:
        if isinstance(wanted, str):
            if wanted not in sizes:
                raise document.error(decl.node, f"the size `{wanted}` of `{decl.name}` is open", help="write a number")
            size = sizes[wanted]
        else:
            size = wanted(sizes)
        if size < 0:
            raise document.error(decl.node, f"`{decl.name}` has a negative size, {size}", help="sizes are 0 or more")
        shape.append(size)
    return tuple(shape)
