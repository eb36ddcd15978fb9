"""The key `mesh` of a plan file, and the mesh that a plan is applied to.

    mesh: [node, gpu]                 names for the axes of any mesh of two
    mesh: {node: 2, gpu: 4}           the same, for this mesh only
    mesh: 2x4                         for this mesh only; its axes are called axis0, axis1

The names are this rank's local ranks along the axes; see `expr` for the functions that go with them.
"""

from __future__ import annotations

import yaml

from overlap.errors import PlanError

from .document import Document, Node
from .mesh import FORM, MAX_AXES, Mesh, parse_mesh
from .template import PlanTemplate


def read_mesh(document: Document, node: Node | None) -> tuple[tuple[tuple[Node, str], ...], Mesh | None]:
    """The names of the axes, each with its place, and the mesh where the sizes are given too.

    Raises:
        PlanError: neither names, nor names with sizes, nor the text of a mesh.
    """
    if node is None:
        return (), None
    if isinstance(node, yaml.ScalarNode):
        try:
            mesh = parse_mesh(document.scalar(node, "`mesh`"))
        except PlanError as error:
            raise document.error(node, error.message, help=f"{FORM}; or `mesh: [node, gpu]` for any sizes") from None
        return tuple((node, name) for name in mesh.names), mesh
    if isinstance(node, yaml.SequenceNode):
        named = [(item, document.scalar(item, "an axis")) for item in node.value]
        sizes = None
    else:
        rows = document.entries(node, "`mesh`")
        named = [(key, name) for name, (key, _) in rows.items()]
        sizes = tuple(_size(document, value, name) for name, (_, value) in rows.items())
    if not 1 <= len(named) <= MAX_AXES:
        raise document.error(node, f"a mesh of {len(named)} axes", help=FORM)
    return tuple(named), None if sizes is None else Mesh(sizes, tuple(name for _, name in named))


def _size(document: Document, node: Node, axis: str) -> int:
    text = document.scalar(node, f"the size of `{axis}`")
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise document.error(node, f"the size of `{axis}` is {text}", help="write an integer from 1 on")
    return int(text)


def mesh_for(template: PlanTemplate, world: int, mesh: Mesh | None) -> Mesh | None:
    """The mesh that a plan sees, under its own names: the one it fixes, or the one given.

    Raises:
        PlanError: the plan needs another mesh, or one of another number of axes, or the mesh is not of ``world`` ranks.
    """
    document = template.document
    fixed, axes = template.mesh, template.axes
    place = document.mapping(document.root, "a plan").get("mesh", document.root)
    if mesh is not None and mesh.world != world:
        raise PlanError(
            f"mesh {mesh} has {mesh.world} ranks, not {world}", help="leave the world out, or let both agree"
        )
    if fixed is not None:
        if mesh is not None and mesh.sizes != fixed.sizes:
            raise document.error(
                place,
                f"plan {template.name} is for a mesh {fixed}, not {mesh}",
                help="change `mesh`, or run it on that",
            )
        if fixed.world != world:
            raise document.error(
                place,
                f"plan {template.name} is for a mesh {fixed} of {fixed.world} ranks, not for a world of {world}",
                help=f"run it on {fixed.world} ranks, or give `mesh` names only",
            )
        return fixed
    if not axes:
        return Mesh(mesh.sizes) if mesh is not None else None
    if mesh is None and len(axes) == 1:
        mesh = Mesh((world,))
    if mesh is None or len(mesh.sizes) != len(axes):
        said = "none is given" if mesh is None else f"{mesh} has {len(mesh.sizes)}"
        example = "x".join(["2"] * (len(axes) - 1) + [str(max(1, world // 2 ** (len(axes) - 1)))])
        raise document.error(
            place,
            f"plan {template.name} is for a mesh of {len(axes)} axes, {', '.join(axes)}, and {said}",
            help=f"give one such as `--mesh {example}`",
        )
    return mesh.named(axes)
