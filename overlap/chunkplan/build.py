"""From plan text to `CommPlan`: read, bind to a tensor, expand, split.

find_template("all_gather_1d") -> path, text
build_plan(text, world=4, tensor=TensorSpec("a", (1000, 64)), dim=0, split=2) -> CommPlan
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from overlap.errors import PlanError

from .chunkexpr import GIVEN, Tensors, no_second_dimension
from .document import Document
from .expand import Expansion
from .mesh import Mesh
from .meshkey import mesh_for
from .plan import CommPlan, TensorSpec
from .reader import read_template
from .split import split_plan
from .template import PlanTemplate, TensorDecl

DIRECTIONS = ("pull", "push")


def build_plan(
    source: str,
    *,
    world: int,
    tensor: TensorSpec,
    dim: int,
    to_dim: int | None = None,
    split: int = 1,
    direction: str = "pull",
    path: str = "plan.yaml",
    mesh: Mesh | None = None,
) -> CommPlan:
    """The plan in ``source`` for ``world`` ranks and one tensor. It is not verified: see `verify_plan`.

    Args:
        source: text of a template or of a concrete plan.
        tensor: the global tensor the plan is applied to. A plan that declares one tensor takes this one's name.
        dim: the dimension in which the tensor is sharded (before an all-to-all).
        to_dim: the dimension in which it is sharded after an all-to-all; None for any other plan.
        split: parts every transfer is cut into. A plan that uses the symbol `split` does that itself.
        direction: what `move` becomes: ``pull`` (the destination carries it out) or ``push`` (the source).
        path: shown in errors.
        mesh: the grid in which the ranks stand, of ``world`` ranks; a plan for a mesh of one axis needs none.

    Raises:
        PlanError: the text is malformed, or is for another world, mesh, dimension or shape, with line and column.
    """
    if world < 1:
        raise PlanError(f"a world of {world} ranks", help="a world has 1 rank or more")
    if split < 1:
        raise PlanError(f"a split into {split} parts", help="split is 1 or more")
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
    template = read_template(source, path)
    document = template.document
    if template.across is not None and template.across.across is not None and to_dim is None:
        raise no_second_dimension(template.across.snippet, template.across.across)
    _check_pins(template, world, dim)
    grid = mesh_for(template, world, mesh)
    sizes: dict[str, int] = {"world": world}
    decls = template.tensors
    applied = next((decl for decl in decls if decl.name == tensor.name), decls[0] if len(decls) == 1 else None)
    if decls and applied is None:
        raise document.error(
            decls[0].node,
            f"plan {template.name} has no tensor `{tensor.name}`",
            help=f"it has {', '.join(decl.name for decl in decls)}",
        )
    named: dict[str, TensorSpec] = {}
    if applied is not None:
        _bind(document, template, applied, tensor, sizes)
        tensor = replace(tensor, parts=template.parts.get(applied.name, tensor.parts))
        named[applied.name] = tensor
    named[GIVEN] = tensor
    for decl in decls:
        if decl is not applied:
            named[decl.name] = _spec(template, decl, sizes, tensor)
    specs = tuple(named[decl.name] for decl in decls) or (tensor,)
    tensors = Tensors(named, dim, world, to_dim)
    return _expanded(template, world, tensors, specs, tensor, sizes, split, direction, grid)


def load_plan(text: str, path: str = "plan.yaml") -> CommPlan:
    """A concrete plan: one that says its world and the sizes of its tensors. The inverse of `dump_plan`.

    Raises:
        PlanError: the text is malformed or leaves a size open, with line and column.
    """
    template = read_template(text, path)
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
    sizes: dict[str, int] = {"world": world}
    specs = tuple(_spec(template, decl, sizes) for decl in template.tensors)
    dim = template.dim or 0
    named = {GIVEN: specs[0], **{spec.name: spec for spec in specs}}
    tensors = Tensors(named, dim, world)
    return _expanded(template, world, tensors, specs, specs[0], sizes, 1, "pull", grid)


def _expanded(
    template: PlanTemplate,
    world: int,
    tensors: Tensors,
    specs: tuple[TensorSpec, ...],
    given: TensorSpec,
    sizes: Mapping[str, int],
    split: int,
    direction: str,
    mesh: Mesh | None,
) -> CommPlan:
    dim = tensors.dim
    extent = given.shape[dim] if dim < len(given.shape) else 1
    symbols = {**sizes, "split": split, "dim": dim, "extent": extent}
    plan = Expansion(template, world, tensors, symbols, direction, mesh).plan(specs)
    if template.uses_split or split == 1:
        return plan
    return split_plan(plan, split, dim=dim if len(specs) == 1 else None)


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
    document: Document, template: PlanTemplate, decl: TensorDecl, tensor: TensorSpec, sizes: dict[str, int]
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
    template: PlanTemplate, decl: TensorDecl, sizes: Mapping[str, int], given: TensorSpec | None = None
) -> TensorSpec:
    """A declared tensor besides the ``given`` one."""
    if decl.dims is None:
        if given is None:
            help = "write its sizes, as in `[1000, 64]`, or give the plan a tensor"
            raise template.document.error(decl.node, f"the sizes of `{decl.name}` are open", help=help)
        return TensorSpec(decl.name, given.shape, template.parts.get(decl.name, ()))
    return TensorSpec(decl.name, _shape(template.document, decl, sizes), template.parts.get(decl.name, ()))


def _shape(document: Document, decl: TensorDecl, sizes: Mapping[str, int]) -> tuple[int, ...]:
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
