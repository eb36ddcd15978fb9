"""Race detection: every two accesses to an element, one of them a write, must be ordered by the clocks.

Writers and readers are interned accesses; an element's shadow is two ids. Because clocks only grow, an agent never
looks twice at an access it is already known to be ordered behind.
"""

from __future__ import annotations

import numpy as np

from overlap.errors import RaceFault, SourceSpan, UnwrittenFault

from .clocks import Agent, Clock
from .memory import NEVER_WRITTEN, Buffer


class Access:
    """One kind of access by one agent in one step from one source line."""

    __slots__ = ("agent", "step", "verb", "scope", "where", "id")

    def __init__(self, agent: Agent, step: int, verb: str, scope: str, where: tuple[str, int], id: int) -> None:
        self.agent = agent
        self.step = step
        self.verb = verb
        self.scope = scope
        self.where = where
        self.id = id

    def __str__(self) -> str:
        return self.tell("").rstrip()

    def tell(self, what: str) -> str:
        """Who does what to ``what``, and on which line."""
        path, line = self.where
        place = f" ({path}:{line})" if path else ""
        return f"{self.agent.name} {self.verb} {what}{place}"


def span(where: tuple[str, int]) -> SourceSpan | None:
    """A source place with its text, if the line is known."""
    import linecache

    path, line = where
    if not path:
        return None
    text = linecache.getline(path, line).rstrip("\n")
    return SourceSpan(path, line, len(text) - len(text.lstrip()) + 1, text, max(1, len(text.strip())))


