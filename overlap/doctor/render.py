"""An `Examination` as plain text, as tables on a terminal, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

from .model import Examination, Verdict

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, headings, rows."""


def as_json(found: Examination) -> str:
    """One JSON object: the fields of `Examination` and ``ok``."""
    return json.dumps({"ok": found.ok, **dataclasses.asdict(found)}, indent=2)


def as_text(found: Examination) -> str:
    """The report in plain columns, no line wrapped."""
    lines = []
    for title, headings, rows in tables(found):
        lines += ["", title]
        widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
        for row in [headings, *rows]:
            lines.append("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return "\n".join([*lines[1:], "", summary(found)])


def print_tables(found: Examination) -> None:
    """The report as tables on the terminal.

    Raises:
        ImportError: rich is not installed.
    """
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    for title, headings, rows in tables(found):
        table = RichTable(title=title, title_justify="left", title_style="bold", box=None, header_style="dim")
        for heading in headings:
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(*(_escape(cell) for cell in row))
        console.print(table)
        console.print()
    console.print(_escape(summary(found)))


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def summary(found: Examination) -> str:
    """The last line."""
    working = [name for name, part in found.parts.items() if part.ok]
    names = ", ".join(working) or "nothing"
    verb = "work" if len(working) > 1 else "works"
    return f"doctor: {'ok' if found.ok else 'the compiler half does not work'}: {names} {verb} here"


def _say(verdict: Verdict, good: str = "yes") -> str:
    if verdict.ok:
        return f"{good}, {verdict.why}" if verdict.why else good
    return f"no: {verdict.why}" if verdict.why else "no"


def tables(found: Examination) -> Iterator[Table]:
    """The report's tables, top to bottom."""
    yield "what works", ("part", "works"), [(name, _say(part)) for name, part in found.parts.items()]
    yield "versions", ("what", "version", "trouble"), list(_versions(found))
    if found.devices:
        devices = [
            (str(d.index), d.name, str(d.sms), f"{d.memory / 2**30:.0f} GiB", f"{d.capability[0]}.{d.capability[1]}")
            for d in found.devices
        ]
        yield "devices", ("GPU", "name", "SMs", "memory", "capability"), devices
        headings = ("GPU", *(str(d.index) for d in found.devices))
        yield "peer access", headings, [(str(i), *map(_cell, row)) for i, row in enumerate(found.peers)]
    else:
        yield "devices", ("none",), [(found.parts["GPUs"].why or "no GPU",)]
    providers = [
        (name, "yes" if name == found.provider else "no", _say(verdict)) for name, verdict in found.providers.items()
    ]
    yield "symmetric memory", ("provider", "taken", "usable"), providers
    if found.abilities:
        headings, *rows = found.abilities
        yield "what backends can do", headings, rows
    abilities = [
        (b.name, " ".join(b.directions), _say(b.compile), _say(b.simulate), _say(b.run)) for b in found.backends
    ]
    yield "backends here", ("backend", "directions", "compile", "simulate", "run here"), abilities
    settings = [(s.variable, f"{s.value} ({s.error})" if s.error else s.value, s.source) for s in found.settings]
    settings += [(name, "not a setting", "environment") for name in found.unknown]
    yield "settings", ("variable", "value", "from"), settings
    environment = [("NVLink multicast off", _say(found.multicast))]
    environment += list(found.environment.items())
    yield "environment", ("what", "value"), environment


def _versions(found: Examination) -> Iterator[Sequence[str]]:
    yield "overlap", found.overlap, ""
    yield "python", found.python, ""
    yield "platform", found.platform, ""
    yield "driver", found.driver or "none", ""
    yield "cuda (torch)", found.cuda or "none", ""
    yield "nccl", found.nccl or "none", ""
    for package in found.packages:
        yield package.name, package.version or "none", package.error


def _cell(reached: bool) -> str:
    return "yes" if reached else "no"
