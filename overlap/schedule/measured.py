"""Predicted and measured times of one call side by side: as one trace for Perfetto, and as text.

    process   rank 0 predicted   copy 0, ..., tiles, sums                      (`trace`)
              rank 0 measured    call, chunks, copy 0, ..., a thread for each program: its tiles and their waits
              rank 1 predicted   ...

Measured times begin when all ranks may begin, predicted ones at the launch. A chunk's mark ends when it was seen first, and an
arrow leads to the tile that saw it. In flattened loops a program waits for its next tile before it stores the last: such a wait
lies inside the slice of the tile before, and a tile's slice begins when the one before it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from overlap.chunkplan.plan import CommPlan, OpId

from .lanes import natural
from .recorded import LOOK, RankRecord, TileTimes
from .timeline import Event, Timeline
from .trace import (
    arrow_entries,
    nanoseconds,
    process_entries,
    slice_entry,
    thread_entries,
    timeline_entries,
    trace_text,
)

CALL, CHUNKS, COPIES = 0, 1, 2
"""Threads of a measured rank; lanes of copies stand from the last on, and programs behind them."""
MARK_NS = 100
"""How long the mark of a chunk is drawn: it has no length, and arrows begin at things that have one."""


@dataclass(frozen=True)
class Measured:
    """One call of all ranks, measured, and what was predicted of it.

    ``tile``: seconds that each tile was predicted to take. ``about``: the device and how it was measured, for people.
    """

    title: str
    plan: CommPlan
    records: tuple[RankRecord, ...]
    predicted: Timeline
    tile: float = 0.0
    about: str = ""

    @property
    def exactly(self) -> float:
        """Seconds within which the ranks' clocks are known against each other."""
        return max((record.exactly for record in self.records), default=0.0)

    @property
    def step(self) -> float:
        """Seconds of a step of the timer that steps furthest."""
        return max((record.step for record in self.records), default=0.0)

    def trace(self) -> str:
        """The trace as JSON text, in the trace event format."""
        schedules = [schedule for r in self.records for schedule in (r.schedule, r.parts) if schedule is not None]
        entries = timeline_entries(self.predicted, schedules, lambda rank: (2 * rank, f"rank {rank} predicted"))
        labels = _copies(self.predicted)
        arrows = len(self.predicted.events)
        for record in self.records:
            made = _RankEntries(record, labels, arrows)
            entries += made.entries
            arrows = made.arrows
        about = {
            "title": self.title,
            "measured": self.about,
            "timer_step_us": self.step * 1e6,
            "clocks_within_us": self.exactly * 1e6,
        }
        return trace_text(about, entries)

    def __str__(self) -> str:
        step, known = self.step * 1e6, self.exactly * 1e6
        lines = [
            f"{self.title}",
            f"us from when all ranks may begin, measured (predicted); {self.about}timer in steps of {step:.3g} us, ranks' clocks "
            f"within {known:.3g} us",
        ]
        labels = _copies(self.predicted)
        for record in self.records:
            lines += _rank_lines(record, self, labels)
        return "\n".join(lines)


def _copies(timeline: Timeline) -> dict[OpId, Event]:
    """The copy of every operation, as predicted."""
    return {event.op: event for event in timeline.events if event.kind == "copy" and event.op is not None}


