"""``overlap doctor``: what this machine can do, also where half of it is missing."""

from __future__ import annotations

import sys

import click

from overlap.doctor import as_json, as_text, examine
from overlap.doctor.render import print_tables


@click.command("doctor")
@click.option("--json", "machine", is_flag=True, help="Print one JSON object.")
def command(machine: bool) -> None:
    """Show versions, devices, symmetric memory, and what each backend could do here and why not."""
    found = examine()
    if machine:
        click.echo(as_json(found))
    elif sys.stdout.isatty():
        try:
            print_tables(found)
        except ImportError:
            click.echo(as_text(found))
    else:
        click.echo(as_text(found))
    if not found.ok:
        raise SystemExit(1)
