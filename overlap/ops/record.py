"""What the last call of each prebuilt operator did."""

from __future__ import annotations

import torch

from overlap.api import LastPlan
from overlap.api.fallback import Choice
from overlap.api.report import announce
from overlap.chunkplan.document import nearest
from overlap.errors import UsageError
from overlap.schedule.operators import OPERATORS

_LAST: dict[str, LastPlan] = {}


def last_plan(operator: str = "ag_gemm") -> LastPlan | None:
    """What the last call of a prebuilt operator did in this process, or None before the first.

    Raises:
        UsageError: no such operator.
    """
    if not isinstance(operator, str):
        raise UsageError(f"operator is a {type(operator).__name__}", help=f"one of {', '.join(OPERATORS)}")
    if operator not in OPERATORS and operator not in _LAST:
        raise UsageError(f"no operator {operator!r}", help=nearest(operator, OPERATORS))
    return _LAST.get(operator)


def remember(said: LastPlan, warn: bool = False) -> None:
    """Keeps what a call did, and logs it where it is news; ``warn`` where a fallback was forced."""
    last = _LAST.get(said.operator)
    if last is not said and last != said:
        _LAST[said.operator] = said
        announce(said, warn=warn)


def serial_plan(
    operator: str,
    kind: str,
    choice: Choice,
    world: int,
    rank: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    went_by: str,
) -> LastPlan:
    """What a call did that went through a collective.

    Args:
        shape, dtype: of the communicated tensor, global.
        went_by: what communicated it (`overlap.api.small`).
    """
    return LastPlan(
        operator,
        "serial",
        went_by,
        0,
        world,
        rank,
        shape,
        str(dtype),
        why_serial=choice.why_serial,
        kind=kind,
        considered=choice.considered,
        source=choice.source,
    )
