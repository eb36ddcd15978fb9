"""``overlap explain``: what the compiler knows, plans and schedules, as text; when it would happen, as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import click

from overlap.backends.ways import ways_of
from overlap.chunkplan.links import Links
from overlap.chunkplan.mesh import Mesh
from overlap.errors import PlanError
from overlap.pipeline import Compilation, Planned, compile_source, default_sizes, explain, need_sizes, planned
from overlap.pipeline.timing import tile_seconds, timeline_of
from overlap.schedule.carried import as_copies
from overlap.schedule.machine import Machine, machine_for
from overlap.schedule.network import links_for
from overlap.schedule.picture import html_picture
from overlap.schedule.product import itemsize_of
from overlap.schedule.trace import chrome_trace
from overlap.settings import get

from .options import DTYPES, MICROSECONDS, SHAPE, compile_options, request_of
from .output import OutputFile, write_text


@click.command("explain")
@compile_options
@click.option("--shape", type=SHAPE, help="Global sizes (default: small ragged ones).")
@click.option("--rank", type=click.IntRange(min=0), help="Show the runs of this rank only.")
@click.option("--html", metavar="OUT.html", type=OutputFile(), help="Draw the predicted timeline.")
@click.option("--trace", metavar="OUT.json", type=OutputFile(), help="Write the same events for Perfetto.")
@click.option(
    "--dtype", type=click.Choice(DTYPES), default="fp16", show_default=True, help="Of the tensors, for times."
)
@click.option(
    "--tile-us",
    type=MICROSECONDS,
    help="Microseconds that a tile takes (default: a product's tile on that machine).",
)
@click.option("--seeds", type=int, expose_value=False, hidden=True)
@click.option("--seed", type=int, expose_value=False, hidden=True)
@click.option("-o", "output", expose_value=False, hidden=True)
def command(
    file: str,
    plan: tuple[str, ...],
    on: tuple[str, ...],
    world: int | None,
    mesh: Mesh | None,
    backend: str | None,
    settings: tuple[str, ...],
    shape: dict[str, int] | None,
    rank: int | None,
    html: str | None,
    trace: str | None,
    dtype: str,
    tile_us: float | None,
    path: str | None,
    links: str | None,
    machine: str | None,
) -> None:
    """Show model, plan, runs and waits of FILE.py under a plan."""
    request = request_of(
        file,
        plan=plan,
        on=on,
        world=world,
        mesh=mesh,
        backend=backend,
        settings=settings,
        path=path,
        links=links,
        machine=machine,
        sizes=shape,
    )
    compilation = compile_source(request)
    ranks = request.world or 4
    if rank is not None and rank >= ranks:
        raise click.UsageError(f"--rank {rank}: there are ranks 0 to {ranks - 1}")
    sizes = shape if shape is not None else default_sizes(compilation.program)
    # What can be refused is refused before anything is printed.
    need_sizes(compilation.program, sizes)
    made = planned(compilation, world=ranks, sizes=sizes, itemsize=itemsize_of(dtype))
    drawn = None
    if html or trace:
        on_machine = machine_for(ranks, made.plan.mesh, compilation.realization.machine)
        table = None if links is None else links_for(ranks, file=links)
        drawn = _Drawn(compilation, made, on_machine, table, sizes, dtype, tile_us)
    for title, text in explain(compilation, world=ranks, sizes=sizes, rank=rank, made=made):
        click.echo(f"== {title}")
        click.echo(text.rstrip("\n"))
        click.echo()
    if drawn:
        drawn.write(html, trace)


@dataclass(frozen=True)
class _Drawn:
    """One launch on a machine, over its links or others; ``tile_us`` None leaves the time of a tile to the model."""

    compilation: Compilation
    made: Planned
    machine: Machine
    links: Links | None
    sizes: dict[str, int]
    dtype: str
    tile_us: float | None

    def write(self, html: str | None, trace: str | None) -> None:
        """The predicted timeline as a picture, as a trace, or as both."""
        program, made, machine, sizes = self.compilation.program, self.made, self.machine, self.sizes
        tile = (self.tile_us or 0.0) * 1e-6 or tile_seconds(program, made, machine, sizes=sizes, dtype=self.dtype)
        realization = self.compilation.realization
        ways = ways_of(
            realization.backend, [on.tensor for on in self.compilation.ons if on.produced], realization.comm_sms
        )
        drawn = partial(timeline_of, program, made, machine, sizes=sizes, dtype=self.dtype, tile=tile, links=self.links)
        drawn = partial(drawn, in_place=self.compilation.module.in_place and get("in_place"))
        unknown = ""
        try:
            timeline = drawn(ways=ways)
        except PlanError as error:
            # A machine that nobody has measured programs on: copies are what it knows.
            timeline, unknown = drawn(ways=lambda op: as_copies(ways(op))), f"timed as copies: {error.message}"
        request = self.compilation.request
        pairs = zip(self.compilation.plans, request.ons, strict=True)
        moved = ", ".join(f"{plan.name} on {tensor}" for plan, tensor in pairs)
        title = f"{program.kernel.name}: {moved}, {made.plan.world} rank{'s' * (made.plan.world != 1)}"
        flags = (*made.schedules, *made.parts)
        if html:
            shape = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
            how = f"{shape}, {self.dtype}, {self.compilation.realization.backend}"
            notes = [f"{how}; predicted for {machine.name} with {tile * 1e6:.4g} us a tile", *filter(None, [unknown])]
            write_text(html, html_picture(timeline, title=title, notes=notes, schedules=flags))
            click.echo(f"wrote {html}: {timeline.total * 1e3:.4g} ms, {timeline.exposed * 1e3:.4g} ms of them exposed")
        if trace:
            write_text(trace, chrome_trace(timeline, title=title, schedules=flags))
            click.echo(f"wrote {trace}: {len(timeline.events)} events")
