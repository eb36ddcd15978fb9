"""``overlap check``: a plan alone, proven over a whole world without any kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

import click

from overlap.backends import backend as find_backend
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.describe import describe
from overlap.chunkplan.library import find_template
from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.chunkplan.promise import verify_kind
from overlap.chunkplan.verify import verify_contributions, verify_plan
from overlap.errors import OnError

from .options import SHAPE, ranks_of, world_options

_ON = re.compile(r"\s*(?P<tensor>\w+)\s*\[\s*(?P<axis>\w+)?\s*(?::\s*(?P<to>\w+))?\s*\]\s*\Z")


@dataclass(frozen=True)
class _On:
    """A tensor, the axis it is sharded along ("" of an all-reduce), and the one it is sharded along afterwards."""

    tensor: str
    axis: str
    to: str = ""


@click.command("check")
@click.argument("plan", metavar="PLAN")
@world_options
@click.option("--shape", type=SHAPE, required=True, help="The tensor's axes in order.")
@click.option(
    "--on",
    metavar="TENSOR[AXIS]",
    help="Tensor and axis: x[M] is gathered or reduce-scattered along M (default: x, the first axis), x[] is "
    "all-reduced, x[K:M] goes from shards along K to shards along M.",
)
@click.option("--backend", default="copy_engine", show_default=True)
@click.option("--split", type=click.IntRange(min=1), default=1, show_default=True, help="Chunks a shard is cut into.")
def command(
    plan: str, world: int | None, mesh: Mesh | None, shape: dict[str, int], on: str | None, backend: str, split: int
) -> None:
    """Verify PLAN (a template's name or a YAML file) for one world or mesh, and one shape."""
    ranks = ranks_of(world, mesh)
    axes = list(shape)
    meant = _on(on, axes)
    path, text = find_template(plan)

    def build(direction: str) -> CommPlan:
        return build_plan(
            text,
            world=ranks,
            mesh=mesh,
            tensor=TensorSpec(meant.tensor, tuple(shape.values())),
            dim=axes.index(meant.axis) if meant.axis else 0,
            to_dim=axes.index(meant.to) if meant.to else None,
            split=split,
            direction=direction,
            path=path,
        )

    built = build(find_backend(backend).default_direction)
    if reduced_tensors(built):
        # Partial results are made by tiles, and what tiles make is pushed.
        built = build("push")
    verify_plan(built)
    if on is not None:
        _verify_on(built, meant, axes)
    click.echo(describe(built).rstrip("\n"))
    click.echo("ok")


def _on(text: str | None, axes: list[str]) -> _On:
    if text is None:
        return _On("x", axes[0])
    match = _ON.match(text)
    named = [axis for axis in (match["axis"], match["to"]) if axis] if match else []
    if not match or (match["to"] and not match["axis"]) or not set(named) <= set(axes):
        raise OnError(
            f"--on {text}: not TENSOR[AXIS], TENSOR[] or TENSOR[FROM:TO] with axes of --shape",
            help=f"axes: {', '.join(axes)}; e.g. 'x[{axes[0]}]'",
        )
    if len(named) == 2 and named[0] == named[1]:
        raise OnError(f"--on {text}: from an axis to itself", help=f"two axes of {', '.join(axes)}, such as 'x[K:M]'")
    return _On(match["tensor"], match["axis"] or "", match["to"] or "")


def _verify_on(plan: CommPlan, on: _On, axes: list[str]) -> None:
    """The plan is of the kind that ``--on`` says."""
    tensor = on.tensor
    if on.to:
        verify_kind(plan, tensor, "all_to_all", dim=axes.index(on.axis), to_dim=axes.index(on.to))
    elif not on.axis:
        verify_kind(plan, tensor, "all_reduce", dim=0)
        verify_contributions(plan, tensor)
    elif tensor in reduced_tensors(plan):
        verify_kind(plan, tensor, "reduce_scatter", dim=axes.index(on.axis))
