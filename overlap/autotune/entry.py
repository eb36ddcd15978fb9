"""`Entry`: a tuned result as it stands in the cache, in `overlap.lock` and among the shipped defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overlap.errors import SourceSpan, UsageError

from .config import Config
from .key import Key


@dataclass(frozen=True)
class Entry:
    """The winner for a key.

    Args:
        ms: what it took on the slowest rank, the median; None where nobody measured it.
        date: of the measurement.
        tried: how many configs were measured.
        cite: where the numbers stand, of shipped ones.
    """

    key: Key
    config: Config
    ms: float | None = None
    date: str = ""
    tried: int = 0
    cite: str = ""

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"key": self.key.to_json(), "config": self.config.to_json()}
        for name in ("ms", "date", "tried", "cite"):
            if getattr(self, name):
                found[name] = getattr(self, name)
        return found

    @classmethod
    def from_json(cls, value: Any, where: SourceSpan | None = None) -> Entry:
        """The entry that a file holds.

        Raises:
            UsageError: it is none.
        """
        if not isinstance(value, Mapping) or not {"key", "config"} <= set(value):
            raise UsageError(
                'an entry is an object with "key" and "config"', where=where, help="run `overlap tune` again"
            )
        key, config = Key.from_json(value["key"], where), Config.from_json(value["config"], where)
        ms, tried = value.get("ms"), value.get("tried", 0)
        texts = {name: value.get(name, "") for name in ("date", "cite")}
        wrong = ms is not None and type(ms) not in (int, float) or type(tried) is not int
        if wrong or not all(isinstance(text, str) for text in texts.values()):
            raise UsageError('"ms" and "tried" are numbers, "date" and "cite" texts', where=where)
        return cls(key, config, None if ms is None else float(ms), tried=tried, **texts)
