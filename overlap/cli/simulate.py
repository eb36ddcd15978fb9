"""``overlap simulate``: a generated module on simulated ranks against the original kernel, or a plan against its promise."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import click

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.counts import CountArray
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import CommPlan
from overlap.errors import UsageError

from .named import PlanSource, plan_source
from .options import SPLIT, need, path_options, ranks_of, read_counts_options, run_options, world_options


@click.command("simulate")
@click.argument("file", metavar="[OUT.py]", required=False)
@click.option(
    "--plan", metavar="NAME|FILE.yaml", help="Simulate a plan on its own, without any kernel, instead of OUT.py."
)
@click.option("--on", metavar="TENSOR[AXIS]", help="Of --plan: tensor and axis, as in `overlap check`.")
@click.option("--split", type=SPLIT, help="Of --plan: chunks that every transfer is cut into, or weights.")
@click.option(
    "--counts", multiple=True, metavar="NAME=FILE", help="Of --plan: sizes known at a call, as in `overlap check`."
)
@path_options
@world_options
@run_options
def command(
    file: str | None,
    plan: str | None,
    on: str | None,
    split: Split | None,
    counts: tuple[str, ...],
    path: str | None,
    links: str | None,
    machine: str | None,
    world: int | None,
    mesh: Mesh | None,
    shape: dict[str, int],
    dtype: str,
    dtypes: tuple[tuple[str, str], ...],
    seeds: int,
    seed: int | None,
) -> None:
    """Run OUT.py, or a plan alone, on simulated ranks: races, deadlocks, stray accesses, wrong or missing values.

    A plan's ranks hold random numbers, and must end with what the plan promises of them.
    """
    ranks = ranks_of(world, mesh)
    if (file is None) == (plan is None):
        said = "both a module and --plan" if plan is not None else "neither a module nor --plan"
        raise UsageError(f"{said} to simulate", help="overlap simulate OUT.py ..., or overlap simulate --plan NAME ...")
    if file is not None:
        options = {
            "--on": on,
            "--split": split,
            "--counts": counts,
            "--path": path,
            "--links": links,
            "--machine": machine,
        }
        for option, value in options.items():
            if value:
                raise UsageError(f"{option} says what --plan is, and {file} has its plan", help=f"leave {option} out")
        simulate(
            file, world=ranks, shape=shape, dtype=dtype, dtypes=dict(dtypes), seeds=seeds, seed=seed, command="simulate"
        )
        return
    if dtypes:
        raise UsageError("--dtype-of names inputs of OUT.py, and a plan has one tensor", help="leave it out: --dtype")
    assert plan is not None
    source = plan_source(
        plan,
        shape=shape,
        on=on,
        world=ranks,
        mesh=mesh,
        path=path,
        links=links,
        machine=machine,
        direction="pull",
        split=split or 1,
    )
    simulate_plan(_built(source, ranks, mesh, read_counts_options(counts)), dtype=dtype, seeds=seeds, seed=seed)


def _built(source: PlanSource, world: int, mesh: Mesh | None, counts: Mapping[str, CountArray]) -> CommPlan:
    """The plan, pulled, or pushed where it adds."""

    def build(direction: str) -> CommPlan:
        return build_plan(
            source.text,
            world=world,
            tensor=source.tensor,
            dim=source.dim,
            to_dim=source.to_dim,
            split=source.split,
            direction=direction,
            path=source.file,
            mesh=mesh,
            counts=counts,
        )

    plan = build("pull")
    return build("push") if reduced_tensors(plan) else plan


def simulate_plan(plan: CommPlan, *, dtype: str, seeds: int, seed: int | None) -> None:
    """Carries a plan out on simulated ranks and prints the report; its last line is ``ok`` or the fault.

    Raises:
        SystemExit: 1 when a fault was found.
        PlanError: the plan does not keep its promise.
    """
    need("simulate", "torch", "triton")
    interpret()
    from overlap.sim import check_plan

    chosen = [seed] if seed is not None else list(range(seeds))
    with _progress(f"simulating {plan.world} ranks", len(chosen)) as advance:
        report = check_plan(plan, seeds=chosen, dtype=dtype, progress=advance)
    click.echo(str(report).rstrip("\n"))
    if not report.ok:
        raise SystemExit(1)


def simulate(
    path: str,
    *,
    world: int,
    shape: dict[str, int],
    dtype: str,
    dtypes: dict[str, str],
    seeds: int,
    seed: int | None,
    command: str,
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
        report = check_module(
            path, world=world, shape=shape, dtype=dtype, dtypes=dtypes, seeds=chosen, progress=advance
        )
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
