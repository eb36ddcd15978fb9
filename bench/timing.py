"""Rounds of timed calls, and what is made of their times.

Every round visits each contender once, in an order shuffled anew and the same on all ranks, because a contender's aftermath
can cost the next one a third of a millisecond. A contender's number is its median (or another quantile) over the rounds, on
the rank where that is highest.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from common import CALL_LIMIT_S, Contender, Session, Unavailable, Watchdog, said_by

QUEUE_CALLS = 4
"""Calls that are enqueued ahead of the device, of one contender."""
CYCLES_A_CALL = 300_000
"""Of the device's sleep, to begin with: 0.15 ms of an H100."""
MOST_CYCLES = 400_000_000
"""A fifth of a second; a host that needs longer for a queue waits for something."""

Visit = Callable[[Contender], list[float]]


def rounds_of(names: Sequence[str], rounds: int, seed: int) -> Iterator[list[str]]:
    """``rounds`` orders of the names, each shuffled anew, the same on every rank."""
    shuffler = random.Random(seed)
    for _ in range(rounds):
        order = list(names)
        shuffler.shuffle(order)
        yield order


class Queue:
    """A visit of `QUEUE_CALLS` calls with the host ahead; how long the device sleeps for that is remembered by contender."""

    def __init__(self, session: Session, calls: int = QUEUE_CALLS) -> None:
        self._session = session
        self._calls = calls
        self._cycles: dict[str, int] = {}

    def __call__(self, contender: Contender) -> list[float]:
        """Collective: milliseconds of each call.

        Raises:
            Unavailable: the host is never ahead.
        """
        cycles = self._cycles.get(contender.name, CYCLES_A_CALL * self._calls)
        while cycles <= MOST_CYCLES:
            times, ahead = self._session.queue(contender.call, self._calls, cycles)
            if self._session.everywhere(ahead):
                self._cycles[contender.name] = cycles
                return times
            cycles *= 2
        raise Unavailable("the host does not get ahead of the device")


def sample(
    session: Session,
    watchdog: Watchdog,
    contenders: dict[str, Contender],
    visit: Visit,
    *,
    rounds: int,
    seed: int,
    reasons: dict[str, str] | None = None,
) -> dict[str, list[float]]:
    """Milliseconds of each contender's calls on this rank; one that fails on a rank is given up on all.

    Args:
        visit: times a contender in its turn.
        reasons: gets why one was given up.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for order in rounds_of(tuple(contenders), rounds, seed):
        failed: dict[str, str] = {}
        for name in order:
            if name not in times:
                continue
            with watchdog.step(name, CALL_LIMIT_S):
                try:
                    times[name] += visit(contenders[name])
                except Exception as error:
                    session.synchronize()  # raises again where the device is lost
                    failed[name] = said_by(error)
            if session.cuda and times[name]:
                time.sleep(min(0.02, max(0.001, 2e-3 * times[name][-1])))
        named = list(times)
        for name, bad in zip(named, session.largest([float(name in failed) for name in named]), strict=True):
            if bad:
                why = session.reason(failed.get(name, ""))
                session.say(f"  {name} given up: {why}")
                del times[name]
                if reasons is not None:
                    reasons[name] = why
    return times


def worst(
    session: Session, times: dict[str, list[float]], of: Callable[[Sequence[float]], float] = statistics.median
) -> dict[str, float]:
    """Collective: what ``of`` makes of each contender's times, on the rank where that is highest."""
    return dict(zip(times, session.largest([of(values) for values in times.values()]), strict=True))


def p99(values: Sequence[float]) -> float:
    """The smallest of the values that 99 in 100 of them do not exceed: of fewer than 100 the largest."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def measure(
    session: Session,
    watchdog: Watchdog,
    contenders: dict[str, Contender],
    *,
    rounds: int,
    seed: int,
    reasons: dict[str, str] | None = None,
) -> dict[str, float]:
    """Milliseconds of each contender's single calls: the median over the rounds, on the rank where that is highest."""

    def single(contender: Contender) -> list[float]:
        return [session.time(contender.call)]

    return worst(session, sample(session, watchdog, contenders, single, rounds=rounds, seed=seed, reasons=reasons))
