"""The cache of tuned results: a JSON file a key, in ``tuned`` under the cache folder.

    ag_gemm_1f0c...e2.json   {"overlap tuned": 1, "key": {...}, "config": {...}, "ms": 0.42, ...}

Written under a lock and renamed into place, so that readers and other writers see whole files. A file that is none of ours, or
broken, is renamed to ``*.bad`` and told of: a cache never stops a program.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overlap.errors import OverlapError, SourceSpan, UsageError
from overlap.runtime.folders import cache_folder

from .entry import Entry
from .key import Key

MARK, VERSION = "overlap tuned", 1


def folder() -> Path:
    return cache_folder() / "tuned"


def path_of(key: Key) -> Path:
    """The file of a key's entry."""
    name = re.sub(r"\W+", "_", key.operator)[:60]
    return folder() / f"{name}_{key.digest}.json"


def read(key: Key) -> Entry | None:
    """The entry for a key, or None."""
    path = path_of(key)
    found = _read(path)
    if found is not None and found.key.digest != key.digest:
        _set_aside(path, "it is for another problem than its name says")
        return None
    return found


def write(entry: Entry) -> Path:
    """Keeps an entry in place of an older one; its file.

    Raises:
        UsageError: the folder cannot be written.
    """
    path = path_of(entry.key)
    with locked(path.with_name(path.name + ".lock")):
        write_json(path, {MARK: VERSION, **entry.to_json()})
    return path


def entries() -> Iterator[tuple[Path, Entry]]:
    """All entries, by name of their files; broken files are set aside."""
    for path in sorted(folder().glob("*.json")):
        found = _read(path)
        if found is not None:
            yield path, found


def clear(wanted: Callable[[Entry], bool] = lambda entry: True) -> int:
    """Removes the entries that are ``wanted``; how many."""
    count = 0
    for path, entry in list(entries()):
        if wanted(entry):
            path.unlink(missing_ok=True)
            path.with_name(path.name + ".lock").unlink(missing_ok=True)
            count += 1
    return count


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock file against other processes.

    Raises:
        UsageError: the folder cannot be written.
    """
    from filelock import FileLock

    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(str(path)).acquire()
    with held:
        yield


def write_json(path: Path, value: Any) -> None:
    """Writes a file beside its place and renames it there.

    Raises:
        UsageError: it cannot be written.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
        scratch.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        os.replace(scratch, path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {(error.strerror or str(error)).lower()}",
            help="name a folder that can be written; of the cache, with OVERLAP_CACHE_DIR",
        ) from None


def _read(path: Path) -> Entry | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        return _set_aside(path, str(error))
    try:
        value = json.loads(text)
        if not isinstance(value, dict) or value.pop(MARK, None) != VERSION:
            raise UsageError(f'it does not begin with "{MARK}": {VERSION}')
        return Entry.from_json(value, SourceSpan(str(path), 1))
    except json.JSONDecodeError as error:
        return _set_aside(path, f"line {error.lineno}: {error.msg}")
    except RecursionError:
        return _set_aside(path, "it is nested too deeply")
    except OverlapError as error:
        return _set_aside(path, error.message)


def _set_aside(path: Path, why: str) -> Entry | None:
    """None, once the file is out of the way."""
    aside = path.with_name(path.name + ".bad")
    try:
        os.replace(path, aside)
        said = f"set aside as {aside.name}"
    except OSError as error:
        said = f"left where it is ({(error.strerror or 'no reason given').lower()})"
    logging.getLogger("overlap").warning("%s is no tuned result (%s); %s", path, why, said)
    return None
