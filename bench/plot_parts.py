"""What all pictures of results share: sizes, and the words that say how one is made and from what."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import record
from svg import Sheet

Result = tuple[Path, dict[str, Any]]
"""A file and what stands in it."""

WIDTH = 760
LEFT, RIGHT = 170, 52
"""Room for the names of shapes, and for what is beyond the longest bar."""
ROW = 16
COMMAND = "python bench/plot.py"


def about(what: str, results: Iterable[Result]) -> str:
    """What is shown, how it is made and from what."""
    names = ", ".join(_relative(path) for path, _ in results)
    return f"{what} Made by `{COMMAND}` from {names}."


def _relative(path: Path) -> str:
    resolved = path.resolve()
    return resolved.relative_to(record.ROOT).as_posix() if resolved.is_relative_to(record.ROOT) else path.name


def footer(sheet: Sheet) -> None:
    """The last line."""
    sheet.text(
        16, sheet.height + 20, f"{COMMAND}; files and commands of the measurements: docs/results.md", "faint small"
    )
