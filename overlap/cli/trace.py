"""``overlap trace``: when everything of one call happened, tile by tile, beside what is predicted."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from overlap.backends.capabilities import AUTO, SERIAL
from overlap.chunkplan.cuts import Split, split_text
from overlap.errors import UsageError
from overlap.schedule.machine import Machine, machine_for
from overlap.schedule.operators import OPERATORS, operator_of
from overlap.settings import get

from .on_gpus import check_ranks, gpus, in_job, join, start
from .options import DTYPES, MICROSECONDS, SHAPE, SPLIT, need, request_of
from .output import OutputFile, not_over, write_text
from .simulate import interpret

if TYPE_CHECKING:
    from overlap.schedule.measured import Measured
    from overlap.schedule.model import RankSchedule

Run = Callable[[Any, Machine | None], "Measured"]
"""Records on this rank of a group, with the machine whose times are predicted."""


@click.command("trace")
@click.argument("file", metavar="[FILE.py[:KERNEL]]", required=False)
@click.option("--op", metavar="OP", help=f"A prebuilt operator instead of FILE.py: {', '.join(OPERATORS)}.")
@click.option("--shape", type=SHAPE, required=True, help="Global sizes; of OP those of the whole product, M, N and K.")
@click.option("--plan", multiple=True, metavar="NAME|FILE.yaml", help="As for `compile`; of OP its own by default.")
@click.option("--on", multiple=True, metavar="TENSOR[AXIS]", help="Of FILE.py: as for `compile`.")
@click.option("--backend", metavar="NAME", help="What moves the chunks (default: as a call that names none).")
@click.option("--split", type=SPLIT, help="Chunks a shard is cut into, or weights.")
@click.option("--comm-sms", type=click.IntRange(min=0), help="Programs that move them, where the backend takes some.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Of FILE.py: as for `compile`.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True)
@click.option("--machine", metavar="NAME|FILE.yaml", help="Whose times are predicted (default: the setting `machine`).")
@click.option("--tile-us", type=MICROSECONDS, help="Microseconds a tile is predicted to take.")
@click.option("--ranks", type=click.IntRange(min=2), help="GPUs to run on; by default all that are visible.")
@click.option("--world", type=click.IntRange(min=1), help="Run on so many simulated ranks instead, without a GPU.")
@click.option("-o", "output", metavar="OUT.json", type=OutputFile(), default="trace.json", show_default=True)
def command(
    file: str | None,
    op: str | None,
    shape: dict[str, int],
    plan: tuple[str, ...],
    on: tuple[str, ...],
    backend: str | None,
    split: Split | None,
    comm_sms: int | None,
    settings: tuple[str, ...],
    dtype: str,
    machine: str | None,
    tile_us: float | None,
    ranks: int | None,
    world: int | None,
    output: str,
) -> None:
    """Record one call, tile by tile, and write it with the predicted one as a trace for Perfetto.

    Starts a process a GPU by itself; under torchrun it runs on the GPUs of that job.
    """
    if (file is None) == (op is None):
        said = "both FILE.py and --op" if op is not None else "neither FILE.py nor --op"
        raise UsageError(f"{said} to trace", help="overlap trace --op ag_gemm --shape M=8192,N=28672,K=8192")
    if backend in (AUTO, SERIAL):
        raise UsageError(f"--backend {backend}: tiles are recorded of one fused kernel", help="--backend copy_engine")
    if world is not None and (ranks is not None or in_job()):
        raise UsageError("--world is of simulated ranks", help="--ranks says on how many GPUs")
    options = {"split": split, "comm_sms": comm_sms}
    given = {name: value for name, value in options.items() if value is not None}
    if op is not None:
        operator_of(op, shape)
        if on or settings:
            raise UsageError(
                f"{'--on' if on else '--set'} with --op", help="the operator says what moves and how; leave it out"
            )
        if len(plan) > 1:
            raise UsageError(f"{len(plan)} plans for {op}", help="give --plan once")
        kwargs = {**given, **({"plan": plan[0]} if plan else {}), **({"backend": backend} if backend else {})}
        run = _operator(op, shape, dtype, tile_us, kwargs)
    else:
        assert file is not None
        not_over(output, file.partition(":")[0])
        cut = () if split is None else (f"split={split_text(split)}",)
        words = (*settings, *cut, *(() if comm_sms is None else (f"comm_sms={comm_sms}",)))
        run = _module(file, plan, on, backend, words, shape, dtype, tile_us)
    if world is not None:
        _finish(_simulated(run, world, machine), output)
        return
    count = gpus("trace on", "--world 2 traces simulated ranks")
    if not in_job():
        raise SystemExit(start(count, ranks, sys.argv[1:]))
    check_ranks(ranks)
    _on_gpus(run, machine, output)


def _operator(op: str, shape: dict[str, int], dtype: str, tile_us: float | None, kwargs: dict[str, Any]) -> Run:
    def run(group: Any, machine: Machine | None) -> Measured:
        import torch

        from overlap.ops.trace import trace_operator

        kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
        return trace_operator(op, shape, dtype=kind, group=group, machine=machine, tile_us=tile_us, **kwargs)

    return run


def _module(
    file: str,
    plan: tuple[str, ...],
    on: tuple[str, ...],
    backend: str | None,
    settings: tuple[str, ...],
    shape: dict[str, int],
    dtype: str,
    tile_us: float | None,
) -> Run:
    from overlap.pipeline import compile_source, need_sizes
    from overlap.pipeline.timing import tile_seconds_in

    request = request_of(file, plan=plan, on=on, world=None, backend=backend, settings=(*settings, "trace=1"))
    compilation = compile_source(request)
    need_sizes(compilation.program, shape)

    def tile(schedules: Sequence[RankSchedule], machine: Machine) -> float:
        if tile_us is not None:
            return tile_us * 1e-6
        return tile_seconds_in(compilation.program, schedules[0].axes, machine, sizes=shape, dtype=dtype)

    def run(group: Any, machine: Machine | None) -> Measured:
        from overlap.api.trace_module import trace_module

        moved = ", ".join(f"{p.name} on {t}" for p, t in zip(compilation.plans, request.ons, strict=True))
        title = (
            f"{compilation.program.kernel.name}: {moved}, {', '.join(f'{a}={n}' for a, n in shape.items())}, {dtype}"
        )
        with tempfile.TemporaryDirectory(prefix="overlap-") as folder:
            path = os.path.join(folder, os.path.basename(request.unit.path))
            write_text(path, compilation.module.text)
            search = (os.path.dirname(os.path.abspath(request.unit.path)),)
            return trace_module(
                path, shape, dtype=dtype, tile=tile, title=title, group=group, machine=machine, search=search
            )

    return run


def _simulated(run: Run, world: int, machine: str | None) -> Measured:
    need("trace", "torch", "triton")
    interpret()
    from overlap.sim import World

    on = machine_for(world, None, machine) if machine is not None else None
    found: list[Measured] = World(world, sms=get("sim_sms")).run(lambda group: run(group, on))
    return found[0]


def _on_gpus(run: Run, machine: str | None, output: str) -> None:
    import torch.distributed as dist

    join("cpu:gloo,cuda:nccl")
    try:
        world = dist.get_world_size()
        found = run(dist.group.WORLD, machine_for(world, None, machine) if machine is not None else None)
        if dist.get_rank() == 0:
            _finish(found, output)
    finally:
        dist.destroy_process_group()


def _finish(found: Measured, output: str) -> None:
    write_text(output, found.trace())
    click.echo(str(found))
    click.echo(f"wrote {output}: open it in https://ui.perfetto.dev")
