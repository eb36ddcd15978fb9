"""How much of what could be tried is tried: all of it in a sweep (OVERLAP_SWEEP=1), a part where every push waits for it, and of
either one shard of several (OVERLAP_SHARD=2/8)."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
Case = TypeVar("Case")


class Shard(NamedTuple):
    """One of ``count`` parts of the tests, ``number`` from 1 on. A test is in the same one on every machine and in every run, as
    long as it keeps its name and parameters."""

    number: int
    count: int

    @classmethod
    def read(cls, text: str) -> Shard:
        """What ``2/8`` says.

        Raises:
            ValueError: it says no such thing.
        """
        found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text.strip(), re.ASCII)
        shard = cls(*map(int, found.groups())) if found else cls(1, 0)
        if shard.number > shard.count:
            raise ValueError(f"{text!r} is no shard: write 2/8 for the second of eight, 1/8 to 8/8")
        return shard

    def has(self, test: str) -> bool:
        """Whether a test is in it, by pytest's id."""
        return zlib.crc32(test.encode()) % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def examples(sweep: int) -> int:
    """Random examples of a property: a third of what a sweep draws. They are others in every run."""
    return sweep if SWEEP else max(20, sweep // 3)


def every(step: int, cases: Iterable[Case], start: int = 0) -> list[Case]:
    """Every ``step``-th case; all in a sweep.

    Of an `itertools.product` every combination of the first factors' values is there if ``step`` is not above the number of
    combinations of the others', and they take turns with all of theirs if it has no divisor in common with their sizes.
    """
    return list(cases) if SWEEP else list(cases)[start % step :: step]
