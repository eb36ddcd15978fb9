"""What a check of a generated module, of a plan alone or of a user's own host code found, as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from overlap.chunkplan.plan import CommPlan
from overlap.errors import OverlapError

NOT_COVERED = (
    "not covered: what a compiler may reorder (the compile tier checks that), 32-bit wrap-around, "
    "threads inside a program beyond the barrier rule"
)


@dataclass
class Fault:
    """A fault and the seed that shows it again; ``kind`` is the word reports use."""

    seed: int
    error: OverlapError

    @property
    def kind(self) -> str:
        return getattr(self.error, "kind", "error")


@dataclass
class SimReport:
    """The result of `check_module`: seeds run, faults found, the largest difference from the original.

    ``original`` is the path of the original; ``largest_difference`` is absolute, over all seeds (0 when bitwise equal).
    """

    module: str
    original: str
    world: int
    shape: dict[str, int]
    dtype: str
    launches: int
    sms: int
    seeds: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    largest_difference: float = 0.0
    tolerance: float = 0.0
    steps: int = 0

    @property
    def ok(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        sizes = " ".join(f"{axis}={extent}" for axis, extent in self.shape.items())
        ranks = f"{self.world} rank{'s' if self.world != 1 else ''}"
        lines = [
            f"{self.module}: {ranks} of {self.sms} SMs, {sizes}, {self.dtype}, "
            f"{self.launches} launches in a row with new data",
            f"original: {self.original}",
            f"seeds run: {_ranges(self.seeds)} ({self.steps} scheduling points)",
        ]
        if self.ok:
            equal = self.largest_difference == 0.0
            agreement = (
                "bitwise equal"
                if equal
                else f"largest difference {self.largest_difference:.3g}, allowed {self.tolerance:.3g}"
            )
            lines.append(f"against the original: {agreement}; no race, deadlock, stray access or missing write")
        lines.append(NOT_COVERED)
        for fault in self.faults:
            lines += ["", fault.error.render()]
        lines.append("ok" if self.ok else _last_line(self.faults[0], "--seed {}"))
        return "\n".join(lines)


@dataclass
class PlanReport:
    """The result of `check_plan`: seeds run, orders explored, faults found.

    ``explored`` runs went through every order within the bound if ``complete``; a fault of theirs has the seed -1.
    """

    plan: CommPlan
    dtype: str
    launches: int
    sms: int
    seeds: list[int] = field(default_factory=list)
    explored: int = 0
    complete: bool = False
    faults: list[Fault] = field(default_factory=list)
    steps: int = 0

    @property
    def ok(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        plan = self.plan
        ranks = f"{plan.world} rank{'s' if plan.world != 1 else ''}" + (f" ({plan.mesh})" if plan.mesh else "")
        operations = sum(map(len, plan.ops))
        lines = [
            f"plan {plan.name}: {ranks}, {', '.join(map(str, plan.tensors))}, {self.dtype}, {operations} operations, "
            f"{self.launches} launches in a row with new data",
            f"seeds run: {_ranges(self.seeds)} ({self.steps} scheduling points)",
        ]
        if self.explored:
            whole = "all of them" if self.complete else "not all"
            lines.append(f"orders explored: {self.explored}, {whole} within the bound on preemptions")
        if self.ok:
            lines.append(
                "what ranks end with is what the plan promises; no race, deadlock, stray access or missing write"
            )
        for fault in self.faults:
            lines += ["", fault.error.render()]
        lines.append("ok" if self.ok else _last_line(self.faults[0], "--seed {}"))
        return "\n".join(lines)


@dataclass
class RanksReport:
    """The result of `check_ranks`: seeds run, orders explored, faults found, what every rank returned.

    ``results[seed][rank]`` is what the body returned there. ``unheard`` names signals that were raised and never waited for
    afterwards. ``explored`` runs went through every order within the bound if ``complete``; a fault of theirs has the
    seed -1. ``asked``: whether anybody has looked at the outcome.
    """

    body: str
    world: int
    sms: int
    seeds: list[int] = field(default_factory=list)
    explored: int = 0
    complete: bool = False
    found: list[Fault] = field(default_factory=list)
    results: dict[int, list[Any]] = field(default_factory=dict)
    unheard: list[str] = field(default_factory=list)
    steps: int = 0
    asked: bool = False

    @property
    def faults(self) -> list[Fault]:
        """What was found: at most one fault, the first."""
        self.asked = True
        return self.found

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def __str__(self) -> str:
        ranks = f"{self.world} rank{'s' if self.world != 1 else ''}"
        lines = [
            f"{self.body}: {ranks} of {self.sms} SMs",
            f"seeds run: {_ranges(self.seeds)} ({self.steps} scheduling points)",
        ]
        if self.explored:
            whole = "all of them" if self.complete else "not all"
            lines.append(f"orders explored: {self.explored}, {whole} within the bound on preemptions")
        if not self.found:
            lines.append("no race, deadlock, lost signal, stray access or missing write")
        lines += [f"raised, and never waited for afterwards: {signal}" for signal in self.unheard]
        lines.append(NOT_COVERED)
        for fault in self.found:
            lines += ["", fault.error.render()]
        lines.append(_last_line(self.found[0], "seeds=[{}]") if self.found else "ok")
        return "\n".join(lines)


def _last_line(fault: Fault, again: str) -> str:
    """The kind of fault, how to see it again (``again``, of a seed), and the beginning of its message."""
    message = fault.error.message.split(" while nothing orders")[0].removeprefix(f"{fault.kind}: ")
    how = (
        f"with seed {fault.seed} ({again.format(fault.seed)} shows it again)"
        if fault.seed >= 0
        else "in an explored order"
    )
    return f"fault: {fault.kind} {how}: {message}"


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 7 as "1-3, 7"."""
    parts: list[str] = []
    begin = end = None
    for number in [*sorted(numbers), None]:
        if begin is not None and number is not None and end is not None and number == end + 1:
            end = number
            continue
        if begin is not None:
            parts.append(f"{begin}" if begin == end else f"{begin}-{end}")
        begin = end = number
    return ", ".join(parts) or "none"
