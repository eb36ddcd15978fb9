"""A `Timeline` in the trace event format that chrome://tracing and Perfetto open.

A rank is a process, a lane of it a thread. Events of no length are slices of no length, so that nothing is missing. An
arrow leads from a copy to what first waits for it, or first uses it, on the compute units of some rank.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .lanes import lanes_by_rank
from .model import RankSchedule
from .timeline import Event, Timeline


def chrome_trace(timeline: Timeline, *, title: str = "overlap", schedules: Sequence[RankSchedule] = ()) -> str:
    """The trace as JSON text, an event a line; the same timeline gives the same text.

    Args:
        schedules: where the flags of operations are looked up.
    """
    flags = {op: f"{slot} of rank {schedule.rank}" for schedule in schedules for op, slot in schedule.slots.items()}
    critical = set(timeline.critical)
    written: list[dict[str, Any]] = []
    threads: dict[tuple[int, str], int] = {}
    for rank in range(timeline.world):
        written.append(_named("process_name", rank, 0, name=f"rank {rank}"))
        written.append(_named("process_sort_index", rank, 0, sort_index=rank))
    for rank, lanes in lanes_by_rank(timeline, range(timeline.world)).items():
        for number, name in enumerate(lanes):
            threads[rank, name] = number
            written.append(_named("thread_name", rank, number, name=name))
            written.append(_named("thread_sort_index", rank, number, sort_index=number))
    for index, event in enumerate(timeline.events):
        start, end = _nanoseconds(event.start), _nanoseconds(event.end)
        args: dict[str, Any] = {"chunk": event.chunk, "critical": index in critical}
        if event.op is not None:
            args["operation"] = f"{event.op[1]} of rank {event.op[0]}"
            if event.op in flags:
                args["flag"] = flags[event.op]
        if event.source >= 0:
            args["from"] = f"rank {event.source}"
        written.append(
            {
                "ph": "X",
                "name": event.label,
                "cat": event.kind,
                "pid": event.rank,
                "tid": threads[event.rank, event.lane],
                "ts": start / 1000,
                "dur": (end - start) / 1000,
                "args": args,
            }
        )
    written += _arrows(timeline, threads)
    lines = ",\n".join(json.dumps(entry, separators=(",", ":"), allow_nan=False) for entry in written)
    about = json.dumps({"title": title, "exposed_ms": _nanoseconds(timeline.exposed) / 1e6})
    return f'{{"displayTimeUnit":"ns","otherData":{about},"traceEvents":[\n{lines}\n]}}\n'


def _arrows(timeline: Timeline, threads: dict[tuple[int, str], int]) -> list[dict[str, Any]]:
    """Arrows from each copy to the first event of some length on a rank's tiles that has its operation and ends later."""
    copies = {event.op: event for event in timeline.events if event.kind == "copy" and event.op is not None}
    drawn: set[tuple[int, int]] = set()
    written: list[dict[str, Any]] = []
    for event in timeline.events:
        if event.lane != "tiles" or event.op is None or event.op not in copies or event.op in drawn:
            continue
        copy = copies[event.op]
        # An end of an arrow belongs to the slice that it lies in.
        leaves = (_nanoseconds(copy.start) + _nanoseconds(copy.end)) // 2
        arrives = max(leaves, _nanoseconds(event.start))
        if arrives >= _nanoseconds(event.end):
            continue
        drawn.add(event.op)
        for end in ({"ph": "s", **_at(copy, threads, leaves)}, {"ph": "f", "bp": "e", **_at(event, threads, arrives)}):
            written.append({**end, "name": "arrives", "cat": "chunk", "id": len(drawn)})
    return written


def _at(event: Event, threads: dict[tuple[int, str], int], nanoseconds: int) -> dict[str, Any]:
    return {"pid": event.rank, "tid": threads[event.rank, event.lane], "ts": nanoseconds / 1000}


def _named(what: str, rank: int, thread: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
