"""What a plan fixes by itself, so that a compiler can try it on sizes it accepts."""

from __future__ import annotations

from dataclasses import dataclass

from overlap.errors import PlanError

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
    decls = template.tensors
    decl = next((d for d in decls if d.name == tensor), decls[0] if len(decls) == 1 else None)
    if decl is None:
        return Pins(template.world, None)
    shape: list[int | None] = []
    for dim in decl.dims:
        try:
            shape.append(None if isinstance(dim, str) else dim({}))
        except (PlanError, KeyError):
            shape.append(None)
    return Pins(template.world, tuple(shape))
