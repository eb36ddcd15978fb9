"""``overlap explain``: what the compiler knows, plans and schedules, as text."""

from __future__ import annotations

import click

from overlap.pipeline import compile_source, default_sizes, explain

from .options import DTYPES, SHAPE, compile_options, request_of


@click.command("explain")
@compile_options
@click.option("--shape", type=SHAPE, help="Global sizes (default: small ragged ones).")
@click.option("--rank", type=click.IntRange(min=0), help="Show the runs of this rank only.")
@click.option("--dtype", type=click.Choice(DTYPES), expose_value=False, hidden=True)
@click.option("--seeds", type=int, expose_value=False, hidden=True)
@click.option("--seed", type=int, expose_value=False, hidden=True)
@click.option("-o", "output", expose_value=False, hidden=True)
def command(
    file: str,
    plan: tuple[str, ...],
    on: tuple[str, ...],
    world: int | None,
    backend: str | None,
    settings: tuple[str, ...],
    shape: dict[str, int] | None,
    rank: int | None,
) -> None:
    """Show model, plan, runs and waits of FILE.py under a plan."""
    compilation = compile_source(request_of(file, plan=plan, on=on, world=world, backend=backend, settings=settings))
    ranks = world or 4
    if rank is not None and rank >= ranks:
        raise click.UsageError(f"--rank {rank}: there are ranks 0 to {ranks - 1}")
    sizes = shape if shape is not None else default_sizes(compilation.program)
    for title, text in explain(compilation, world=ranks, sizes=sizes, rank=rank):
        click.echo(f"== {title}")
        click.echo(text.rstrip("\n"))
        click.echo()
