"""What ran and why: `LastPlan`, and one log line for every operator and shape."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from overlap import settings
from overlap.chunkplan.plan import CommPlan
from overlap.schedule.arrival import arrival_times
from overlap.schedule.events import ItemSize
from overlap.schedule.machine import Machine

VERBS = {
    "gather": "gathers",
    "reduce_scatter": "reduce-scatters",
    "all_reduce": "all-reduces",
    "all_to_all": "exchanges",
}


@dataclass(frozen=True)
class LastPlan:
    """What the last call did.

    ``backend``: what moved chunks, or ``serial``; ``plan``: the plan's name, of a serial call what it went by
    (`overlap.api.small`); ``chunks``: transfers that arrive at this
    rank; ``shape``, ``dtype``: the communicated tensor's, global and as it travels; ``kind``: what happens to it
    (`VERBS`), several joined by ``+``; ``predicted_ms``: the transfers alone, by the event model;
    ``exposed_ms``: communication that computation did not hide, where it was measured; ``why_serial``: the reason,
    empty where a fused kernel ran; ``considered``: where ``auto`` chose, what each backend was predicted to take, the fastest
    first, and why others cannot; ``source``: who decided: ``keyword``, ``lock PATH``, ``cache``, ``shipped defaults``,
    ``built-in``, empty where nothing was to be decided; ``tail``: how many of the last tiles a second launch made.
    """

    operator: str
    backend: str
    plan: str
    chunks: int
    world: int
    rank: int
    shape: tuple[int, ...]
    dtype: str
    predicted_ms: float | None = None
    exposed_ms: float | None = None
    why_serial: str = ""
    kind: str = "gather"
    considered: tuple[str, ...] = ()
    source: str = ""
    tail: int = 0

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        verb = " and ".join(VERBS[kind] for kind in self.kind.split("+"))
        text = f"{self.operator}: {self.backend}, {verb} {shape} {self.dtype} over {self.world} ranks"
        if self.why_serial:
            return f"{text}{f' by {self.plan}' if self.plan != 'collective' else ''}: {self.why_serial}"
        text += f" by {self.plan} in {self.chunks} chunks"
        if self.predicted_ms is not None:
            text += f", transfers alone {self.predicted_ms:.3f} ms"
        if self.exposed_ms is not None:
            text += f", {self.exposed_ms:.3f} ms of it exposed"
        if self.tail:
            text += f", the last {f'{self.tail} tiles' if self.tail > 1 else 'tile'} by a second launch"
        return text


def predicted_ms(plan: CommPlan, rank: int, machine: Machine, itemsize: ItemSize) -> float:
    """When the last transfer to ``rank`` has landed if tiles hold nothing up, in milliseconds from the launch."""
    times = arrival_times(plan, machine, itemsize)
    return 1e3 * max((times[op] for op in plan.arriving(rank)), default=0.0)


_LOGGED: set[Any] = set()


def logger() -> logging.Logger:
    """The package's logger, at the level of the setting ``log_level`` unless the program chose one."""
    log = logging.getLogger("overlap")
    if log.level == logging.NOTSET:
        log.setLevel(settings.get("log_level").upper())
        if log.level < logging.WARNING and not log.hasHandlers():
            log.addHandler(logging.StreamHandler())
    return log


def announce(plan: LastPlan, *, warn: bool = False) -> None:
    """Logs one line the first time an operator runs a shape in one way; a forced fallback is a warning."""
    key = (
        plan.operator,
        plan.kind,
        plan.shape,
        plan.dtype,
        plan.world,
        plan.rank,
        plan.backend,
        plan.plan if plan.why_serial else "",
        plan.why_serial,
        plan.exposed_ms,
    )
    if key not in _LOGGED:
        _LOGGED.add(key)
        logger().log(logging.WARNING if warn else logging.INFO, "%s", plan)
