"""Files that commands write: named by ``-o``, written whole or not at all, and never over what was read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import click

from overlap.errors import UsageError


class OutputFile(click.Path):
    """The path of a file to write; ``-`` is standard output where a command says so."""

    def __init__(self, *, dash: bool = False) -> None:
        super().__init__(dir_okay=False, allow_dash=dash)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "" or (value == "-" and not self.allow_dash):
            self.fail(f"{value!r} names no file", param, ctx)
        folder = os.path.dirname(value)
        if folder and not os.path.isdir(folder):
            # Said before any work is done, not when its result is written.
            self.fail(f"there is no folder {folder!r}", param, ctx)
        return super().convert(value, param, ctx)


def not_over(output: str | None, source: str) -> None:
    """Refuses to write a command's result over the file that it is made of.

    Raises:
        UsageError: both are one file.
    """
    if output and os.path.exists(output) and os.path.exists(source) and os.path.samefile(output, source):
        raise UsageError(
            f"`{output}` is the file that this reads, and would be lost", help="-o with a name that is not taken"
        )


def write_text(path: str, text: str) -> None:
    """Writes a file whole or not at all, also when several ranks write the same one.

    A symbolic link stays, and what it leads to is written. What is no file, such as a pipe or ``/dev/stdout``, is
    written as it is: renaming a file into its place would take the device away from everybody.

    Raises:
        UsageError: the folder is missing or not writable.
    """
    target = Path(os.path.realpath(path))
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", encoding="utf-8", newline="\n") as f:
                f.write(text)
            return
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as f:
                f.write(text)
            os.chmod(temporary, mode)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(
            f"cannot write `{path}`: {error.strerror}", help="name a file in a folder that is there and may be written"
        ) from error
