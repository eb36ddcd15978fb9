"""Successive halving: many configs measured briefly, the best of them longer, and then what lies near the best.

    explore   all, few runs -> the best third, four times as many runs -> ...
    refine    neighbours of the best, the same
    decide    the best few and the one that is built in, most runs; the first of those within a margin wins

Ranks walk through this side by side. Whatever decides is the same on all of them: times are the slowest rank's, and the seconds
that have passed are rank 0's (`trials`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .config import Config

RUNS = (5, 20, 60)
"""Timed runs of a trial, by rung."""
KEPT = 3
"""One of so many goes on to the next rung."""
FINALISTS = 3
CLOSE = 1.2
"""Times the best, beyond which a config is no finalist."""
TRIAL_MS = 1000.0
"""Timed runs of a trial take no longer than about this, as far as the fewest runs allow."""
MARGIN = 0.01
"""Times that differ by less are the same: the config that came first wins."""
EXPLORE = 0.55
"""Of the budget, the share of the first stage, if there is a second."""
DECIDE = 0.12
"""The share that is kept for the last stage."""


@dataclass(frozen=True)
class Measured:
    """What a trial found: the slowest rank's median, or why there is none; ``elapsed``: rank 0's seconds since the start."""

    ms: float | None
    why: str = ""
    elapsed: float = 0.0


class Measurer(Protocol):
    """Measures a config on all ranks."""

    def measure(self, config: Config, runs: int) -> Measured: ...


@dataclass
class Trial:
    """A config and all that was measured of it: the last time counts, which more runs than those before stand behind."""

    config: Config
    times: list[tuple[int, float]] = field(default_factory=list)
    failed: str = ""

    @property
    def ms(self) -> float:
        return self.times[-1][1] if self.times and not self.failed else math.inf


@dataclass(frozen=True)
class Outcome:
    """The winner (None: no config ran), all trials in the order of their first, and the seconds that passed.

    ``left``: configs that the budget left unmeasured.
    """

    winner: Trial | None
    trials: tuple[Trial, ...]
    seconds: float
    left: int


Say = Callable[[str, int, int], None]
"""Told the stage, trials done in it, and trials there are."""


class Search:
    """One search.

    Args:
        measurer: of all ranks.
        budget: seconds, by rank 0's clock; a trial is only begun if one as long as the longest of its kind fits.
        say: told of progress.
    """

    def __init__(self, measurer: Measurer, budget: float, say: Say = lambda stage, done, count: None) -> None:
        self._measurer = measurer
        self._budget = budget
        self._say = say
        self._trials: dict[Config, Trial] = {}
        self._elapsed = 0.0
        # Of first trials, which compile, and of later ones.
        self._longest = {False: 0.0, True: 0.0}
        self._left: set[Config] = set()

    def run(
        self, default: Config, configs: Sequence[Config], refine: Callable[[Config], Sequence[Config]] | None = None
    ) -> Outcome:
        """Measures ``default``, which is built in, then ``configs``, the likeliest first, and neighbours of the best.

        Args:
            refine: the neighbours of a config; they are measured as far as the budget goes.
        """
        first = list(dict.fromkeys((default, *configs)))
        share = EXPLORE if refine is not None else 1 - DECIDE
        best = self._halve("explore", first, share * self._budget)
        if refine is not None and best:
            near = [config for config in refine(best[0].config) if config not in self._trials]
            self._halve("refine", near, (1 - DECIDE) * self._budget)
        able = sorted((t for t in self._trials.values() if t.ms < math.inf), key=lambda trial: trial.ms)
        finalists = [trial for trial in able[:FINALISTS] if trial.ms <= CLOSE * able[0].ms]
        built_in = self._trials.get(default)
        if built_in is not None and built_in.ms < math.inf and built_in not in finalists:
            finalists.append(built_in)
        self._rung("decide", [trial.config for trial in finalists], len(RUNS) - 1, self._budget)
        able = [trial for trial in finalists if trial.ms < math.inf]
        winner = None
        if able:
            least = min(trial.ms for trial in able)
            order = {trial.config: i for i, trial in enumerate(self._trials.values())}
            near_best = [trial for trial in able if trial.ms <= least * (1 + MARGIN)]
            winner = min(near_best, key=lambda trial: order[trial.config])
        return Outcome(winner, tuple(self._trials.values()), self._elapsed, len(self._left - set(self._trials)))

    def _halve(self, stage: str, configs: Sequence[Config], until: float) -> list[Trial]:
        """The best of the last rung, the fastest first."""
        going: list[Trial] = []
        for rung in range(len(RUNS) - 1):
            measured = self._rung(stage, configs, rung, until)
            if not measured:
                break
            going = sorted(measured, key=lambda trial: trial.ms)[: max(1, math.ceil(len(measured) / KEPT))]
            configs = [trial.config for trial in going]
            if len(configs) == 1:
                break
        return going

    def _rung(self, stage: str, configs: Sequence[Config], rung: int, until: float) -> list[Trial]:
        """The trials that went well."""
        runs, good = RUNS[rung], []
        for number, config in enumerate(configs):
            self._say(stage, number, len(configs))
            known = self._trials.get(config)
            if known is not None and (known.failed or known.times and known.times[-1][0] >= runs):
                if not known.failed:
                    good.append(known)
                continue
            if self._trials and self._elapsed + self._longest[known is not None] > until:
                self._left.update(configs[number:])
                # What an earlier rung found of the others still counts.
                good += [t for t in map(self._trials.get, configs[number:]) if t is not None and t.ms < math.inf]
                break
            trial = self._trials.setdefault(config, Trial(config))
            fewer = runs if not trial.times else max(RUNS[0], min(runs, int(TRIAL_MS / max(1e-6, trial.ms))))
            found = self._measurer.measure(config, fewer)
            again = known is not None
            self._longest[again] = max(self._longest[again], found.elapsed - self._elapsed)
            self._elapsed = found.elapsed
            if found.ms is None:
                trial.failed = found.why or "no reason given"
            else:
                trial.times.append((runs, found.ms))
                good.append(trial)
        return good
