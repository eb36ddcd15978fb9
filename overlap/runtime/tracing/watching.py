"""When the flags of a launch rise, and when its copies begin and end.

A side stream is held for one flag after the other, and marked behind each; around copies stand marks on their own streams.

    main stream   | meeting | mark | entry | kernel ............ | ...
    side stream                    | hold for flag 2 | mark | hold for flag 0 | mark | ...

Tiles only say when they looked: a chunk that was there already came at any time before, and chunks of results are waited for by
sums. Neither holds nor marks take a multiprocessor, and they are enqueued behind the whole call, so nothing of it can stand
behind them. Flags are held for in the order in which the model has them rise: one that rises ahead of its turn is marked when the
one before it is.
"""

from __future__ import annotations

from typing import Any

from overlap.chunkplan.plan import OpId
from overlap.schedule.events import landing_times
from overlap.schedule.table import S_EPOCH, SLOT_WORDS, flag_base

from ..instance import Instance
from .recording import copies_of

LANE = 1 << 20
"""The side stream: no plan's lanes go that far."""


class Watcher:
    """Watches the next launch of an instance; nothing of it may be captured.

    Args:
        instance: its device must have nothing to do.
    """

    def __init__(self, instance: Instance) -> None:
        runtime = self._runtime = instance.runtime
        slots = instance.slots[runtime.rank]
        when = landing_times(instance.plan, instance.machine, itemsize=instance.itemsize) if slots else {}
        ops = sorted(slots, key=lambda op: (when[op], op))
        words = {op: (flag_base(runtime.world) + slots[op]) * SLOT_WORDS for op in ops}
        epoch = int(instance.state[S_EPOCH * SLOT_WORDS : S_EPOCH * SLOT_WORDS + 1].tolist()[0])
        self._holds = {op: runtime.holder(instance.state[at : at + 1], epoch + 1) for op, at in words.items()}
        self._marks: dict[OpId, Any] = {}
        self._copies = copies_of(instance)
        self._begun: Any = None
        self._stream: Any = None

    def begin(self) -> None:
        """Ahead of the launch: what times are counted from."""
        for copy in self._copies.values():
            copy.armed, copy.marks = True, None
        self._begun = self._runtime.mark(self._runtime.main_stream())
        self._stream = self._runtime.fork(LANE)

    def look(self) -> None:
        """Behind the launch, which is enqueued as a whole; the caller's stream waits for all flags."""
        for copy in self._copies.values():
            copy.armed = False
        for op, hold in self._holds.items():
            hold(self._stream)
            self._marks[op] = self._runtime.mark(self._stream)
        self._runtime.join(self._stream)

    @property
    def done(self) -> bool:
        """Whether all flags are up; they never are where a rank has failed."""
        return all(self._runtime.passed(mark) for mark in self._marks.values())

    def times(self) -> dict[OpId, float]:
        """By operation, nanoseconds (simulated: steps) from the begin to its flag; the device must be done."""
        return {op: self._runtime.elapsed(self._begun, mark) for op, mark in self._marks.items()}

    def copied(self) -> dict[OpId, tuple[float, float]]:
        """By operation, from when to when its copy was made, as `times`."""
        elapsed, begun = self._runtime.elapsed, self._begun
        marks = {op: copy.marks for op, copy in self._copies.items() if copy.marks is not None}
        return {op: (elapsed(begun, begin), elapsed(begun, end)) for op, (begin, end) in marks.items()}
