"""``overlap build``: machine code of a generated kernel without a GPU, and what the compile tier finds in it."""

from __future__ import annotations

import os

import click

from overlap.chunkplan.mesh import Mesh
from overlap.errors import UsageError

from .options import DTYPES, SHAPE, dtype_of_option, need, ranks_of, world_options


@click.command("build")
@click.argument("file", metavar="OUT.py")
@click.option("--target", required=True, metavar="sm_90|gfx942", help="Architecture.")
@click.option("--shape", type=SHAPE, help="Global sizes the launch is specialised for (default: 4096 each).")
@click.option("--dtype", type=click.Choice(DTYPES), default="fp16", show_default=True)
@dtype_of_option
@world_options
@click.option(
    "-o", "folder", metavar="DIR", type=click.Path(file_okay=False), help="Write the intermediate files here."
)
def command(
    file: str,
    target: str,
    shape: dict[str, int] | None,
    dtype: str,
    dtypes: tuple[tuple[str, str], ...],
    world: int | None,
    mesh: Mesh | None,
    folder: str | None,
) -> None:
    """Build OUT.py's kernel and check the emitted code: registers, shared memory, stages, findings."""
    need("build", "torch", "triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise UsageError(
            "building needs Triton's compiler, TRITON_INTERPRET=1 turns it off", help="unset TRITON_INTERPRET"
        )
    from overlap.build import build_module

    ranks = ranks_of(world, mesh) if world or mesh else 4
    result = build_module(
        file, target=target, shape=shape, dtype=dtype, dtypes=dict(dtypes), world=ranks, folder=folder
    )
    click.echo(result.text.rstrip("\n"))
    if not result.ok:
        raise SystemExit(1)