class _RankEntries:
    """What is written of one measured rank; ``arrows``: the number of the last arrow."""

    def __init__(self, record: RankRecord, labels: dict[OpId, Event], arrows: int) -> None:
        self.record = record
        self.labels = labels
        self.arrows = arrows
        self.pid = 2 * record.rank + 1
        self.entries = process_entries(self.pid, f"rank {record.rank} measured")
        self._drawn: dict[int, tuple[tuple[int, int], int, int]] = {}
        self._call()
        for number, (program, tiles) in enumerate(record.programs.items(), COPIES + self._copies()):
            self._program(number, program, tiles)
        self._chunks()

    def _slice(self, thread: int, kind: str, name: str, start: float, end: float, **args: Any) -> tuple[int, int]:
        """Writes a slice; its ends in nanoseconds."""
        begin, last = nanoseconds(start), nanoseconds(end)
        self.entries.append(slice_entry((self.pid, thread), kind, name, begin, last, args))
        return begin, last

    def _call(self) -> None:
        record = self.record
        self.entries += thread_entries(self.pid, CALL, "call")
        self._slice(CALL, "call", "ahead of the first tile", 0.0, record.begin)
        self._slice(CALL, "call", f"{len(record.tiles)} tiles", record.begin, record.tiles_end)
        self._slice(CALL, "call", "behind the last tile", record.tiles_end, record.end)

    def _copies(self) -> int:
        """Copies in lanes of the plan's channels; how many lanes there are."""
        lanes = sorted({self.labels[op].lane for op in self.record.copied}, key=natural)
        for number, lane in enumerate(lanes, COPIES):
            self.entries += thread_entries(self.pid, number, lane)
        for op, (start, end) in sorted(self.record.copied.items(), key=lambda item: (item[1], item[0])):
            event = self.labels[op]
            about = {"chunk": event.chunk, "operation": _said(op)}
            self._slice(COPIES + lanes.index(event.lane), "copied", event.label, start, end, **about)
        return len(lanes)

    def _program(self, thread: int, program: int, tiles: Sequence[TileTimes]) -> None:
        self.entries += thread_entries(self.pid, thread, f"program {program}, SM {tiles[0].unit}")
        free = 0.0
        for tile in tiles:
            number = self.record.run_of(tile.position)
            chunk = self._chunk(self.record.schedule.runs[number].chunk)
            about = {"position": tile.position, "run": number, "chunk": chunk, "waited_us": tile.waited * 1e6}
            if tile.waits > tile.begins:
                self._beside(thread, "moves", "ahead of the wait", tile.begins, tile.waits, free)
            if tile.ready > tile.waits:
                self._beside(thread, *_wait(chunk, tile.waits, tile.ready), free)
            start = min(max(tile.ready, free), tile.ends)
            begin, end = self._slice(thread, "tile", self.record.names[tile.position], start, tile.ends, **about)
            self._drawn[tile.position] = (self.pid, thread), begin, end
            for number, part in enumerate(tile.parts):
                if part is not None and part[1] > part[0]:
                    self._slice(thread, *_wait(self._part(number), *(max(moment, start) for moment in part)))
            free = max(free, tile.ends)

    def _beside(self, thread: int, kind: str, name: str, start: float, end: float, free: float) -> None:
        """Inside the slice that ends at ``free``, or behind it."""
        if start < free < end:
            start = free
        self._slice(thread, kind, name, start, end)

    def _chunks(self) -> None:
        """A mark for each chunk that came, an arrow to the first tile that used it, and a mark for each that was made."""
        self.entries += thread_entries(self.pid, CHUNKS, "chunks")
        record = self.record
        arrivals = record.arrivals()
        came = record.came()
        for op, when in sorted(came.items(), key=lambda item: (item[1], item[0])):
            event, arrival = self.labels[op], arrivals.get(op)
            about = {
                "chunk": event.chunk,
                "operation": _said(op),
                "seen by": "its flag" if op in record.watched else "a tile",
            }
            if arrival is not None:
                about["first tile"] = f"{record.names[arrival.tile]}, {'waited' if arrival.waited else 'did not wait'}"
            begin, end = self._slice(CHUNKS, "arrival", event.label, when - MARK_NS * 1e-9, when, **about)
            if arrival is None:
                continue
            thread, first, last = self._drawn[arrival.tile]
            at = max(first, end)
            if at < last:
                self.arrows += 1
                self.entries += arrow_entries((self.pid, CHUNKS), (begin + end) // 2, thread, at, self.arrows)
        for op, made in sorted(record.made().items(), key=lambda item: (item[1], item[0])):
            event = self.labels[op]
            start = made - MARK_NS * 1e-9
            self._slice(CHUNKS, "made", f"made: {event.label}", start, made, chunk=event.chunk, operation=_said(op))

    def _chunk(self, op: OpId | None) -> str:
        return self.labels[op].chunk if op in self.labels else "own chunk"  # type: ignore[index]

    def _part(self, number: int) -> str:
        assert self.record.parts is not None
        runs = self.record.parts.runs
        return self._chunk(runs[number % len(runs)].chunk)


def _wait(chunk: str, start: float, end: float) -> tuple[str, str, float, float]:
    """Kind and name of a wait, or of a look at flags that are up, and its ends."""
    kind, name = ("wait", "for") if end - start > LOOK else ("look", "looks for")
    return kind, f"{name} {chunk}", start, end


def _said(op: OpId) -> str:
    return f"{op[1]} of rank {op[0]}"


def _rank_lines(record: RankRecord, whole: Measured, labels: dict[OpId, Event]) -> list[str]:
    """A rank's ends, then a line for each chunk that reaches it or that it makes."""
    rank, predicted = record.rank, whole.predicted
    runs = [event for event in predicted.events if event.rank == rank and event.kind == "tile-run"]
    first = min((event.start for event in runs), default=0.0)
    tiles_end = max((event.end for event in runs), default=0.0)
    pairs = (
        ("first tile", record.begin, first),
        ("tiles end", record.tiles_end, tiles_end),
        ("call ends", record.end, predicted.end_of(rank)),
        ("waiting, a program", record.waited, _idle(predicted, rank)),
        ("a tile", record.tile, whole.tile),
    )
    said = ", ".join(f"{name} {_us(seen)} ({_us(model)})" for name, seen, model in pairs)
    spent = ", ".join(f"{_us(seconds)} {name}" for name, seconds in record.spent().items())
    lines = [f"rank {rank}: {said}", f"  of {_us(record.end)} a program spends on average: {spent}"]
    flags = {event.op: event.end for event in predicted.events if event.kind == "flag"}
    arrivals = record.arrivals()
    copied = {op: times for each in whole.records for op, times in each.copied.items()}
    rows = []
    for op, seen_at in sorted(record.came().items(), key=lambda item: (item[1], item[0])):
        arrival = arrivals.get(op)
        # Where nothing watches, a tile that waited says when; one that did not, no later than when.
        exact = op in record.watched or arrival is not None and arrival.waited
        seen = f"{'' if exact else 'by '}{_us(seen_at)}"
        used = f"{_us(arrival.seen)} by {record.names[arrival.tile]}" if arrival is not None else ""
        model = f"({_us(labels[op].start)} to {_us(labels[op].end)})"
        moved = f"{_us(copied[op][0])} to {_us(copied[op][1])}" if op in copied else ""
        rows.append((labels[op].label, moved, model, seen, f"({_us(flags[op])})", used))
    for op, when in sorted(record.made().items(), key=lambda item: (item[1], item[0])):
        rows.append((f"made: {labels[op].label}", "", "", _us(when), f"({_us(labels[op].start)})", ""))
    if rows:
        rows.insert(0, ("chunk", "copied", "(predicted)", "here", "(predicted)", "first used"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def _idle(predicted: Timeline, rank: int) -> float:
    """Predicted seconds that a rank's units wait for chunks, between its first tile and its last."""
    return sum(e.seconds for e in predicted.events if e.rank == rank and e.kind == "wait" and e.op is not None)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"
