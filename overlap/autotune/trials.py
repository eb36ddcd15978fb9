"""Trials that all ranks make at the same time, and agree on.

    rank 0   trial ........ median | told: (ms, "", seconds passed) | all take the slowest's
    rank 1   trial .. raises       | told: (None, "OutOfResources: ...") | the config is out on every rank

A rank that raises tells the others by the trial's own group at once (`Ground.fail`), where they may be waiting for it; one that
stalls in a kernel is let go by the deadline of waits. Either way the ground is given up, and the next trial has a new one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from overlap.errors import DeadlineError

from .config import Config
from .search import Measured


class Ground(Protocol):
    """Where trials are made: a group of its own, with memory and epochs that no other trial has used."""

    def run(self, config: Config, runs: int) -> float:
        """Median milliseconds of a run on this rank; raises whatever goes wrong. Leaves nothing behind if nothing does."""
        ...

    def fail(self, error: BaseException) -> None:
        """Tells the ground's group that this rank is out of the trial."""
        ...

    def renew(self) -> None:
        """Gives up the group and all that lies in it for a new one; collective."""
        ...


Meet = Callable[[str, Any], list[Any]]
"""Every rank's value, in rank order (`overlap.runtime.group.meeting.Meetings.meet` with its time)."""


class RankMeasurer:
    """Measures configs side by side with the other ranks.

    Args:
        ground: of this rank.
        meet: exchanges verdicts, apart from whatever trials exchange.
        clock: seconds.
    """

    def __init__(self, ground: Ground, meet: Meet, clock: Callable[[], float] = time.monotonic) -> None:
        self._ground = ground
        self._meet = meet
        self._clock = clock
        self._start = clock()
        self._number = 0

    def measure(self, config: Config, runs: int) -> Measured:
        """The slowest rank's median, or why there is none, the same on every rank.

        Raises:
            DeadlineError: a rank does not come to the verdict: it has ended.
        """
        self._number += 1
        ms, why, begun, until = math.nan, "", self._clock(), math.inf
        try:
            ms = self._ground.run(config, runs)
            if not math.isfinite(ms) or ms < 0:
                why = f"a time of {ms} ms"
        except Exception as error:  # any rank's any failure takes the config out, not the job
            why, until = reason(error), self._clock() - begun
            try:
                self._ground.fail(error)
            except Exception as more:
                why += f"; {reason(more)}"
        told = self._meet(f"the verdict of trial {self._number}", (ms, why, until, self._clock() - self._start))
        elapsed = told[0][-1]
        failed = [(secondary(theirs), when, rank, theirs) for rank, (_, theirs, when, _) in enumerate(told) if theirs]
        if not failed:
            return Measured(max(theirs for theirs, *_ in told), elapsed=elapsed)
        self._ground.renew()
        # Others fail because one did, and later; its own words say most.
        *_, rank, text = min(failed)
        return Measured(None, f"rank {rank}: {text}", elapsed)


def reason(error: BaseException) -> str:
    """An error in one line, with the class where it is not one of ours."""
    text = getattr(error, "message", "") or str(error)
    first = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return f"{type(error).__name__}: {first}"[:300]


def secondary(text: str) -> bool:
    """Whether a failure is that of waiting for a rank that failed otherwise."""
    return text.startswith(f"{DeadlineError.__name__}: ") or "raised instead of coming" in text or "out of step" in text
