"""Systematic exploration of small runs: every order within a bound on preemptions.

A run asks its chooser who goes on; here the answers are a list that is extended one choice at a time, depth first.
Leaving a fibre that could have gone on is a preemption; most concurrency bugs need one or two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from overlap.errors import SimFault

from .fibres import Fibre


class ScriptedChooser:
    """Follows ``script`` and then the default: the running fibre goes on, else the first that is ready.

    ``options`` records at every choice how many answers there were and which of them cost a preemption.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = list(script)
        self.taken: list[int] = []
        self.options: list[tuple[int, int]] = []

    def fibre(self, ready: Sequence[Fibre], current: Fibre | None) -> int:
        default = 0
        if current is not None:
            default = next((i for i, fibre in enumerate(ready) if fibre is current), 0)
        return (default + self._answer(len(ready), preemptive=current is not None)) % len(ready)

    def number(self, below: int) -> int:
        return 0

    def _answer(self, count: int, *, preemptive: bool) -> int:
        position = len(self.taken)
        answer = self._script[position] if position < len(self._script) else 0
        self.taken.append(answer)
        self.options.append((count, 1 if preemptive else 0))
        return answer


@dataclass
class Exploration:
    """What `explore` saw: runs made, whether those were all orders within the bound, the first fault and its script."""

    runs: int = 0
    complete: bool = False
    fault: SimFault | None = None
    script: list[int] = field(default_factory=list)


def explore(
    run: Callable[[ScriptedChooser], SimFault | None], *, preemptions: int = 2, limit: int = 2000
) -> Exploration:
    """Runs ``run`` once for every order with at most ``preemptions`` preemptions, at most ``limit`` times.

    Args:
        run: simulates with the given chooser and returns the fault, if any; must be deterministic but for the chooser.
        preemptions: how often a fibre that could go on may be made to wait.
        limit: number of runs at most.
    """
    result = Exploration()
    pending: list[list[int]] = [[]]
    while pending and result.runs < limit:
        script = pending.pop()
        chooser = ScriptedChooser(script)
        fault = run(chooser)
        result.runs += 1
        if fault is not None:
            result.fault, result.script = fault, chooser.taken
            return result
        spent = sum(cost for answer, (_, cost) in zip(script, chooser.options, strict=False) if answer)
        for position in range(len(chooser.taken) - 1, len(script) - 1, -1):
            count, cost = chooser.options[position]
            if spent + cost > preemptions:
                continue
            pending += [[*chooser.taken[:position], answer] for answer in range(1, count)]
    result.complete = not pending
    return result
