"""The command group, and the one place where errors become text and exit codes."""

from __future__ import annotations

import re
import shlex
import sys

import click

from overlap.errors import OverlapError, SourceSpan, UsageError
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


def on_command_line(words: list[str], message: str) -> SourceSpan:
    """The command line as a place, for mistakes that are in no file: the caret stands under the word that the message quotes."""
    line = shlex.join(["overlap", *words])
    quoted = re.findall(r"[`'\"]([^`'\"]+)[`'\"]", message)
    for word in words:
        if any(q == word or q in re.split(r"[=,:\[\]]", word) for q in quoted):
            shown = shlex.quote(word)
            return SourceSpan("<command-line>", 1, line.index(shown) + 1, line, len(shown))
    return SourceSpan("<command-line>", 1, 1, line, len(line))


def main(args: list[str] | None = None) -> None:
    """Entry point of ``overlap`` and ``python -m overlap``; never returns, never prints a traceback for bad input."""
    words = list(sys.argv[1:] if args is None else args)
    try:
        code = cli.main(words, prog_name="overlap", standalone_mode=False) or 0
    except OverlapError as error:
        click.echo(error.at(on_command_line(words, error.message)).render(), err=True)
        code = error.exit_code
    except click.ClickException as error:
        usage = error.ctx.get_usage() if isinstance(error, click.UsageError) and error.ctx is not None else ""
        message = error.format_message()
        click.echo(UsageError(message, where=on_command_line(words, message), help=usage).render(), err=True)
        code = 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("overlap: interrupted", err=True)
        code = 2
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    sys.exit(code)