class Shadow:
    """Checks and records accesses. Indices are element indices of one buffer, never empty."""

    def __init__(self) -> None:
        self._accesses: list[Access | None] = [None, None]
        self._interned: dict[tuple, Access] = {}
        self._sets: list[tuple[Access, ...]] = [()]
        self._set_ids: dict[tuple[int, ...], int] = {(): 0}
        self._added: dict[tuple[int, int], int] = {}
        self._early: list[tuple[Buffer, np.ndarray, Access]] = []

    def access(self, agent: Agent, verb: str, where: tuple[str, int], scope: str = "") -> Access:
        """The interned access; ``scope`` is "" for plain accesses, else the scope of an atomic one."""
        key = (agent.id, agent.step, verb, scope, where)
        found = self._interned.get(key)
        if found is None:
            found = Access(agent, agent.step, verb, scope, where, len(self._accesses))
            self._interned[key] = found
            self._accesses.append(found)
        return found

    def read(self, buffer: Buffer, index: np.ndarray, access: Access, *, fenced: bool = False) -> None:
        """A read of elements; ``fenced`` ones go through the async proxy and rely on the fenced clock only."""
        agent = access.agent
        writers = buffer.writer[index]
        if fenced:
            self._check_writers(buffer, index, writers, access, agent.fenced, agent.known_async)
        else:
            self._check_writers(buffer, index, writers, access, agent.clock, agent.known)
        self._add_reader(buffer, index, access)

    def _add_reader(self, buffer: Buffer, index: np.ndarray, access: Access) -> None:
        sets = buffer.readers[index]
        first = int(sets[0])
        if len(sets) == 1 or (sets == first).all():
            grown = self._with(first, access)
            if grown != first:
                buffer.readers[index] = grown
            return
        distinct, inverse = np.unique(sets, return_inverse=True)
        buffer.readers[index] = np.array([self._with(int(s), access) for s in distinct], np.int32)[inverse]

    def read_one(self, buffer: Buffer, index: int, access: Access) -> None:
        """`read` of one element through the generic proxy."""
        if int(buffer.writer[index]) not in access.agent.known:
            self.read(buffer, np.array([index]), access)
            return
        before = int(buffer.readers[index])
        grown = self._with(before, access)
        if grown != before:
            buffer.readers[index] = grown

    def write(self, buffer: Buffer, index: np.ndarray, access: Access) -> None:
        """A write of elements."""
        agent = access.agent
        writers = buffer.writer[index]
        self._check_writers(buffer, index, writers, access, agent.clock, agent.known, reading=False)
        self._check_readers(buffer, index, access)
        buffer.writer[index] = access.id
        buffer.readers[index] = 0

    def atomic(self, buffer: Buffer, index: np.ndarray, access: Access, *, modifies: bool) -> None:
        """An atomic access: races with plain ones, and with atomic ones whose scope does not include both."""
        if modifies:
            agent = access.agent
            writers = buffer.writer[index]
            self._check_writers(buffer, index, writers, access, agent.clock, agent.known)
            self._check_readers(buffer, index, access)
            buffer.writer[index] = access.id
            buffer.readers[index] = 0
        else:
            self.read(buffer, index, access)

    def send(self, buffer: Buffer, index: np.ndarray, access: Access) -> None:
        """A write of words that nobody orders but their readers, who must be done with what was there (`overlap.sim.packets`)."""
        self.atomic(buffer, index, access, modifies=True)

    def take(self, buffer: Buffer, index: np.ndarray, access: Access) -> None:
        """A read of words that say themselves that they have come, so that nothing need order it behind the write."""
        self._add_reader(buffer, index, access)

    def unordered_writer(self, buffer: Buffer, granule: int, agent: Agent) -> Access | None:
        """The last writer of a flag, if it is another agent's and ``agent`` has not learnt of it.

        Who acquires a release learns of the steps before it, and so that the release itself has happened.
        """
        before = self._accesses[int(buffer.writer[granule])]
        if before is None or before.agent is agent or before.agent.covers(agent.clock, before.step - 1):
            return None
        return before

    def first_never_written(self, buffer: Buffer, index: np.ndarray) -> tuple[int, int] | None:
        """(first element, count) of the elements that nobody ever wrote."""
        missing = index[buffer.writer[index] == NEVER_WRITTEN]
        return (int(missing[0]), len(missing)) if len(missing) else None

    def _with(self, set_id: int, access: Access) -> int:
        """The reader set ``set_id`` with ``access``, without readers that ``access`` is ordered behind."""
        key = (set_id, access.id)
        found = self._added.get(key)
        if found is None:
            agent = access.agent
            kept = [
                a
                for a in self._sets[set_id]
                if a is access
                or not (a.agent is agent and a.scope == access.scope or a.agent.covers(agent.clock, a.step))
            ]
            if access not in kept:
                kept.append(access)
            ids = tuple(a.id for a in kept)
            found = self._set_ids.get(ids, -1)
            if found < 0:
                found = self._set_ids[ids] = len(self._sets)
                self._sets.append(tuple(kept))
            self._added[key] = found
        return found

    def _check_writers(
        self,
        buffer: Buffer,
        index: np.ndarray,
        writers: np.ndarray,
        access: Access,
        clock: Clock,
        known: set[int],
        *,
        reading: bool = True,
    ) -> None:
        first = int(writers[0])
        if len(writers) == 1 or (writers == first).all():
            distinct = [first]
        else:
            distinct = np.unique(writers).tolist()
        for writer in distinct:
            if writer in known:
                continue
            if writer == NEVER_WRITTEN:
                if reading:
                    self._early.append((buffer, index[writers == writer], access))
                continue
            before = self._accesses[writer]
            assert before is not None
            if self._ordered(before, access, clock, writing=True):
                if not (before.scope and access.scope):
                    known.add(writer)
                continue
            self._race(buffer, index[writers == writer], before, access)

    def _check_readers(self, buffer: Buffer, index: np.ndarray, access: Access) -> None:
        sets = buffer.readers[index]
        first = int(sets[0])
        distinct = [first] if len(sets) == 1 or (sets == first).all() else np.unique(sets).tolist()
        for set_id in distinct:
            for before in self._sets[set_id]:
                if not self._ordered(before, access, access.agent.clock, writing=False):
                    self._race(buffer, index[sets == set_id], before, access)

    @staticmethod
    def _ordered(before: Access, access: Access, clock: Clock, *, writing: bool) -> bool:
        if before.agent is access.agent:
            return True
        if before.scope and access.scope:
            if before.agent.rank == access.agent.rank or before.scope == access.scope == "sys":
                return True
        return before.agent.covers(clock, before.step)

    def check_early_reads(self) -> None:
        """Raises for the first read of memory that nobody had written.

        Such a read is reported only once the run is over: mostly the write was to come, so that the fault is a race.

        Raises:
            RaceFault: the element was written later.
            UnwrittenFault: it never was.
        """
        for buffer, index, access in self._early:
            more = f" and {len(index) - 1} more elements" if len(index) > 1 else ""
            what = access.tell(f"{buffer.element(int(index[0]))}{more}")
            later = self._accesses[int(buffer.writer[index[0]])]
            if later is not None:
                raise RaceFault(
                    f"race: {what} while nothing orders it behind: {later.tell('it')}",
                    where=span(access.where) or span(later.where),
                )
            raise UnwrittenFault(f"unwritten: {what}, which nobody ever writes", where=span(access.where))

    def _race(self, buffer: Buffer, index: np.ndarray, before: Access, access: Access) -> None:
        low, high = int(index.min()), int(index.max())
        what = buffer.elements(low, high)
        why = reason(before, access)
        count = f"{len(index)} element{'s' if len(index) != 1 else ''}"
        raise RaceFault(
            f"race: {access.tell(f'{what} ({count})')} while nothing orders it behind: {before.tell('it')}",
            where=span(access.where) or span(before.where),
            help=why,
        )


def reason(before: Access, access: Access) -> str:
    """What is probably missing between two unordered accesses."""
    if before.scope and access.scope:
        return 'both are atomic, but gpu scope does not reach another rank: use scope="sys"'
    if before.verb.startswith("writes") and before.step in before.agent.releases:
        return "no barrier before release: put tl.debug_barrier() between the stores and the flag (ol.notify does)"
    if "TMA load" in access.verb and before.agent.covers(access.agent.clock, before.step):
        return "a TMA load needs a proxy fence behind the acquire: ol.after_async instead of ol.after"
    if "TMA store" in before.verb:
        return "TMA stores land late on this Triton version: wait for them, or use plain stores, before the flag"
    return access.agent.hint
