"""The numbers that a picture draws: a timeline in ticks, each string once, events as flat lists of integers.

A lane of a rank is ``[kind, gap, length, label, chunk, op rank, op index, source, kind, gap, ...]``: ``gap`` ticks lie
between an event and the end of the one before it, ``kind``, ``label`` and ``chunk`` number strings, and -1 stands for none.
In a label U+0001 stands for the event's chunk and U+0002 for ``SOURCE -> RANK``, so that the copies of a chunk share one.
That keeps 64 ranks with some 25,000 events below a megabyte.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ..lanes import Numbered, lanes_by_rank, natural
from ..model import RankSchedule
from ..timeline import KINDS, Event, Timeline

TICKS = 1_000_000
"""A picture tells times apart that are at least this part of the whole; a screen shows some thousand."""

Value = int | float | str | list["Value"]


@dataclass(frozen=True)
class Rows:
    """What is drawn of a timeline: some or all of its ranks.

    ``unit`` is a tick in seconds. ``chunks`` stand in the order of their place in their tensors, so that neighbours have
    colours next to each other, ``hues[i]`` degrees on the colour circle.
    """

    timeline: Timeline
    ranks: tuple[int, ...]
    unit: float
    chunks: tuple[str, ...]
    hues: tuple[int, ...]
    values: dict[str, Value]

    @property
    def text(self) -> str:
        """JSON that may stand in a ``script`` element: no character of it can end that."""
        written = json.dumps(self.values, separators=(",", ":"), allow_nan=False)
        return written.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def tick_of(total: float) -> float:
    """A power of ten, in seconds, of which ``total`` is `TICKS` at least; 1 ns where nothing takes time."""
    return 10.0 ** math.floor(math.log10(total / TICKS)) if total > 0 else 1e-9


def rows(timeline: Timeline, ranks: Collection[int], schedules: Sequence[RankSchedule] = ()) -> Rows:
    """The rows of ``ranks``, in that order.

    Args:
        schedules: where the flags of operations are looked up.
    """
    unit = tick_of(timeline.total)
    shown = tuple(ranks)
    lanes: list[Value] = []
    strings = _Strings()
    events = lanes_by_rank(timeline, shown)
    named = {event.chunk for lane in _all(events) for _, event in lane if event.chunk}
    chunks = sorted(named, key=natural)
    numbers = {chunk: number for number, chunk in enumerate(chunks)}
    place: dict[int, tuple[int, int]] = {}
    for rank in shown:
        for name, own in events[rank].items():
            flat: list[Value] = []
            ended = 0
            for position, (index, event) in enumerate(own):
                start, end = (round(seconds / unit) for seconds in (event.start, event.end))
                chunk = numbers.get(event.chunk, -1)
                op = event.op or (-1, -1)
                kind = KINDS.index(event.kind)
                flat += [kind, start - ended, end - start, strings(_shared(event)), chunk, *op, event.source]
                place[index] = len(lanes), position
                ended = end
            lanes.append([rank, name, flat])
    wanted = {event.op for lane in _all(events) for _, event in lane if event.op is not None}
    flags: list[Value] = []
    for schedule in schedules:
        for (rank, op_index), slot in sorted(schedule.slots.items()):
            if (rank, op_index) in wanted:
                flags += [rank, op_index, schedule.rank, slot]
    hues = tuple(round(360 * number / len(chunks)) for number in range(len(chunks)))
    values: dict[str, Value] = {
        "unit": unit,
        "total": round(timeline.total / unit),
        "tiles": round(max(timeline.compute, default=0.0) / unit),
        "ranks": list(shown),
        "exposed": [round(_exposed(timeline, rank, events[rank]) / unit) for rank in shown],
        "kinds": list(KINDS),
        "chunks": list(chunks),
        "hues": list(hues),
        "labels": list(strings.order),
        "lanes": lanes,
        "critical": [list(place[index]) for index in timeline.critical if index in place],
        "flags": flags,
    }
    return Rows(timeline, shown, unit, tuple(chunks), hues, values)


def _shared(event: Event) -> str:
    """The label without what else is known of the event."""
    if "\x01" in event.label or "\x02" in event.label:
        return event.label.replace("\x01", " ").replace("\x02", " ")
    without = event.label.replace(event.chunk, "\x01") if event.chunk else event.label
    ranks = rf"(?<!\d){event.source} -> {event.rank}(?!\d)"
    return re.sub(ranks, "\x02", without) if event.source >= 0 else without


class _Strings:
    """Numbers strings in the order of their first use."""

    def __init__(self) -> None:
        self.order: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.order.setdefault(text, len(self.order))


def _all(events: dict[int, dict[str, list[Numbered]]]) -> Iterator[list[Numbered]]:
    return (lane for lanes in events.values() for lane in lanes.values())


def _exposed(timeline: Timeline, rank: int, lanes: dict[str, list[Numbered]]) -> float:
    """`Timeline.exposed_of`, from the events of that rank alone."""
    ended = max((event.end for lane in lanes.values() for _, event in lane), default=0.0)
    return max(0.0, ended - timeline.compute[rank])
