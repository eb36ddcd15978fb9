"""``overlap.lock``: realizations pinned in a file that a user commits.

    {"overlap lock": 1, "pins": [{"key": {...}, "config": {...}}, ...]}

It is looked for in the working directory and above, or is the setting ``lock``. A pin is for a problem whatever the versions of
the kernel, torch, Triton and this package; `changes` says what was tuned since for the versions that are here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from overlap import settings
from overlap.errors import SourceSpan, UsageError
from overlap.runtime.folders import cache_folder

from .cache import locked, write_json
from .entry import Entry
from .key import Key, text_hash

NAME = "overlap.lock"
MARK, VERSION = "overlap lock", 1


def lock_path() -> Path | None:
    """The lock file that counts here, or None.

    Raises:
        UsageError: the setting names a file that is not there.
    """
    chosen = settings.get("lock")
    if chosen is not None:
        path = Path(chosen)
        if not path.is_file():
            raise UsageError(f"OVERLAP_LOCK={path} is no file", help="`overlap tune --lock` writes one; or unset it")
        return path
    try:
        here = Path.cwd()
    except OSError:  # the working directory is gone
        return None
    return next((place / NAME for place in (here, *here.parents) if (place / NAME).is_file()), None)


def read_lock(path: Path) -> tuple[Entry, ...]:
    """The pins of a lock file.

    Raises:
        UsageError: it cannot be read, or is none, with the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text", help="save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {(error.strerror or 'no reason given').lower()}") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        lines = text.splitlines() or [""]
        line = lines[min(error.lineno, len(lines)) - 1]
        raise UsageError(
            f"no JSON: {error.msg}",
            where=SourceSpan(str(path), error.lineno, error.colno, line),
            help="`overlap tune --lock` writes it",
        ) from None
    except RecursionError:
        raise UsageError("nested too deeply", where=SourceSpan(str(path), 1)) from None
    if not isinstance(value, dict) or value.get(MARK) != VERSION or not isinstance(value.get("pins"), list):
        raise UsageError(
            f'a lock begins with "{MARK}": {VERSION} and has "pins"',
            where=SourceSpan(str(path), 1, 1, text.splitlines()[0] if text else ""),
            help="`overlap tune --lock` writes it; a newer overlap may have written this one",
        )
    places = _lines_of_pins(text)
    spans = [SourceSpan(str(path), places[i] if i < len(places) else 1) for i in range(len(value["pins"]))]
    return tuple(Entry.from_json(pin, where) for pin, where in zip(value["pins"], spans, strict=True))


def _lines_of_pins(text: str) -> list[int]:
    """The lines on which pins have their configs, as this package writes them."""
    return [number for number, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith('"config"')]


def pinned(path: Path, key: Key) -> Entry | None:
    """The pin for a problem, or None."""
    return next((entry for entry in read_lock(path) if entry.key.problem == key.problem), None)


def write_lock(path: Path, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Pins entries, in place of pins for the same problems; all pins there are now.

    Raises:
        UsageError: what is there is no lock, or it cannot be written.
    """
    # Not beside the file, which stands among files of the user's.
    guard = cache_folder() / "locks" / f"{text_hash(str(path.resolve()))}.lock"
    with locked(guard):
        kept = {entry.key.problem: entry for entry in (read_lock(path) if path.is_file() else ())}
        kept.update({entry.key.problem: entry for entry in entries})
        pins = tuple(sorted(kept.values(), key=lambda entry: str(entry.key)))
        write_json(path, {MARK: VERSION, "pins": [entry.to_json() for entry in pins]})
    return pins


@dataclass(frozen=True)
class Change:
    """A pin, and what has been tuned for its problem otherwise (None: nothing).

    ``moved``: what its key says of source and versions that is otherwise here, as "triton 3.6.0 -> 3.9.0".
    """

    pin: Entry
    now: Entry | None
    moved: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return self.now is not None and self.now.config != self.pin.config


def changes(
    pins: Sequence[Entry], tuned: Iterable[Entry], versions: dict[str, str], *, device: str = ""
) -> tuple[Change, ...]:
    """What leaving pins for what was tuned with the versions that are here would change, in the order of the pins.

    Args:
        versions: that are here.
        device: if there is one, pins for others are left out.
    """
    by_problem: dict[object, Entry] = {}
    for entry in tuned:
        if dict(entry.key.versions) == versions:
            by_problem[entry.key.problem] = entry
    found = []
    for pin in pins:
        if device and pin.key.device != device:
            continue
        now = by_problem.get(pin.key.problem)
        was = dict(pin.key.versions)
        moved = [f"{name} {was[name]} -> {here}" for name, here in versions.items() if was.get(name, here) != here]
        if now is not None and now.key.source != pin.key.source:
            moved.append("the kernel's text")
        found.append(Change(pin, now, tuple(moved)))
    return tuple(found)
