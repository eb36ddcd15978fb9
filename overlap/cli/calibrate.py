"""``overlap calibrate``: measures this machine, as a machine file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from overlap.doctor.children import NO_MULTICAST
from overlap.errors import MissingDependencyError, UsageError

SOURCE = "overlap calibrate"


@click.command("calibrate")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="Machine file to write; by default h100x4.yaml, by what is here.",
)
@click.option("--name", help="The machine's name in that file; by default the file's.")
@click.option("--ranks", type=click.IntRange(min=2), help="GPUs to measure; by default all that are visible.")
def command(output: str | None, name: str | None, ranks: int | None) -> None:
    """Measure copies, products and launches of this machine's GPUs, in about half a minute.

    `predict`, `explain`, `compile` and the setting `machine` take the file as a machine. Starts a process a GPU by itself;
    under torchrun it measures the GPUs of that job.
    """
    count = _gpus()
    if "RANK" not in os.environ:
        raise SystemExit(_start(count, ranks, output, name))
    if ranks is not None and ranks != int(os.environ["WORLD_SIZE"]):
        raise UsageError(
            f"--ranks {ranks} in a job of {os.environ['WORLD_SIZE']}", help="leave --ranks out under torchrun"
        )
    _measure(output, name)


def _gpus() -> int:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(f"nothing can be measured: {error}", help="pip install torch triton") from error
    if not torch.cuda.is_available():
        raise UsageError(
            "there is no GPU here to measure", help="`overlap predict --machine h100-nvlink` takes one by name"
        )
    return torch.cuda.device_count()


def _start(count: int, ranks: int | None, output: str | None, name: str | None) -> int:
    """Runs the command again in a process a GPU; its exit status."""
    wanted = ranks or count
    if wanted < 2 or wanted > count:
        raise UsageError(
            f"{wanted} ranks on {count} GPU{'s' * (count != 1)}", help="links join two GPUs or more of one host"
        )
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(wanted)]
    words += ["-m", "overlap", "calibrate"]
    words += ["-o", output] if output else []
    words += ["--name", name] if name else []
    environment = {**NO_MULTICAST, "OMP_NUM_THREADS": "1", **os.environ}
    return subprocess.run(words, env=environment, check=False).returncode


def _measure(output: str | None, name: str | None) -> None:
    import torch
    import torch.distributed as dist

    from overlap.autotune.calibrate.machinefile import machine_name, machine_text
    from overlap.autotune.calibrate.run import calibrate
    from overlap.schedule.machine import parse_machine

    os.environ.update({key: os.environ.get(key, value) for key, value in NO_MULTICAST.items()})
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
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
