"""A tuning from beginning to end, the same for operators and kernels: space, model, trials, winner, cache, lock, log.

rank 0's space and predictions -> Search on all ranks side by side -> Entry, written by rank 0, known to all
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from overlap.errors import RuntimeContractError, UsageError

from . import cache
from .config import Config
from .entry import Entry
from .ground import COMPILE_S, GroupGround, meeting_of
from .key import Key
from .lock import write_lock
from .log import Agreement, agreement, log_of
from .search import Outcome, Say, Search
from .trials import RankMeasurer

DEADLINE_S = 5.0
"""Seconds that a wait of a trial may last."""
BUDGET_S = 110.0
"""Seconds of a tuning, where the caller does not say."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Space:
    """What is tried.

    Args:
        default: what is built in, which the winner must beat.
        configs: the likeliest first.
        around: neighbours of a config.
        predicted: seconds, where the model has a say.
        refused: by reason, how many configs no trial was made of.
    """

    default: Config
    configs: tuple[Config, ...]
    around: Callable[[Config], Sequence[Config]] | None = None
    predicted: Mapping[Config, float] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    predict: Callable[[Config], float | None] = lambda config: None
    machine: str = ""


@dataclass(frozen=True)
class Tuned:
    """What a tuning found, the same on every rank.

    Args:
        entry: the winner; it stands in the cache now.
        default_ms: what is built in took; None where it did not run.
        log: as `overlap.autotune.log` has it.
        path: of the cache's file, on rank 0.
    """

    entry: Entry
    default_ms: float | None
    log: Mapping[str, Any]
    path: Path

    @property
    def agreement(self) -> Agreement:
        """How well the cost model agrees with the times."""
        return agreement(self.log)

    def __str__(self) -> str:
        log, entry = self.log, self.entry
        failed = Counter(row["failed"] for row in log["trials"] if "failed" in row)
        lines = [f"{entry.key}", f"  {entry.config}: {entry.ms:.4f} ms"]
        if self.default_ms is not None:
            lines[-1] += f", built in {self.default_ms:.4f} ms"
        lines.append(f"  {entry.tried} configs measured in {log['seconds']:.1f} s, {log['left']} left by the budget")
        lines += [f"  {count} refused: {why}" for why, count in log["refused"].items()]
        lines += [f"  {count} failed: {why}" for why, count in failed.items()]
        lines.append(f"  model: {self.agreement}")
        return "\n".join(lines)


def tune(
    group: Any,
    key: Key,
    space: Callable[[], Space],
    caller: Callable[[], Callable[[Config, Any], object]],
    device: torch.device,
    *,
    budget: float = BUDGET_S,
    deadline: float = DEADLINE_S,
    lock: Path | None = None,
    say: Say = lambda stage, done, count: None,
) -> Tuned:
    """Tunes one problem on a process group; collective.

    Args:
        key: of the problem, the same on every rank.
        space: made on every rank; what rank 0 made is tried.
        caller: makes the data, and gives what carries a config out on a group.
        device: of this rank.
        budget: seconds that trials may take.
        deadline: seconds that a wait of a trial may last.
        lock: pins the winner in this file as well.
        say: told of progress, on rank 0.

    Raises:
        UsageError: a budget or deadline that is none, ranks that tune different problems, or a cache that cannot be written.
        RuntimeContractError: no config ran; the first failure is named.
        DeadlineError: a rank has ended.
    """
    for name, value in (("budget", budget), ("deadline", deadline)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise UsageError(f"{name}={value!r}", help=f"{name} is a number of seconds, more than 0")
    rank = dist.get_rank(group)
    meet = meeting_of(group, f"overlap/tune/{next(_numbers)}", 2 * COMPILE_S + 4 * deadline)
    start = time.monotonic()
    made = _agree(meet, "the space of a tuning", space)
    call = _agree(meet, "the data of a tuning", caller)
    mine = (key, made.default, tuple(made.configs), dict(made.predicted), dict(made.refused))
    told = meet("the problem of a tuning", mine)
    for other, (theirs, *_) in enumerate(told):
        if theirs.problem != key.problem:
            raise UsageError(f"rank {rank} tunes {key}, rank {other} {theirs}", help="all ranks tune the same")
    key, default, configs, predicted, refused = told[0]

    def around(config: Config) -> Sequence[Config]:
        """Rank 0's: devices may differ."""
        near = made.around(config) if made.around is not None else ()
        return meet("the neighbours of a config", tuple(near))[0]  # type: ignore[no-any-return]

    ground = GroupGround(group, call, device, deadline=deadline, meet=meet)
    measurer = RankMeasurer(ground, meet)
    search = Search(measurer, max(1e-9, budget - (time.monotonic() - start)), say if rank == 0 else _silent)
    try:
        outcome = search.run(default, configs, around)
    finally:
        say("done", 0, 0)
    ground.close()
    for trial in outcome.trials:
        seconds = predicted.get(trial.config) or made.predict(trial.config)
        if seconds is not None:
            predicted[trial.config] = seconds
    log = log_of(key, outcome, machine=made.machine, predicted=predicted, refused=refused, budget=budget)
    entry = _entry(key, outcome)
    built_in = next((t.ms for t in outcome.trials if t.config == default and not t.failed), None)

    def keep() -> Path:
        path = cache.path_of(key)
        if rank == 0:
            path = cache.write(entry)
            if lock is not None:
                write_lock(lock, [entry])
        return path

    return Tuned(entry, built_in, log, _agree(meet, "the end of a tuning", keep))


def _entry(key: Key, outcome: Outcome) -> Entry:
    winner = outcome.winner
    if winner is None:
        why = next((trial.failed for trial in outcome.trials if trial.failed), "the budget left time for none")
        raise RuntimeContractError(
            f"no config of {key} ran: {why}", help="look at the first failure, or give more time"
        )
    tried = sum(1 for trial in outcome.trials if not trial.failed)
    return Entry(key, winner.config, round(winner.ms, 6), date.today().isoformat(), tried)


def _agree(meet: Callable[[str, Any], list[Any]], what: str, make: Callable[[], Any]) -> Any:
    """What ``make`` gives on this rank, once it has on all; raises on every rank where it does on any."""
    try:
        made = make()
    except Exception as error:
        meet(what, error)
        raise
    meet(what, None)
    return made


def _silent(stage: str, done: int, count: int) -> None:
    return None
