"""Fibres: everything that acts is a greenlet, exactly one runs at a time, and a `Chooser` says which is next.

A run is a pure function of the chooser's answers, so a seed replays exactly.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import greenlet

from .clocks import Agent
from .modes import modes, set_modes


class Fibre:
    """A greenlet with its agent.

    ``waiting`` says in words what a blocked fibre needs; ``where`` is (path, line); ``holds``: a stream that waits for a
    word of memory.
    """

    __slots__ = (
        "agent",
        "body",
        "frame",
        "grid",
        "holds",
        "index",
        "greenlet",
        "kernel",
        "polls",
        "result",
        "state",
        "waiting",
        "where",
        "last_load",
        "loads",
        "tma",
    )

    def __init__(self, agent: Agent, body: Callable[[], Any]) -> None:
        self.agent = agent
        self.body = body
        self.greenlet: greenlet.greenlet | None = None
        self.state = "ready"
        self.waiting: Callable[[], str] | str = ""
        self.where: tuple[str, int] | None = None
        self.frame: Any = None
        self.holds = False
        self.kernel: Any = None
        self.index: tuple[int, int, int] = (0, 0, 0)
        self.grid: tuple[int, int, int] = (1, 1, 1)
        self.polls: dict[int, tuple[Any, int]] = {}
        self.last_load = 0
        self.loads = 0
        self.tma: Agent | None = None
        self.result: Any = None

    def describe(self) -> str:
        place = f" at {self.where[0]}:{self.where[1]}" if self.where else ""
        if self.state == "ready":
            return f"{self.agent.name} goes on and on{place}"
        text = self.waiting() if callable(self.waiting) else self.waiting
        return f"{self.agent.name} waits for {text}{place}"


class Chooser(Protocol):
    """Answers every question of a run that is open."""

    def fibre(self, ready: Sequence[Fibre], current: Fibre | None) -> int:
        """Index of the fibre that runs next."""

    def number(self, below: int) -> int:
        """A number in [0, below)."""


class RandomChooser:
    """Answers drawn from a seed.

    Uniform choices alone rarely leave one actor far behind, so each stretch of a run also has a bias: how often the
    running fibre goes on, and one rank or kind of actor that is slow.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._left = 0
        self._stay = 0.0
        self._slow: Any = None

    def _new_stretch(self, ready: Sequence[Fibre]) -> None:
        draw = self._random
        self._left = draw.randrange(20, 400)
        self._stay = draw.choice((0.0, 0.3, 0.8, 0.95))
        victim = ready[draw.randrange(len(ready))].agent
        self._slow = draw.choice((None, victim.rank, victim.kind, victim.id))

    def fibre(self, ready: Sequence[Fibre], current: Fibre | None) -> int:
        draw = self._random
        if self._left <= 0:
            self._new_stretch(ready)
        self._left -= 1
        if current is not None and draw.random() < self._stay and not self._is_slow(current):
            for index, fibre in enumerate(ready):
                if fibre is current:
                    return index
        index = draw.randrange(len(ready))
        for _ in range(3):
            if not self._is_slow(ready[index]):
                break
            index = draw.randrange(len(ready))
        return index

    def _is_slow(self, fibre: Fibre) -> bool:
        slow, agent = self._slow, fibre.agent
        return slow is not None and (agent.kind == slow if isinstance(slow, str) else slow in (agent.rank, agent.id))

    def number(self, below: int) -> int:
        return self._random.randrange(below)


LIVELOCK_STEPS = 3_000_000
"""Scheduling points without any fibre coming to its end, after which the run is given up as one that spins for ever."""


class Deadlock(Exception):
    """Nothing can run, or what runs gets nowhere; carries the stuck fibres."""

    def __init__(self, stuck: list[Fibre]) -> None:
        super().__init__("deadlock")
        self.stuck = stuck


class Condition:
    """A place to block on until somebody calls `notify`."""

    __slots__ = ("_scheduler", "_waiters")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters: list[Fibre] = []

    def wait(self, until: Callable[[], bool], what: Callable[[], str] | str) -> None:
        """Blocks the running fibre until ``until()``; ``what`` describes it if it never comes."""
        while not until():
            self._waiters.append(self._scheduler.current)
            self._scheduler.block(what)

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for fibre in waiters:
            self._scheduler.wake(fibre)


