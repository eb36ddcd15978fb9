"""Runs of tiles in the event model: who is handed out when, and what copies take from tiles meanwhile.

run      its tiles go to the first free units, each run behind the one before it, or with ``as_arrived`` as it can
part     a long run is handed out in parts, the next when the first unit is free: what copies that have begun by then take
         from the rank's tiles, takes it from those to come
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from heapq import heappush

from overlap.chunkplan.plan import CommPlan, OpId

from .machine import Machine
from .records import TILES, WAIT, Records
from .units import Units
from .work import Work

PARTS = 8
"""A run of more waves than one is handed out in so many parts at most."""


class HandOut(Records, ABC):
    """The runs of one simulation, as they begin."""

    entry: float
    """From when on kernels are launched."""

    def __init__(self, plan: CommPlan, work: Sequence[Work], machine: Machine, stored: Collection[OpId] = ()) -> None:
        super().__init__(plan, work, machine, stored)
        self.heap: list[tuple[float, int, int]] = []
        self.undone = [len(w.runs) for w in work]
        self.tiles_end = [0.0] * len(work)
        self.last_run = [-1] * len(work)
        # Seconds that copies have taken from the tiles of a rank since the last of them were handed out.
        self.debt = [0.0] * plan.world
        # The run that a rank is handing out, of runs begun when, by whom, what has ended and is left, and what waits behind them.
        self.handing = [-1] * plan.world
        self.begun_runs: dict[int, tuple[float, int, float, int]] = {}
        self.held_back: list[deque[tuple[int, int]]] = [deque() for _ in work]

    def _start_tiles(self, slowing: bool) -> None:
        """``slowing``: copies take something from tiles, so that long runs go in parts."""
        self.units = [Units(self.machine.units, self.entry + self.machine.kernel) for _ in self.work]
        self.parts = PARTS if slowing else 1

    @abstractmethod
    def _freed(self, node: int, now: float, by: int) -> None:
        """One thing less that a node waits for, since ``now``, by the record ``by``."""

    def _let_in(self, rank: int, work: Work) -> None:
        """The kernel starts: runs go in their order, or as they can."""
        if not work.runs:
            return
        start = self.entry + self.machine.kernel
        first = self.rank_runs[rank]
        met = self.last_run[rank] = self._record(rank, WAIT, -1, 0.0, start, -1)
        self.tiles_end[rank] = start
        for node in range(first, first + len(work.runs)) if work.as_arrived else (first,):
            self._freed(node, start, met)

    def _runnable(self, node: int, now: float, by: int) -> None:
        """Hands out the tiles of a run, or the next part of them, and lets the one behind it in."""
        rank, i = self.run_of[node - self.run_base]
        work, units = self.work[rank], self.units[rank]
        run = work.runs[i]
        if self.handing[rank] not in (-1, node):
            self.held_back[rank].append((node, by))
            return
        units.delay(self.debt[rank])
        self.debt[rank] = 0.0
        first, by, end, left = self.begun_runs.pop(node, (now, by, 0.0, run.tiles))
        part = min(left, max(units.count, -(-run.tiles // self.parts)))
        _, ended = units.take(part, run.seconds, now)
        end = max(end, ended)
        if left > part:
            self.handing[rank] = node
            self.begun_runs[node] = first, by, end, left - part
            self.pending[node] = 1
            heappush(self.heap, (max(now, units.first), len(self.pending) + node, by))
            return
        self.handing[rank] = -1
        # Runs share a wave, a lane shows one after another: each from where the one before it ended.
        before, idle = self.last_run[rank], self.tiles_end[rank]
        start, end = max(first, idle), max(idle, end)
        if start > idle:
            self._record(rank, WAIT, node, idle, start, before)
        else:
            by = before
        record = self._record(rank, TILES, node, start, end, by)
        self.last_run[rank], self.tiles_end[rank] = record, end
        if node in self.followers:
            heappush(self.heap, (end, node, record))
        self.undone[rank] -= 1
        if not self.undone[rank]:
            for waiting in self.rank_sums[rank]:
                self._freed(waiting, self.tiles_end[rank], record)
        elif not work.as_arrived:
            # As parts are: when the first unit is free.
            heappush(self.heap, (max(now, units.first), len(self.pending) + node + 1, record))
        elif self.held_back[rank]:
            following, freed_by = self.held_back[rank].popleft()
            self._runnable(following, now, freed_by)
