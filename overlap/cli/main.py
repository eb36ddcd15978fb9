"""The command group, and the one place where errors become text and exit codes."""

from __future__ import annotations

import sys

import click

from overlap.errors import OverlapError
from overlap.version import __version__

from . import build, check, compile, explain, simulate, verify


class _Group(click.Group):
    """Keeps the commands in the order a user meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="overlap")
def cli() -> None:
    """Fuses communication into Triton kernels: compile, simulate, explain."""


for module in (compile, simulate, verify, check, explain, build):
    cli.add_command(module.command)


def main(args: list[str] | None = None) -> None:
    """Entry point of ``overlap`` and ``python -m overlap``; never returns, never prints a traceback for bad input."""
    try:
        code = cli.main(args, prog_name="overlap", standalone_mode=False) or 0
    except OverlapError as error:
        click.echo(error.render(), err=True)
        code = error.exit_code
    except click.ClickException as error:
        click.echo(f"overlap: {error.format_message()}", err=True)
        code = 2
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
    except (click.Abort, KeyboardInterrupt):
        click.echo("overlap: interrupted", err=True)
        code = 2
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    sys.exit(code)
