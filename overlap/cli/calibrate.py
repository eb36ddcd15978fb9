"""``overlap calibrate``: measures this machine, as a machine file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from overlap.errors import UsageError

from .on_gpus import check_ranks, gpus, in_job, join, start
from .output import OutputFile

SOURCE = "overlap calibrate"


@click.command("calibrate")
@click.option(
    "-o",
    "--output",
    type=OutputFile(),
    help="Machine file to write; by default h100x4.yaml, by what is here.",
)
@click.option("--name", help="The machine's name in that file; by default the file's.")
@click.option("--ranks", type=click.IntRange(min=2), help="GPUs to measure; by default all that are visible.")
def command(output: str | None, name: str | None, ranks: int | None) -> None:
    """Measure copies, products and launches of this machine's GPUs, in about half a minute.

    `predict`, `explain`, `compile` and the setting `machine` take the file as a machine. Starts a process a GPU by itself;
    under torchrun it measures the GPUs of that job. With OVERLAP_PROVIDER=nvshmem programs copy through NVSHMEM too.
    """
    count = gpus("measure", "`overlap predict --machine h100-nvlink` takes one by name")
    if not in_job():
        words = ["calibrate", *(["-o", output] if output else []), *(["--name", name] if name else [])]
        raise SystemExit(start(count, ranks, words))
    check_ranks(ranks)
    _measure(output, name)


def _measure(output: str | None, name: str | None) -> None:
    import torch.distributed as dist

    from overlap.autotune.calibrate.machinefile import machine_name, machine_text
    from overlap.autotune.calibrate.run import calibrate
    from overlap.schedule.machine import parse_machine

    join("nccl")
    try:
        with _progress(dist.get_rank() == 0) as say:
            found = calibrate(say=say)
        if dist.get_rank() == 0:
            called = name or (Path(output).stem if output else machine_name(found.device, found.ranks))
            path = Path(output or f"{called}.yaml")
            text = machine_text(found, called, SOURCE)
            parse_machine(text, str(path))
            _write(path, text)
            click.echo(f"{text}written: {path}; use it as --machine {path if path.is_absolute() else './' + str(path)}")
    finally:
        dist.destroy_process_group()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"`{path}` cannot be written: {(error.strerror or 'no reason given').lower()}", help="-o FILE"
        ) from None


@contextmanager
def _progress(shown: bool) -> Iterator[Callable[[str], None]]:
    """What is measured, on a terminal; nothing elsewhere."""
    if not shown or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("calibrate") as status:
        yield lambda text: status.update(f"calibrate: {text}")
