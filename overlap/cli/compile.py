"""``overlap compile``: an annotated kernel and a plan in, a distributed module out."""

from __future__ import annotations

import click

from overlap.backends.capabilities import AUTO
from overlap.chunkplan.mesh import Mesh
from overlap.errors import UsageError
from overlap.pipeline import compile_source
from overlap.pipeline.automatic import choose_backend

from .options import SHAPE, compile_options, request_of
from .output import OutputFile, not_over, write_text


@click.command("compile")
@compile_options
@click.option("--shape", type=SHAPE, help="With --path or --backend auto: the sizes that these are for.")
@click.option("--dtype", default="bf16", show_default=True, help="With --backend auto: of the tensors.")
@click.option(
    "-o",
    "output",
    required=True,
    metavar="OUT.py",
    type=OutputFile(dash=True),
    help="File to write; - for standard output.",
)
def command(
    file: str,
    plan: tuple[str, ...],
    on: tuple[str, ...],
    world: int | None,
    mesh: Mesh | None,
    backend: str | None,
    settings: tuple[str, ...],
    output: str,
    path: str | None,
    links: str | None,
    machine: str | None,
    shape: dict[str, int] | None,
    dtype: str,
) -> None:
    """Write the distributed kernel of FILE.py."""
    if shape is not None and path is None and backend != AUTO:
        raise UsageError("--shape without --path", help="a module serves every shape, but for a plan by --path synth")
    request = request_of(
        file,
        plan=plan,
        on=on,
        world=world,
        mesh=mesh,
        backend=backend,
        settings=settings,
        output=output,
        path=path,
        links=links,
        machine=machine,
        sizes=shape,
    )
    not_over(output, request.unit.path)
    if backend == AUTO:
        compilation, candidates = choose_backend(request, sizes=shape or {}, dtype=dtype)
        module = compilation.module
        click.echo(f"{compilation.realization.backend} of: {'; '.join(map(str, candidates))}", err=True)
    else:
        module = compile_source(request).module
    if output == "-":
        click.echo(module.text, nl=False)
        return
    write_text(output, module.text)
    click.echo(f"wrote {output}: {module.header.kernel}, plan {module.header.plan} on {module.header.on}")
