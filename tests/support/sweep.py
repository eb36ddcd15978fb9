"""How much of what could be tried is tried: all of it in a sweep (OVERLAP_SWEEP=1), a part where every push waits for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
Case = TypeVar("Case")


def examples(sweep: int) -> int:
    """Random examples of a property: a third of what a sweep draws. They are others in every run."""
    return sweep if SWEEP else max(20, sweep // 3)


def every(step: int, cases: Iterable[Case], start: int = 0) -> list[Case]:
    """Every ``step``-th case; all in a sweep.

    Of an `itertools.product` every combination of the first factors' values is there if ``step`` is not above the number of
    combinations of the others', and they take turns with all of theirs if it has no divisor in common with their sizes.
    """
    return list(cases) if SWEEP else list(cases)[start % step :: step]