class Scheduler:
    """Runs fibres one at a time until all have ended."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self.ready: list[Fibre] = []
        self.live: dict[int, Fibre] = {}
        self.asleep: dict[int, Fibre] = {}
        self.current: Fibre = None  # type: ignore[assignment]
        self.steps = 0
        self.last_end = 0
        self.stopping = False
        self.progress = True
        self.failed: Fibre | None = None
        self._hub: greenlet.greenlet | None = None
        self._modes = modes()

    def spawn(self, agent: Agent, body: Callable[[], Any]) -> Fibre:
        fibre = Fibre(agent, body)
        self.live[agent.id] = fibre
        self.ready.append(fibre)
        self.progress = True
        return fibre

    def pause(self) -> None:
        """A scheduling point: anybody who is ready may go on instead."""
        self.steps += 1
        if self.steps - self.last_end > LIVELOCK_STEPS:
            raise Deadlock(list(self.live.values()))
        ready = self.ready
        if len(ready) == 1 or self.stopping:
            return
        current = self.current
        following = ready[self.chooser.fibre(ready, current)]
        if following is not current:
            self._switch(following)

    def block(self, what: Callable[[], str] | str) -> None:
        """Takes the running fibre out until `wake`."""
        fibre = self.current
        fibre.state, fibre.waiting = "blocked", what
        self._leave(fibre)

    def sleep(self, what: Callable[[], str]) -> None:
        """As `block`, but the fibre is given another try when nothing else can run."""
        fibre = self.current
        fibre.state, fibre.waiting = "asleep", what
        self.asleep[fibre.agent.id] = fibre
        self._leave(fibre)

    def wake(self, fibre: Fibre) -> None:
        if fibre.state in ("blocked", "asleep"):
            self.asleep.pop(fibre.agent.id, None)
            fibre.state = "ready"
            self.ready.append(fibre)

    def _leave(self, fibre: Fibre) -> None:
        if self.stopping:
            raise greenlet.GreenletExit
        self.ready.remove(fibre)
        if self.ready:
            self._switch(self.ready[self.chooser.fibre(self.ready, None)])
        else:
            self._go_to(self._hub)

    def _switch(self, fibre: Fibre) -> None:
        self.current = fibre
        if fibre.greenlet is None:
            self._start(fibre)
        self._go_to(fibre.greenlet)

    def _go_to(self, other: Any) -> None:
        """Comes back with torch's modes as they were: one rank's ``with torch.no_grad()`` is not another's."""
        mine = modes()
        try:
            other.switch()
        finally:
            if modes() != mine:
                set_modes(mine)

    def _start(self, fibre: Fibre) -> None:
        def main() -> None:
            set_modes(self._modes)
            try:
                fibre.result = fibre.body()
            except Exception:
                if self.failed is None:
                    self.failed = fibre
                raise
            fibre.state = "done"
            self.last_end = self.steps
            self.progress = True
            self.live.pop(fibre.agent.id, None)
            self.ready.remove(fibre)

        fibre.greenlet = greenlet.greenlet(main, parent=self._hub)

    def run(self) -> None:
        """Runs until no fibre is left.

        Raises:
            Deadlock: fibres are left and none can run.
        """
        self._hub, self._modes = greenlet.getcurrent(), modes()
        try:
            while self.live:
                if not self.ready:
                    if not self.asleep or not self.progress:
                        raise Deadlock([f for f in self.live.values()])
                    self.progress = False
                    for fibre in list(self.asleep.values()):
                        self.wake(fibre)
                self._switch(self.ready[self.chooser.fibre(self.ready, None)])
        finally:
            self._end_all()

    def _end_all(self) -> None:
        """Unwinds what is left, so that ``finally`` blocks of host code run and no greenlet outlives the run."""
        self.stopping = True
        for fibre in list(self.live.values()):
            self.current = fibre
            if fibre.greenlet is not None and not fibre.greenlet.dead:
                with contextlib.suppress(Exception):  # the first fault is being reported already
                    fibre.greenlet.throw(greenlet.GreenletExit)
        self.live.clear()
        self.ready.clear()
        self.asleep.clear()
        set_modes(self._modes)
