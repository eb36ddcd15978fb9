"""``overlap simulate``: a generated module on N simulated ranks, against the original kernel."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from overlap.chunkplan.mesh import Mesh
from overlap.errors import UsageError

from .options import need, ranks_of, run_options, world_options


@click.command("simulate")
@click.argument("file", metavar="OUT.py")
@world_options
@run_options
def command(
    file: str, world: int | None, mesh: Mesh | None, shape: dict[str, int], dtype: str, seeds: int, seed: int | None
) -> None:
    """Run OUT.py on simulated ranks: races, deadlocks, stray accesses, wrong or missing values."""
    simulate(file, world=ranks_of(world, mesh), shape=shape, dtype=dtype, seeds=seeds, seed=seed, command="simulate")


def simulate(
    path: str, *, world: int, shape: dict[str, int], dtype: str, seeds: int, seed: int | None, command: str
) -> None:
    """Simulates and prints the report; its last line is ``ok`` or the fault.

    Raises:
        SystemExit: 1 when a fault was found.
    """
    need(command, "torch", "triton")
    interpret()
    from overlap.sim import check_module

    chosen = [seed] if seed is not None else list(range(seeds))
    with _progress(f"simulating {world} ranks", len(chosen)) as advance:
        report = check_module(path, world=world, shape=shape, dtype=dtype, seeds=chosen, progress=advance)
    click.echo(str(report).rstrip("\n"))
    if not report.ok:
        raise SystemExit(1)


def interpret() -> None:
    """Turns Triton's interpreter on; it must not have been imported without."""
    import sys

    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise UsageError(
            "Triton was imported before the simulator could turn its interpreter on",
            help="set TRITON_INTERPRET=1 before anything imports triton",
        )
    os.environ["TRITON_INTERPRET"] = "1"


class _progress:
    """A progress bar on a terminal, silence elsewhere."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total

    def __enter__(self) -> Callable[..., None]:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self.bar = Progress(console=console, transient=True, disable=not console.is_terminal)
        self.bar.start()
        task = self.bar.add_task(self.title, total=self.total)
        return lambda *_: self.bar.advance(task)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
