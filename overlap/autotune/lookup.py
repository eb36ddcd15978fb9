"""What is known of a problem, in the order in which sources count: lock, cache, shipped defaults.

Whatever a caller names comes before all of them, and what is built in behind: `overlap.api.tuned`.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import cache
from .entry import Entry
from .key import Key
from .lock import lock_path, pinned
from .shipped import shipped

LOCK, CACHE, SHIPPED = "lock", "cache", "shipped defaults"


@dataclass(frozen=True)
class Found:
    """An entry, and the source that has it; of a lock with its path."""

    entry: Entry
    source: str


def find(key: Key) -> Found | None:
    """The entry that counts for a problem, or None.

    Raises:
        UsageError: a lock file that is none.
    """
    path = lock_path()
    if path is not None:
        entry = pinned(path, key)
        if entry is not None:
            return Found(entry, f"{LOCK} {path}")
    for source, entry in ((CACHE, cache.read(key)), (SHIPPED, shipped(key))):
        if entry is not None:
            return Found(entry, source)
    return None
