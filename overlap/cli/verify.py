"""``overlap verify``: compile and simulate in one step."""

from __future__ import annotations

import os
import tempfile

import click

from overlap.chunkplan.mesh import Mesh
from overlap.pipeline import compile_source, need_sizes

from .options import compile_options, request_of, run_options
from .output import OutputFile, not_over, write_text
from .simulate import simulate


@click.command("verify")
@compile_options
@run_options
@click.option("-o", "output", metavar="OUT.py", type=OutputFile(), help="Keep the generated file here.")
def command(
    file: str,
    plan: tuple[str, ...],
    on: tuple[str, ...],
    world: int | None,
    mesh: Mesh | None,
    backend: str | None,
    settings: tuple[str, ...],
    output: str | None,
    shape: dict[str, int],
    dtype: str,
    dtypes: tuple[tuple[str, str], ...],
    seeds: int,
    seed: int | None,
    path: str | None,
    links: str | None,
    machine: str | None,
) -> None:
    """Compile FILE.py and run the result on simulated ranks."""
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
    compilation = compile_source(request)
    need_sizes(compilation.program, shape)
    with tempfile.TemporaryDirectory(prefix="overlap-") as folder:
        module = output or os.path.join(folder, os.path.basename(request.unit.path))
        write_text(module, compilation.module.text)
        simulate(
            module,
            world=request.world or 4,
            shape=shape,
            dtype=dtype,
            dtypes=dict(dtypes),
            seeds=seeds,
            seed=seed,
            command="verify",
        )
