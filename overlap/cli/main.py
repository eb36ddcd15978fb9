"""The command group, and the one place where errors become text and exit codes."""

from __future__ import annotations

import os
import re
import shlex
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from overlap.errors import MissingDependencyError, OverlapError, SourceSpan, UsageError
from overlap.version import __version__

COMMANDS = (
    "compile",
    "simulate",
    "verify",
    "check",
    "explain",
    "trace",
    "predict",
    "calibrate",
    "tune",
    "cache",
    "build",
    "doctor",
)
"""In the order a user meets them; each is the module of that name in this room."""

PIPE_CLOSED, INTERRUPTED = 141, 130
"""Exit codes as of a process that SIGPIPE or SIGINT ended; 1 is a fault that was found, 2 a mistake in what was asked."""


class _Group(click.Group):
    """Imports a command when it is asked for, so that `doctor` runs where another command's packages are missing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            near = get_close_matches(cmd_name, COMMANDS, 1)
            ctx.fail(f"No such command {cmd_name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        try:
            return import_module(f"{__package__}.{cmd_name}").command
        except ImportError as error:
            return _unusable(cmd_name, error)


def _unusable(name: str, error: ImportError) -> click.Command:
    """Stands for a command whose module cannot be imported: listed with the reason, refused when run."""

    @click.command(name, help=f"Not usable here: {error}", context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def command(words: tuple[str, ...]) -> None:
        raise MissingDependencyError(
            f"`overlap {name}` cannot start: {error}", help="`overlap doctor` shows what is missing"
        ) from error

    return command


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="overlap")
def cli() -> None:
    """Fuses communication into Triton kernels: compile, simulate, explain."""


def on_command_line(words: list[str], message: str) -> SourceSpan:
    """The command line as a place, for mistakes that are in no file: the caret stands under the word in quotes."""
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
    code: Any
    stdout = sys.stdout
    try:
        for n, word in enumerate(words):
            words[n] = _printable(word)
            if words[n] != word:
                raise UsageError(
                    f"`{words[n]}` is no text in {sys.getfilesystemencoding()}, the encoding of file names here",
                    help="rename the file, or set PYTHONUTF8=1 where its name is UTF-8",
                )
        code = cli.main(words, prog_name="overlap", standalone_mode=False) or 0
    except SystemExit as ended:
        # Where a reader of standard output went away click puts another stream in its place and ends with 1, which
        # here says that a fault was found.
        code = PIPE_CLOSED if sys.stdout is not stdout else ended.code
    except OverlapError as error:
        place = on_command_line(words, error.message)
        if error.about and place.width < len(place.text):
            error.where = place  # the wrong word itself
        click.echo(error.at(place).render(), err=True)
        code = error.exit_code
    except click.ClickException as error:
        usage = error.ctx.get_usage() if isinstance(error, click.UsageError) and error.ctx is not None else ""
        message = error.format_message()
        # A group without a command: older versions of click print its help themselves.
        help_alone = type(error).__name__ == "NoArgsIsHelpError"
        mistake = UsageError(message, where=on_command_line(words, message), help=usage)
        click.echo(message if help_alone else mistake.render(), err=True)
        code = 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("overlap: interrupted", err=True)
        code = INTERRUPTED
    except OSError as error:
        # Whatever names a file of its own accord has been refused by name; what is left is a disk that is full, say.
        what = f"`{error.filename}`" if error.filename is not None else "standard output"
        message = f"{what} cannot be used: {(error.strerror or str(error)).lower()}"
        if error.filename is None:
            _forget_stdout()
        click.echo(UsageError(message, where=on_command_line(words, message)).render(), err=True)
        code = 2
    sys.exit(code)


def _printable(word: str) -> str:
    """A word of the command line, with bytes that are no text spelt out."""
    return word.encode("utf-8", "backslashreplace").decode()


def _forget_stdout() -> None:
    """What standard output still holds is not written when the process ends, which would fail once more."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
