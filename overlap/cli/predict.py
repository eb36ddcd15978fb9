"""``overlap predict``: will overlap pay on a machine, before any code is written; or what a plan alone takes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import click

from overlap.backends.capabilities import AUTO, Need, check_named, require, unasked
from overlap.backends.registry import backends
from overlap.backends.ways import able_ways, naming, way_of, ways_of
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.cuts import Split
from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import Collective, CommPlan
from overlap.chunkplan.verify import verify_plan
from overlap.errors import UsageError
from overlap.schedule.carried import LANES, Way, WayOf
from overlap.schedule.machine import machine_for
from overlap.schedule.network import links_for
from overlap.schedule.op_ways import operator_candidates
from overlap.schedule.operators import OPERATORS, TENSOR, Operator, operator_of
from overlap.schedule.plan_times import plan_times
from overlap.schedule.predict import predict
from overlap.schedule.product import itemsize_of
from overlap.schedule.ways import best, listed

from .named import On, plan_source
from .options import SHAPE, SPLIT, path_options, ranks_of, read_counts_options, world_options

PROVEN = 20_000
"""Operations of the largest plan that is proven before it is predicted; `overlap check` proves any."""


@click.command("predict")
@click.option(
    "--op", metavar="OP", help=f"An operator, one of {', '.join(OPERATORS)}; without, --plan alone is predicted."
)
@click.option("--plan", metavar="NAME|FILE.yaml", help="What moves the tensor (default: the operator's own).")
@world_options
@click.option(
    "--shape", type=SHAPE, required=True, help="M, N and K, global; of a plan alone the tensor's axes in order."
)
@click.option("--on", metavar="TENSOR[AXIS]", help="Of a plan alone: tensor and axis, as for `overlap check`.")
@path_options
@click.option("--counts", multiple=True, metavar="NAME=FILE", help="Of a plan alone, as for `overlap check`.")
@click.option("--dtype", default="bf16", show_default=True, help="Element type: bf16, fp16, fp32, fp8.")
@click.option("--split", type=SPLIT, default=1, show_default=True, help="Chunks a shard is cut into, or weights.")
@click.option("--backend", metavar="NAME", help="Of --op: what moves the chunks (default: the copy engine); auto: all.")
@click.option("--comm-sms", type=click.IntRange(min=0), default=0, help="Programs that move them, where it takes some.")
@click.option("--sum-sms", type=click.IntRange(min=0), default=0, help="Units left to sums that are made meanwhile.")
@click.option(
    "--tile-sums/--no-tile-sums",
    default=None,
    help="Whether the tiles of what a rank keeps add what comes of it, where they can (default: the setting tile_sums).",
)
@click.option("--break-even/--no-break-even", default=True, help="Look for the N and K from which on it pays.")
def command(
    op: str | None,
    plan: str | None,
    world: int | None,
    mesh: Mesh | None,
    shape: dict[str, int],
    on: str | None,
    path: str | None,
    links: str | None,
    machine: str | None,
    counts: tuple[str, ...],
    dtype: str,
    split: Split,
    backend: str | None,
    comm_sms: int,
    sum_sms: int,
    tile_sums: bool | None,
    break_even: bool,
) -> None:
    """Predict whether overlapping OP pays, where it breaks even, and what the ceiling is; or when a plan ends.

    With --path the plan is made, of the operator's collective or of the one that --plan names.
    """
    ranks = ranks_of(world, mesh)
    table = None if links is None else links_for(ranks, file=links)
    on_machine = machine_for(ranks, mesh, machine)
    if op is not None:
        on_machine.rate(dtype)
    itemsize = itemsize_of(dtype)

    def built(name: str, shape: Mapping[str, int], on: On | str | None, direction: Literal["pull", "push"]) -> CommPlan:
        source = plan_source(
            name,
            shape=shape,
            on=on,
            world=ranks,
            mesh=mesh,
            path=path,
            links=links,
            machine=machine,
            direction=direction,
            split=split,
            itemsize=itemsize,
        )
        made = build_plan(
            source.text,
            world=ranks,
            mesh=mesh,
            tensor=source.tensor,
            dim=source.dim,
            to_dim=source.to_dim,
            split=source.split,
            direction=direction,
            path=source.file,
            counts=read_counts_options(counts),
        )
        if sum(map(len, made.ops)) <= PROVEN:
            verify_plan(made)
        return made

    if op is None:
        if backend is not None or comm_sms or sum_sms or tile_sums is not None:
            raise UsageError(
                "--backend, --comm-sms, --sum-sms and --tile-sums are of an operator",
                help="give --op as well, or leave them out",
            )
        if plan is None:
            raise UsageError("nothing to predict", help="--op ag_gemm, or a plan alone: --plan all_gather_ring")
        alone = built(plan, shape, on, "pull")
        if reduced_tensors(alone):
            # Partial results are made by tiles, and what tiles make is pushed.
            alone = built(plan, shape, on, "push")
        click.echo(str(plan_times(alone, on_machine, itemsize=itemsize, links=table)))
        return
    if on is not None or counts:
        raise UsageError(f"{'--on' if on else '--counts'} with --op", help="the operator says what moves; leave it out")
    operator = operator_of(op, shape)
    if tile_sums is not None and operator.kind != "reduce_scatter":
        raise UsageError(f"--tile-sums with {op}, whose tiles add nothing up", help="leave it out")
    if backend == AUTO:
        if path is not None or links is not None or mesh is not None:
            raise UsageError(
                "--backend auto is for one node and a plan by name", help="leave --path, --links, --mesh out"
            )
        need = Need(op, moves="result" if operator.produced else "input")
        ways, refused = able_ways(need, programs=comm_sms, lacking=lambda name: unasked(backends[name]))
        ways = tuple(replace(way, tile_sums=tile_sums) if way.form == "lanes" else way for way in ways)
        all_of_them = operator_candidates(
            op,
            ways,
            world=ranks,
            sizes=shape,
            machine=on_machine,
            dtype=dtype,
            split=split,
            plan=plan,
            named=naming(operator.produced),
        )
        candidates = [*all_of_them, *refused]
        sizes_said = ", ".join(f"{axis}={size}" for axis, size in shape.items())
        click.echo(f"{op} on {ranks} ranks of {on_machine.name}, {sizes_said}")
        click.echo("\n".join(f"  {candidate}" for candidate in listed(candidates)))
        click.echo(f"auto takes {best(candidates).way}")
        return
    if sum_sms and operator.kind not in ("reduce_scatter", "all_reduce"):
        raise UsageError(f"--sum-sms with {op}, which adds nothing up", help="leave it out")
    for option, taken in ("--comm-sms", comm_sms), ("--sum-sms", sum_sms):
        if taken >= on_machine.units:
            raise UsageError(
                f"{option} {taken}: {on_machine.name} has {on_machine.units} multiprocessors, and some must compute",
                help=f"give a few of them, such as {option} {on_machine.units // 8}",
            )
    need = Need(op, moves="result" if operator.produced else "input", far=ranks > on_machine.on_mesh(mesh).node)
    way = _way(need, backend, comm_sms, sum_sms, tile_sums)
    made = None
    if plan is not None or path is not None:
        axes = list(operator.moved)
        to = "" if operator.to_dim is None else axes[operator.to_dim]
        moved = On(TENSOR, "" if operator.kind == "all_reduce" else axes[operator.dim], to)
        sizes = {axis: shape[axis] for axis in axes}
        made = built(plan or operator.kind, sizes, moved, "push" if operator.produced or way.pushed else "pull")
    found = predict(
        op,
        world=ranks,
        sizes=shape,
        machine=on_machine,
        dtype=dtype,
        split=split,
        break_even=break_even,
        mesh=mesh,
        plan=made,
        links=table,
        way=way,
        ways=None if made is None else _named(made, way.name, operator, need, comm_sms),
    )
    click.echo(str(found))


def _way(need: Need, backend: str | None, programs: int, free: int, tile_sums: bool | None) -> Way:
    """How an operator's chunks are moved.

    Raises:
        UsageError: no such backend, or one that takes no programs.
        UnsupportedError: one that does not serve ``need``.
    """
    if backend is None and not programs and not free and tile_sums is None:
        return LANES
    check_named(backend, backends, need)
    found = backends[backend or "copy_engine"]
    require(found, need)
    if programs and not found.comm_sms:
        takers = " or ".join(other.name for other in backends.values() if other.comm_sms)
        raise UsageError(f"{found.name} takes no multiprocessors: --comm-sms must be 0", help=f"--backend {takers}")
    return way_of(found, need.moves == "result", programs, free, tile_sums)


def _named(plan: CommPlan, chosen: str, operator: Operator, need: Need, programs: int) -> WayOf | None:
    """Who carries the operations of a plan out, some of which name a backend; None where none does.

    Raises:
        UsageError, UnsupportedError: one names a backend that there is not, or that does not serve ``need``.
    """
    names = {op.backend for _, op in plan.items() if op.backend is not None and not isinstance(op, Collective)}
    for name in sorted(names):
        check_named(name, backends, need)
        require(backends[name], need)
    return ways_of(chosen, (TENSOR,) if operator.produced else (), programs) if names else None
