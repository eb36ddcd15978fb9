"""A plan that a command names, and the tensor that it is applied to: ``PLAN --shape --on --path --links --machine``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from overlap.chunkplan.collectives.step import CollectiveStep
from overlap.chunkplan.collectives.text import collective_kind, collective_text
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.library import find_template
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import TensorSpec
from overlap.chunkplan.reader import read_template
from overlap.errors import OnError, UsageError
from overlap.schedule.network import links_for

_ON = re.compile(r"\s*(?P<tensor>\w+)\s*\[\s*(?P<axis>\w+)?\s*(?::\s*(?P<to>\w+))?\s*\]\s*\Z")


@dataclass(frozen=True)
class On:
    """A tensor, the axis it is sharded along ("" of an all-reduce), and the one it is sharded along afterwards."""

    tensor: str
    axis: str
    to: str = ""

    def dims(self, axes: Sequence[str]) -> tuple[int, int | None]:
        """The dimensions that they are, the first where there is none."""
        return axes.index(self.axis) if self.axis else 0, axes.index(self.to) if self.to else None


def read_on(text: str | None, axes: Sequence[str]) -> On:
    """What ``--on`` says of a tensor with these axes; x along the first of them where it is None.

    Raises:
        OnError: it is not TENSOR[AXIS], TENSOR[] or TENSOR[FROM:TO].
    """
    if text is None:
        return On("x", axes[0])
    match = _ON.match(text)
    named = [axis for axis in (match["axis"], match["to"]) if axis] if match else []
    if not match or (match["to"] and not match["axis"]) or not set(named) <= set(axes):
        raise OnError(
            f"--on {text}: not TENSOR[AXIS], TENSOR[] or TENSOR[FROM:TO] with axes of --shape",
            help=f"axes: {', '.join(axes)}; e.g. 'x[{axes[0]}]'",
        )
    if len(named) == 2 and named[0] == named[1]:
        raise OnError(f"--on {text}: from an axis to itself", help=f"two axes of {', '.join(axes)}, such as 'x[K:M]'")
    return On(match["tensor"], match["axis"] or "", match["to"] or "")


@dataclass(frozen=True)
class PlanSource:
    """The text of a plan, and what it is applied to.

    ``file`` is shown in errors; ``split`` is what is left to cut, since made plans are in pieces already.
    """

    file: str
    text: str
    split: Split
    on: On
    tensor: TensorSpec
    dim: int
    to_dim: int | None


def plan_source(
    plan: str,
    *,
    shape: Mapping[str, int],
    on: On | str | None,
    world: int,
    mesh: Mesh | None,
    path: str | None,
    links: str | None,
    machine: str | None,
    direction: Literal["pull", "push"],
    split: Split = 1,
    itemsize: int = 2,
) -> PlanSource:
    """The plan that a command names.

    Args:
        plan: a template's name or a file; with ``path`` the name of a collective.
        shape: the tensor's axes in order.
        on: tensor and axis, or ``--on`` as written; without, x along the first axis, and of a plan of several tensors
            the first of these.
        direction: who carries transfers out that are no sums.

    Raises:
        OnError: an ``--on`` that means nothing.
        PlanError: there is no such plan, collective or machine, or links do not join the ranks.
        UsageError: an all_to_all without a second axis.
    """
    axes = list(shape)
    moved = on if isinstance(on, On) else read_on(on, axes)
    if path is None:
        file, text = find_template(plan)
        declared = read_template(text, file).tensors
        if on is None and len(declared) > 1:
            moved = On(declared[0].name, moved.axis)
    dim, to_dim = moved.dims(axes)
    tensor = TensorSpec(moved.tensor, tuple(shape.values()))
    if path is not None:
        kind = collective_kind(plan)
        if kind == "all_to_all" and to_dim is None:
            to = axes[1] if len(axes) > 1 else "K"
            raise UsageError(
                "an all_to_all goes from one axis to another", help=f"--on '{moved.tensor}[{axes[0]}:{to}]'"
            )
        inside = split if path == "synth" else 1
        step = CollectiveStep(kind, tensor, world, dim, to_dim, split=inside, itemsize=itemsize, mesh=mesh)
        file, text = collective_text(
            step,
            path=path,
            links=None if path == "direct" else links_for(world, mesh, file=links, machine=machine),
            direction="push" if step.reduces else direction,
        )
        split = split if path == "template" else 1
    return PlanSource(file, text, split, moved, tensor, dim, to_dim)
