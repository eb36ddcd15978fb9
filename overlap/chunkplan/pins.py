"""What a plan fixes by itself, so that a compiler can try it on sizes it accepts, and fixing its mesh."""

from __future__ import annotations

from dataclasses import dataclass

from overlap.errors import PlanError

from .mesh import Mesh
from .meshkey import mesh_for
from .reader import read_template


@dataclass(frozen=True)
class Pins:
    """The world and the tensor sizes a plan is written for; None where it leaves them open."""

    world: int | None
    shape: tuple[int | None, ...] | None


def pins_of(text: str, path: str, tensor: str) -> Pins:
    """What the plan in ``text`` fixes for the tensor it will be applied to under the name ``tensor``.

    Raises:
        PlanError: the text is no plan.
    """
    template = read_template(text, path)
    world = template.world or (template.mesh.world if template.mesh else None)
    decls = template.tensors
    decl = next((d for d in decls if d.name == tensor), decls[0] if len(decls) == 1 else None)
    if decl is None or decl.dims is None:
        return Pins(world, None)
    shape: list[int | None] = []
    for dim in decl.dims:
        try:
            shape.append(None if isinstance(dim, str) else dim({}))
        except (PlanError, KeyError):
            shape.append(None)
    return Pins(world, tuple(shape))


def pin_mesh(text: str, path: str, mesh: Mesh) -> str:
    """The plan in ``text`` for one mesh only; the text itself where the plan names no axes.

    Raises:
        PlanError: the text is no plan, or is for another mesh, or for one of another number of axes.
    """
    template = read_template(text, path)
    grid = mesh_for(template, template.world or mesh.world, mesh)
    if grid is None or not template.axes or template.mesh is not None:
        return text
    node = template.document.mapping(template.document.root, "a plan")["mesh"]
    lines = text.splitlines(keepends=True)
    start, end = (sum(map(len, lines[: mark.line])) + mark.column for mark in (node.start_mark, node.end_mark))
    sizes = ", ".join(f"{name}: {size}" for name, size in zip(grid.names, grid.sizes, strict=True))
    return f"{text[:start]}{{{sizes}}}{'' if text[start] == '[' else chr(10)}{text[end:]}"
