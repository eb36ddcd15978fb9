"""``overlap check``: a plan alone, proven over a whole world without any kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import click

from overlap.backends import backend as find_backend
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.counts import CountArray
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.describe import describe
from overlap.chunkplan.groups import groups_of, over_axis
from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.chunkplan.promise import verify_kind
from overlap.chunkplan.schema import schema_text
from overlap.chunkplan.trials import Room, rooms_of, trials_of
from overlap.chunkplan.verify import verify_contributions, verify_plan
from overlap.errors import PlanError, UsageError

from .named import On, plan_source
from .options import DTYPES, SHAPE, SPLIT, path_options, ranks_of, read_counts_options, world_options
from .takes import BYTES, Takes


def _print_schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(schema_text(), nl=False)
        context.exit()


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
@click.option(
    "--over",
    metavar="AXIS",
    help="An axis of --mesh, as in --mesh node=2,gpu=4 --over gpu: the ranks along it are a group, and every group "
    "carries PLAN out on a tensor of its own.",
)
@path_options
@click.option("--backend", default="copy_engine", show_default=True)
@click.option("--split", type=SPLIT, default=1, show_default=True, help="Chunks a shard is cut into, or weights.")
@click.option(
    "--counts",
    multiple=True,
    metavar="NAME=FILE",
    help="Counts of a plan whose sizes are known at a call only: a file, or lists in lists such as 'sent=[[0, 3], [2, 1]]'.",
)
@click.option(
    "--tries", type=click.IntRange(min=0), default=20, show_default=True, help="Random counts to try without --counts."
)
@click.option(
    "--dtype", type=click.Choice(DTYPES), help="Also print what a launch takes of every rank, of tensors of this type."
)
@click.option(
    "--memory",
    type=BYTES,
    help="Refuse a plan that takes more symmetric memory of a rank, such as 512MiB (of --dtype, else of fp16 tensors).",
)
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON Schema of plan files, for editors, and stop.",
)
def command(
    plan: str,
    world: int | None,
    mesh: Mesh | None,
    shape: dict[str, int],
    on: str | None,
    over: str | None,
    backend: str,
    split: Split,
    counts: tuple[str, ...],
    tries: int,
    dtype: str | None,
    memory: int | None,
    path: str | None,
    links: str | None,
    machine: str | None,
) -> None:
    """Verify PLAN (a template's name or a YAML file) for one world or mesh, and one shape.

    With --path PLAN is a collective, whose plan is made: all_gather, reduce_scatter, all_reduce or all_to_all. A plan
    whose sizes are known at a call only is verified for --counts; without, for several counts within its limits.
    """
    ranks, grid = ranks_of(world, mesh), mesh
    if over is not None:
        if mesh is None:
            raise UsageError(f"--over {over}: an axis of what?", help="--mesh node=2,gpu=4 --over gpu")
        if path is not None:
            raise UsageError(f"--path {path} with --over", help="name a template or a file for groups of ranks")
        ranks, mesh = mesh.sizes[mesh.axis(over)], None
    axes = list(shape)
    direction = find_backend(backend).default_direction
    if links is not None and path is None:
        raise UsageError(
            "--links without --path", help="--path synth makes a plan for links, --path template chooses one"
        )
    source = plan_source(
        plan,
        shape=shape,
        on=on,
        world=ranks,
        mesh=mesh,
        path=path,
        links=links,
        machine=machine,
        direction=direction,  # type: ignore[arg-type]
        split=split,
    )
    text, meant = source.text, source.on
    takes = Takes(dtype, memory)
    where = _Where(ranks, mesh, source.tensor, source.dim, source.to_dim, source.file)

    def verified(counts: Mapping[str, CountArray]) -> CommPlan:
        def build(direction: str) -> CommPlan:
            built = build_plan(text, **vars(where), split=source.split, direction=direction, counts=counts)
            return over_axis(built, grid, over) if grid is not None and over is not None else built

        built = build(direction)
        if reduced_tensors(built):
            # Partial results are made by tiles, and what tiles make is pushed.
            built = build("push")
        verify_plan(built)
        if on is not None:
            _verify_on(built, meant, axes)
        takes.check(built)
        return built

    given = read_counts_options(counts)
    rooms = () if given else rooms_of(text, **vars(where))
    if not rooms:
        proven = verified(given)
        click.echo("\n".join([describe(proven).rstrip("\n"), *takes.lines(proven)]))
    else:
        _try(rooms, tries, verified)
    click.echo("ok")


@dataclass(frozen=True)
class _Where:
    """What a plan is applied to."""

    world: int
    mesh: Mesh | None
    tensor: TensorSpec
    dim: int
    to_dim: int | None
    path: str


def _try(rooms: Sequence[Room], tries: int, verified: Callable[[Mapping[str, CountArray]], CommPlan]) -> None:
    """Verifies a plan for several counts, and says for which.

    Raises:
        PlanError: of the first counts for which it does not hold, which the message shows.
    """
    trials = trials_of(rooms, random_ones=tries)
    for trial in trials:
        try:
            plan = verified(trial.counts)
        except PlanError as error:
            raise PlanError(f"{error.message} ({_short(str(trial))})", where=error.where, help=error.help) from None
    click.echo(describe(plan).splitlines()[0].rpartition(",")[0])
    click.echo("  counts " + "; ".join(map(str, rooms)))
    click.echo(f"  verified for {len(trials)} counts (seed 0):")
    for trial in trials:
        if not trial.name.startswith("random"):
            click.echo(f"    {trial.name}")
    drawn = sum(trial.name.startswith("random") for trial in trials)
    click.echo(f"    {drawn} random ones")
    click.echo("  proven for these and for no others: --counts proves a plan for the counts of a call")


def _short(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:397]}..."


def _verify_on(plan: CommPlan, on: On, axes: list[str]) -> None:
    """The plan is of the kind that ``--on`` says, in every group of its ranks."""
    tensor = on.tensor
    dim, to_dim = axes.index(on.axis) if on.axis else 0, axes.index(on.to) if on.to else None
    if on.to:
        kind = "all_to_all"
    elif not on.axis:
        kind = "all_reduce"
    elif tensor in reduced_tensors(plan):
        kind = "reduce_scatter"
    else:
        return
    for ranks in groups_of(plan.tensor(tensor), plan.world):
        verify_kind(plan, tensor, kind, dim=dim, to_dim=to_dim, ranks=ranks)
    if kind == "all_reduce":
        verify_contributions(plan, tensor)
