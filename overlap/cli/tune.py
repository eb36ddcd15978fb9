"""``overlap tune``: measures how to carry out operators on this machine, and keeps the fastest."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overlap.autotune.lock import NAME
from overlap.autotune.log import agreement, read_log
from overlap.errors import UsageError
from overlap.schedule.operators import OPERATORS, operator_of

from .on_gpus import check_ranks, gpus, in_job, join, start
from .options import DTYPES, SHAPE

if TYPE_CHECKING:
    from overlap.autotune.session import Tuned


@click.command("tune")
@click.argument("op", required=False)
@click.option(
    "--shape", "shapes", type=SHAPE, multiple=True, help="M, N and K of the whole product. Repeat it for several."
)
@click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True)
@click.option("--ranks", type=click.IntRange(min=2), help="GPUs to tune on; by default all that are visible.")
@click.option("--budget", type=float, default=110.0, show_default=True, help="Seconds of trials for each shape.")
@click.option(
    "--lock", is_flag=False, flag_value=NAME, metavar="[FILE]", help=f"Pin the winners in FILE, by default {NAME}."
)
@click.option("--logs", type=click.Path(file_okay=False), help="Folder for a log of each shape, as JSON.")
@click.option(
    "--compare",
    "compared",
    type=click.Path(dir_okay=False),
    multiple=True,
    help="Only say how well the cost model agrees with the times of a log. Repeat it for several.",
)
def command(
    op: str | None,
    shapes: tuple[dict[str, int], ...],
    dtype: str,
    ranks: int | None,
    budget: float,
    lock: str | None,
    logs: str | None,
    compared: tuple[str, ...],
) -> None:
    """Measure how to carry out operator OP, and keep the fastest for later calls.

    Candidates are bounded by what the device can hold, ordered by the cost model (after `overlap calibrate`, of this machine)
    and measured on all ranks side by side. Starts a process a GPU by itself; under torchrun it runs on the GPUs of that job.
    """
    if compared:
        _compare(compared)
        return
    if op is None:
        raise UsageError(
            "nothing to tune", help=f"overlap tune OP --shape M=8192,N=28672,K=8192; OP is {', '.join(OPERATORS)}"
        )
    if not shapes:
        raise UsageError(f"no shape of {op}", help=f"overlap tune {op} --shape M=8192,N=28672,K=8192")
    for shape in shapes:
        operator_of(op, shape)
    if not budget > 0:
        raise UsageError(f"--budget {budget:g}", help="a number of seconds, more than 0")
    count = gpus("tune on", "a cache or a lock made on such a machine can be used here")
    if not in_job():
        words = ["tune", op, "--dtype", dtype, "--budget", str(budget)]
        words += [word for shape in shapes for word in ("--shape", _text(shape))]
        words += ["--lock", lock] if lock else []
        words += ["--logs", logs] if logs else []
        raise SystemExit(start(count, ranks, words))
    check_ranks(ranks)
    _tune(op, shapes, dtype, budget, lock, logs)


def _text(shape: dict[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in shape.items())


def _compare(paths: Sequence[str]) -> None:
    for path in paths:
        log = read_log(Path(path))
        click.echo(f"{path}: {agreement(log)}")


def _tune(
    op: str, shapes: Sequence[dict[str, int]], dtype: str, budget: float, lock: str | None, logs: str | None
) -> None:
    import torch
    import torch.distributed as dist

    from overlap.ops.tuning import tune

    join("cpu:gloo,cuda:nccl")
    named = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    try:
        for shape in shapes:
            first = dist.get_rank() == 0
            with _progress(first, f"{op} {_text(shape)}") as say:
                found = tune(op, shape, dtype=named, budget=budget, lock=lock, say=say)
            if first:
                click.echo(f"{found}\n  written: {found.path}" + (f", {lock}" if lock else ""))
                if logs:
                    click.echo(f"  log: {_write(Path(logs), op, shape, dtype, found)}")
    finally:
        dist.destroy_process_group()


def _write(folder: Path, op: str, shape: dict[str, int], dtype: str, found: Tuned) -> Path:
    sizes = "_".join(f"{name}{size}" for name, size in shape.items())
    path = folder / f"{op}_{sizes}_{dtype}_{found.entry.key.world}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found.log, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or "no reason given").lower()
        raise UsageError(f"`{path}` cannot be written: {reason}", help="--logs FOLDER") from None
    return path


@contextmanager
def _progress(shown: bool, what: str) -> Iterator[Any]:
    """A bar on a terminal; nothing elsewhere."""
    if not shown or not sys.stderr.isatty():
        yield lambda stage, done, count: None
        return
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda stage, done, count: bar.update(
            task, description=f"{what}: {stage}", completed=done, total=count or None
        )
