"""The log of a tuning: every config, what it was predicted to take and what it took; and how well the two agree.

{"overlap tuning": 1, "key": {...}, "machine": "h100-nvlink", "trials": [{"config": {...}, "predicted_ms": 0.41,
 "times": [[5, 0.44], [20, 0.43]]}, ...], "refused": {"more shared memory than a block has": 12}, ...}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap.errors import SourceSpan, UsageError

from .config import Config
from .key import Key
from .search import Outcome

MARK, VERSION = "overlap tuning", 1
TOP = 5


def log_of(
    key: Key,
    outcome: Outcome,
    *,
    machine: str,
    predicted: Mapping[Config, float],
    refused: Mapping[str, int],
    budget: float,
) -> dict[str, Any]:
    """The log as JSON has it.

    Args:
        predicted: seconds, of the configs that the model has a time for.
    """
    trials = []
    for trial in outcome.trials:
        row: dict[str, Any] = {"config": trial.config.to_json()}
        if trial.config in predicted:
            row["predicted_ms"] = round(1e3 * predicted[trial.config], 6)
        row.update(
            {"failed": trial.failed} if trial.failed else {"times": [[n, round(ms, 6)] for n, ms in trial.times]}
        )
        trials.append(row)
    winner = outcome.winner
    return {
        MARK: VERSION,
        "key": key.to_json(),
        "machine": machine,
        "budget_s": budget,
        "seconds": round(outcome.seconds, 3),
        "left": outcome.left,
        "refused": dict(sorted(refused.items())),
        "winner": None if winner is None else {"config": winner.config.to_json(), "ms": round(winner.ms, 6)},
        "trials": trials,
    }


@dataclass(frozen=True)
class Agreement:
    """How well the model agrees with measurement.

    Args:
        count: configs with both a prediction and a time.
        spearman: correlation of the two rankings, from -1 to 1; None of fewer than three, or where one ranking is all ties.
        best: the least time measured, ms, of all configs.
        best_of_top: the least of the `TOP` that the model likes best, of those measured.
    """

    count: int
    spearman: float | None
    best: float | None
    best_of_top: float | None

    @property
    def behind(self) -> float | None:
        """How much longer the best of the model's first takes than the best of all, as a share."""
        if not self.best or self.best_of_top is None:
            return None
        return self.best_of_top / self.best - 1

    def __str__(self) -> str:
        rank = "no rank correlation" if self.spearman is None else f"rank correlation {self.spearman:.3f}"
        text = f"{rank} over {self.count} configs"
        if self.behind is not None:
            text += f"; the best of the model's top {TOP} is {100 * self.behind:.1f} % behind the best measured"
        return text


def agreement(log: Mapping[str, Any]) -> Agreement:
    """How well predictions and times of a log agree. Times are each config's last: those of more runs replace those of fewer."""
    timed = [(row.get("predicted_ms"), row["times"][-1][1]) for row in log["trials"] if row.get("times")]
    pairs = [(p, ms) for p, ms in timed if p is not None]
    first = sorted(pairs)[:TOP]
    return Agreement(
        len(pairs),
        spearman([p for p, _ in pairs], [ms for _, ms in pairs]),
        min((ms for _, ms in timed), default=None),
        min((ms for _, ms in first), default=None),
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values share the mean of their ranks. None where there is none."""
    if len(one) < 3:
        return None
    a, b = _ranks(one), _ranks(other)
    middle = (len(one) - 1) / 2
    cross = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    spread = sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b)
    return cross / float(spread) ** 0.5 if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    found, start = [0.0] * len(values), 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            found[place] = (start + end) / 2
        start = end + 1
    return found


def read_log(path: Path) -> dict[str, Any]:
    """A log file.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {(error.strerror or 'no reason given').lower()}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"no JSON: {error.msg}", where=SourceSpan(str(path), error.lineno, error.colno)) from None
    where = SourceSpan(str(path), 1)
    if not isinstance(value, dict) or value.get(MARK) != VERSION or not isinstance(value.get("trials"), list):
        raise UsageError(
            f'a log begins with "{MARK}": {VERSION}', where=where, help="`overlap tune --logs FOLDER` writes one"
        )
    for row in value["trials"]:
        times = row.get("times", []) if isinstance(row, dict) else None
        good = isinstance(times, list) and all(isinstance(t, list) and len(t) == 2 and _number(t[1]) for t in times)
        if not good or not (row.get("predicted_ms") is None or _number(row["predicted_ms"])):
            raise UsageError("a trial of this log is none", where=where, help="`overlap tune --logs FOLDER` writes one")
    return value


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
