"""The events of a `Timeline` rank by rank and lane by lane, for what draws them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .timeline import Event, Timeline

Numbered = tuple[int, Event]
"""An event and its index in the timeline."""

_LATER = {"tiles": 1, "sums": 2}


def lanes_by_rank(timeline: Timeline, ranks: Iterable[int]) -> dict[int, dict[str, list[Numbered]]]:
    """Lanes of each of ``ranks``: copies, tiles, sums, with ``copy 2`` before ``copy 10``; events in order of start.

    One walk over the events, whatever the number of ranks.
    """
    found: dict[int, dict[str, list[Numbered]]] = {rank: {} for rank in ranks}
    for index, event in enumerate(timeline.events):
        if event.rank in found:
            found[event.rank].setdefault(event.lane, []).append((index, event))
    for rank, lanes in found.items():
        names = sorted(lanes, key=lambda name: (_LATER.get(name, 0), natural(name)))
        found[rank] = {name: sorted(lanes[name], key=_began) for name in names}
    return found


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts the numbers in names by their value."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text))


def _began(numbered: Numbered) -> tuple[float, float, int]:
    index, event = numbered
    return event.start, event.end, index
