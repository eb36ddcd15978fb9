"""Defaults that ship with the package: templates/tuned, a file a kind of device, each entry with where its number stands.

    {"overlap tuned defaults": 1, "entries": [{"key": {"device": "H100", ...}, "config": {...}, "ms": ..., "cite": ...}]}

An entry's device is a word of the name that torch gives (``H100`` of ``NVIDIA H100 80GB HBM3``); its versions do not count.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from overlap.errors import SourceSpan, UsageError

from .entry import Entry
from .key import Key

MARK, VERSION = "overlap tuned defaults", 1
_PACKAGE = Path(__file__).resolve().parent.parent


def files() -> tuple[Path, ...]:
    """Inside an installed package, else beside it in a checkout."""
    for place in (_PACKAGE / "templates" / "tuned", _PACKAGE.parent / "templates" / "tuned"):
        if place.is_dir():
            return tuple(sorted(place.glob("*.json")))
    return ()


def read_defaults(path: Path) -> tuple[Entry, ...]:
    """The entries of a file.

    Raises:
        UsageError: it is none.
    """
    value = json.loads(path.read_text(encoding="utf-8"))
    where = SourceSpan(str(path), 1)
    if not isinstance(value, dict) or value.get(MARK) != VERSION:
        raise UsageError(f'defaults begin with "{MARK}": {VERSION}', where=where)
    return tuple(Entry.from_json(entry, where) for entry in value["entries"])


@cache
def defaults() -> tuple[Entry, ...]:
    """All shipped entries."""
    return tuple(entry for path in files() for entry in read_defaults(path))


def shipped(key: Key) -> Entry | None:
    """The default for a problem, or None."""
    words = key.device.split()
    for entry in defaults():
        if entry.key.device in words and replace(entry.key, device=key.device).problem == key.problem:
            return entry
    return None
