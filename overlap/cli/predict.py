"""``overlap predict``: will overlap pay on a machine, before any code is written."""

from __future__ import annotations

import click

from overlap.schedule.machine import load_machine
from overlap.schedule.predict import OPERATORS, predict

from .options import SHAPE


@click.command("predict")
@click.option("--op", required=True, metavar="OP", help=f"One of {', '.join(OPERATORS)}.")
@click.option("--world", type=click.IntRange(min=1), required=True, help="Number of ranks.")
@click.option("--shape", type=SHAPE, required=True, help="M, N and K, global.")
@click.option(
    "--machine",
    default="h100-nvlink",
    show_default=True,
    metavar="NAME|FILE.yaml",
    help="A machine by name (h100-nvlink, h100-nvlink-ib400, h800, pcie) or a file of your own.",
)
@click.option("--dtype", default="bf16", show_default=True, help="Element type: bf16, fp16, fp32, fp8.")
@click.option("--split", type=click.IntRange(min=1), default=1, show_default=True, help="Chunks a shard is cut into.")
@click.option("--break-even/--no-break-even", default=True, help="Look for the N and K from which on it pays.")
def command(op: str, world: int, shape: dict[str, int], machine: str, dtype: str, split: int, break_even: bool) -> None:
    """Predict whether overlapping OP pays, where it breaks even, and what the ceiling is."""
    found = predict(
        op, world=world, sizes=shape, machine=load_machine(machine), dtype=dtype, split=split, break_even=break_even
    )
    click.echo(str(found))
