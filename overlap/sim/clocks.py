"""Vector clocks: who has seen what.

An `Agent` is anything that acts in order: a program, a rank's host code, a stream, the TMA stores of a program.
Its accesses carry a *step*; ``clock[id]`` is the last step of an agent that is known to be complete. For a program
a step ends at a CTA barrier, because a release by one thread covers only what all threads did before the last
barrier; for streams and host code every operation is a step.
"""

from __future__ import annotations

import itertools

Clock = dict[int, int]

_ids = itertools.count(1)


class Agent:
    """One actor of the memory model.

    ``fenced`` is the part of ``clock`` that loads through the async proxy (TMA) may rely on. ``retired`` replaces
    the agent once it has ended: ``(stream, step)`` of the stream step that covers everything it did. ``begun`` is what it knew
    at first; ``heard``, of a program, what its stream knows once its kernel has ended, and it does not itself.
    """

    __slots__ = (
        "id",
        "name",
        "rank",
        "kind",
        "step",
        "clock",
        "fenced",
        "retired",
        "known",
        "known_async",
        "releases",
        "hint",
        "lanes",
        "begun",
        "heard",
    )

    def __init__(self, name: str, rank: int, kind: str, clock: Clock | None = None) -> None:
        self.id = next(_ids)
        self.name = name
        self.rank = rank
        self.kind = kind
        self.step = 1
        self.clock: Clock = dict(clock) if clock else {}
        self.fenced: Clock = dict(self.clock)
        self.begun: Clock = self.fenced  # which is replaced, never changed
        self.heard: Clock = {}
        self.retired: tuple[Agent, int] | None = None
        self.known: set[int] = {1}
        self.known_async: set[int] = {1}
        self.releases: set[int] = set()
        self.hint = ""
        self.lanes: dict[int, Clock] = {}
        """What single threads have acquired by tensor-shaped atomics, by lane."""

    def tick(self) -> None:
        """Ends the current step: what was done in it is covered by releases from now on."""
        self.clock[self.id] = self.step
        self.step += 1

    def see(self, clock: Clock) -> None:
        """Learns everything that ``clock`` covers."""
        mine = self.clock
        for agent, step in clock.items():
            if mine.get(agent, 0) < step:
                mine[agent] = step

    def covers(self, clock: Clock, step: int) -> bool:
        """Whether ``clock`` covers ``step`` of this agent."""
        if clock.get(self.id, 0) >= step:
            return True
        if self.retired is None:
            return False
        stream, at = self.retired
        return stream.covers(clock, at)


class SyncWord:
    """What an acquire of one word learns, by scope.

    ``system`` holds releases at system scope; ``device[rank]`` those at any scope by agents of that rank, which
    only agents of the same rank may rely on at gpu scope. ``last`` is (agent, semantics, scope) of the last change.
    ``counted`` says what an acquire learns at each value a counter had since it was last reset: (value, system clock).
    ``heard``: whether anybody has acquired the word since its last change.
    """

    __slots__ = ("system", "device", "last", "version", "counted", "heard")

    def __init__(self) -> None:
        self.system: Clock = {}
        self.device: dict[int, Clock] = {}
        self.last: tuple[Agent, str, str] | None = None
        self.version = 0
        self.counted: list[tuple[int, Clock]] = []
        self.heard = True

    def count(self, value: int) -> None:
        """Notes that an addition has brought the word to ``value``; a value that is no growth follows a reset."""
        if self.counted and value <= self.counted[-1][0]:
            self.counted.clear()
        self.counted.append((value, dict(self.system)))

    def acquire_count(self, agent: Agent, value: int) -> None:
        """``agent`` learns what the counter stood for when it first reached ``value``, however far it is now.

        Who waits for that value may have seen it at once, so nothing that was counted later is certain.
        """
        for reached, clock in self.counted:
            if reached >= value:
                agent.see(clock)
                return
        agent.see(self.system)

    def release(self, agent: Agent, scope: str, learned: Clock | None = None, *, replace: bool = False) -> None:
        """Publishes ``agent``'s clock, and what its one thread has ``learned`` besides.

        A read-modify-write adds to earlier releases, a plain write replaces them.
        """
        if scope == "cta":
            return
        if replace:
            self.system, self.device = {}, {}
        targets = [self.device.setdefault(agent.rank, {})]
        if scope == "sys":
            targets.append(self.system)
        for target in targets:
            for clock in (agent.clock, learned or {}):
                for key, step in clock.items():
                    if target.get(key, 0) < step:
                        target[key] = step

    def acquire_into(self, learned: Clock, rank: int, scope: str) -> None:
        """As `acquire`, by one thread of a program of ``rank``."""
        for clock in (self.device.get(rank, {}) if scope != "cta" else {}, self.system if scope == "sys" else {}):
            for key, step in clock.items():
                if learned.get(key, 0) < step:
                    learned[key] = step

    def acquire(self, agent: Agent, scope: str) -> None:
        """``agent`` learns what was released at a scope that includes it."""
        if scope == "cta":
            return
        local = self.device.get(agent.rank)
        if local:
            agent.see(local)
        if scope == "sys" and self.system:
            agent.see(self.system)
