"""A `Timeline` in the trace event format that chrome://tracing and Perfetto open.

A rank is a process, a lane of it a thread. Events of no length are slices of no length, so that nothing is missing. An
arrow leads from a copy to what first waits for it, or first uses it, on the compute units of some rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .lanes import lanes_by_rank
from .model import RankSchedule
from .timeline import Event, Timeline

Entry = dict[str, Any]
"""One event of the trace event format."""


def chrome_trace(timeline: Timeline, *, title: str = "overlap", schedules: Sequence[RankSchedule] = ()) -> str:
    """The trace as JSON text, an event a line; the same timeline gives the same text.

    Args:
        schedules: where the flags of operations are looked up.
    """
    about = {"title": title, "exposed_ms": nanoseconds(timeline.exposed) / 1e6}
    return trace_text(about, timeline_entries(timeline, schedules))


def trace_text(about: Mapping[str, Any], entries: Sequence[Entry]) -> str:
    """A whole trace; ``about`` is what viewers show of it beside its events."""
    lines = ",\n".join(json.dumps(entry, separators=(",", ":"), allow_nan=False) for entry in entries)
    said = json.dumps(about)
    return f'{{"displayTimeUnit":"ns","otherData":{said},"traceEvents":[\n{lines}\n]}}\n'


def timeline_entries(
    timeline: Timeline,
    schedules: Sequence[RankSchedule] = (),
    process: Callable[[int], tuple[int, str]] = lambda rank: (rank, f"rank {rank}"),
) -> list[Entry]:
    """The events of a timeline; ``process``: number and name of the process that a rank is."""
    flags = {op: f"{slot} of rank {schedule.rank}" for schedule in schedules for op, slot in schedule.slots.items()}
    critical = set(timeline.critical)
    written: list[Entry] = []
    threads: dict[tuple[int, str], tuple[int, int]] = {}
    for rank in range(timeline.world):
        written += process_entries(*process(rank))
    for rank, lanes in lanes_by_rank(timeline, range(timeline.world)).items():
        pid, _ = process(rank)
        for number, name in enumerate(lanes):
            threads[rank, name] = pid, number
            written += thread_entries(pid, number, name)
    for index, event in enumerate(timeline.events):
        start, end = nanoseconds(event.start), nanoseconds(event.end)
        args: dict[str, Any] = {"chunk": event.chunk, "critical": index in critical}
        if event.op is not None:
            args["operation"] = f"{event.op[1]} of rank {event.op[0]}"
            if event.op in flags:
                args["flag"] = flags[event.op]
        if event.source >= 0:
            args["from"] = f"rank {event.source}"
        written.append(slice_entry(threads[event.rank, event.lane], event.kind, event.label, start, end, args))
    return written + _arrows(timeline, threads)


def slice_entry(thread: tuple[int, int], kind: str, name: str, start: int, end: int, args: Mapping[str, Any]) -> Entry:
    """Something that lasts, from ``start`` to ``end`` nanoseconds, in a thread of a process."""
    pid, tid = thread
    when = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": tid, **when, "args": dict(args)}


def arrow_entries(
    source: tuple[int, int], leaves: int, target: tuple[int, int], arrives: int, number: int
) -> list[Entry]:
    """An arrow between two slices, whose ends lie in them; its ``number`` is no other's in the trace."""
    start = {"ph": "s", "pid": source[0], "tid": source[1], "ts": leaves / 1000}
    end = {"ph": "f", "bp": "e", "pid": target[0], "tid": target[1], "ts": arrives / 1000}
    return [{**each, "name": "arrives", "cat": "chunk", "id": number} for each in (start, end)]


def process_entries(pid: int, name: str) -> list[Entry]:
    """What names a process, and gives it its place."""
    return [_named("process_name", pid, 0, name=name), _named("process_sort_index", pid, 0, sort_index=pid)]


def thread_entries(pid: int, tid: int, name: str) -> list[Entry]:
    """What names a thread, and gives it its place."""
    return [_named("thread_name", pid, tid, name=name), _named("thread_sort_index", pid, tid, sort_index=tid)]


def _arrows(timeline: Timeline, threads: Mapping[tuple[int, str], tuple[int, int]]) -> list[Entry]:
    """Arrows from each copy to the first event of some length on a rank's tiles that has its operation and ends later."""
    copies = {event.op: event for event in timeline.events if event.kind == "copy" and event.op is not None}
    drawn: set[tuple[int, int]] = set()
    written: list[Entry] = []
    for event in timeline.events:
        if event.lane != "tiles" or event.op is None or event.op not in copies or event.op in drawn:
            continue
        copy = copies[event.op]
        # An end of an arrow belongs to the slice that it lies in.
        leaves = (nanoseconds(copy.start) + nanoseconds(copy.end)) // 2
        arrives = max(leaves, nanoseconds(event.start))
        if arrives >= nanoseconds(event.end):
            continue
        drawn.add(event.op)
        written += arrow_entries(_thread(copy, threads), leaves, _thread(event, threads), arrives, len(drawn))
    return written


def _thread(event: Event, threads: Mapping[tuple[int, str], tuple[int, int]]) -> tuple[int, int]:
    return threads[event.rank, event.lane]


def _named(what: str, rank: int, thread: int, **args: str | int) -> Entry:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args}


def nanoseconds(seconds: float) -> int:
    """To the nearest."""
    return round(seconds * 1e9)
