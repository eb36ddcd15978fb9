"""``overlap check``: a plan alone, proven over a whole world without any kernel."""

from __future__ import annotations

import re

import click

from overlap.backends import backend as find_backend
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.describe import describe
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import TensorSpec
from overlap.chunkplan.verify import verify_plan
from overlap.errors import OnError

from .options import SHAPE


@click.command("check")
@click.argument("plan", metavar="PLAN")
@click.option("--world", type=click.IntRange(min=1), required=True, help="Number of ranks.")
@click.option("--shape", type=SHAPE, required=True, help="The tensor's axes in order.")
@click.option(
    "--on", metavar="TENSOR[AXIS]", help="Name of the tensor and its sharded axis (default: x, the first axis)."
)
@click.option("--backend", default="copy_engine", show_default=True)
@click.option("--split", type=click.IntRange(min=1), default=1, show_default=True, help="Chunks a shard is cut into.")
def command(plan: str, world: int, shape: dict[str, int], on: str | None, backend: str, split: int) -> None:
    """Verify PLAN (a template's name or a YAML file) for one world and shape."""
    axes = list(shape)
    tensor, axis = _on(on, axes)
    path, text = find_template(plan)
    built = build_plan(
        text,
        world=world,
        tensor=TensorSpec(tensor, tuple(shape.values())),
        dim=axes.index(axis),
        split=split,
        direction=find_backend(backend).default_direction,
        path=path,
    )
    verify_plan(built)
    click.echo(describe(built).rstrip("\n"))
    click.echo("ok")


def _on(text: str | None, axes: list[str]) -> tuple[str, str]:
    if text is None:
        return "x", axes[0]
    match = re.fullmatch(r"\s*(\w+)\[(\w+)\]\s*", text)
    if not match or match[2] not in axes:
        raise OnError(
            f"--on {text}: not TENSOR[AXIS] with an axis of --shape",
            help=f"axes: {', '.join(axes)}; e.g. 'x[{axes[0]}]'",
        )
    return match[1], match[2]
