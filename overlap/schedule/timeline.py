"""What happens when, on every rank: the result of the event model (`cost.timeline`), and what viewers read.

    rank 1   link   | copy a[2] | copy a[3] | copy a[0] |
             tiles  | run 0 | wait | run 1  | run 2     | run 3 |
                    0                                           total

Times are seconds from the launch. An event of no length (a flag, a wait for what is there already) is an event too.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

KINDS = ("copy", "tile-run", "wait", "sum", "flag")
"""What an event can be: bytes on a link; tiles on the compute units; compute units idle until something has
landed; partial results added; what says that something is ready (its cost included)."""


class Event(NamedTuple):
    """One thing that one rank does; a tuple, since there may be a million of them.

    ``lane`` is the row of the rank it stands in: ``tiles`` for the compute units, ``copy 0``, ``copy 1``, ... for the
    channels of the plan. Events of one rank and lane never lie over each other. ``start`` and ``end`` are seconds and
    ``label`` is for people. ``chunk`` names data, so that a copy and the tiles that read what it brought can share a colour.
    ``op`` is the ``(rank, index)`` of the plan operation it belongs to, ``source`` the rank the data is from (-1: none).
    """

    rank: int
    lane: str
    kind: str
    start: float
    end: float
    label: str
    chunk: str = ""
    op: tuple[int, int] | None = None
    source: int = -1

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def __str__(self) -> str:
        return (
            f"{self.start * 1e6:10.1f} {self.end * 1e6:10.1f}  rank {self.rank} {self.lane}: {self.kind} {self.label}"
        )


@dataclass(frozen=True)
class Timeline:
    """Everything that one launch does, in order of start.

    ``critical`` are indices into ``events``, first to last: a chain of events each of which began when, and because,
    the one before it had ended, up to the last event of all. ``total`` is when everything has ended; ``compute[rank]``
    is how long that rank's tiles alone would take.
    """

    world: int
    events: tuple[Event, ...]
    critical: tuple[int, ...]
    total: float
    compute: tuple[float, ...]

    @property
    def exposed(self) -> float:
        """Seconds that communication adds to the compute of the rank that computes longest."""
        return max(0.0, self.total - max(self.compute, default=0.0))

    def exposed_of(self, rank: int) -> float:
        """Seconds until the last event of ``rank`` that its tiles do not account for."""
        return max(0.0, self.end_of(rank) - self.compute[rank])

    def end_of(self, rank: int) -> float:
        """When the last event of ``rank`` has ended."""
        return max((event.end for event in self.events if event.rank == rank), default=0.0)

    def lanes(self, rank: int) -> dict[str, tuple[Event, ...]]:
        """The events of ``rank`` by lane, copies before tiles, each lane in order of start."""
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            if event.rank == rank:
                found[event.lane].append(event)
        names = sorted(found, key=lambda lane: (lane == "tiles", lane))
        return {name: tuple(sorted(found[name], key=lambda event: (event.start, event.end))) for name in names}

    def __str__(self) -> str:
        marked = set(self.critical)
        lines = [
            f"{self.world} ranks, {self.total * 1e3:.3f} ms: {max(self.compute, default=0.0) * 1e3:.3f} ms of tiles, "
            f"{self.exposed * 1e3:.3f} ms exposed; times in us, * on the critical path"
        ]
        lines += [f"{'*' if i in marked else ' '}{event}" for i, event in enumerate(self.events)]
        return "\n".join(lines)
