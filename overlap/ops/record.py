"""What the last call of each prebuilt operator did."""

from __future__ import annotations

from overlap.api import LastPlan
from overlap.api.report import announce

_LAST: dict[str, LastPlan] = {}


def last_plan(operator: str = "ag_gemm") -> LastPlan | None:
    """What the last call of a prebuilt operator did in this process, or None before the first."""
    return _LAST.get(operator)


def remember(said: LastPlan, *, warn: bool = False) -> None:
    """Keeps what a call did, and logs it where it is news; ``warn`` where a fallback was forced."""
    if _LAST.get(said.operator) != said:
        _LAST[said.operator] = said
        announce(said, warn=warn)
