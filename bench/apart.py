"""One call's time taken apart, of what was measured of it: no GPU, no torch.

    met | launch | opening ...... | product ............................... | copies | sums | idle | end
                                  | tiles | slowed | waiting | uneven       |

    launch     from when all ranks have met to the first kernel or copy of the call
    opening    from there to the product's kernel: staging, waiting for credits and for other ranks
    tiles      what the tiles of a program take when the same launch runs by itself, with all flags up and nothing copied
    slowed     what they take longer in the call, beside copies and sums
    waiting    for chunks
    uneven     the rest of the product: programs that have ended while others run, the launch behind it that makes the rest
               of a last wave, and the begin and end of its kernels
    copies     behind the product, as long as copies run, for which sums wait
    sums       behind it, where none does, as long as any kernel runs
    idle       behind it, where neither does: flags on their way, kernels about to begin
    rest       of the time without profiler and records, which no term has; it may be negative

Kernels and copies are those of a profiler, so they are whole calls as a user makes them; only what lies within the product is
taken from calls whose tiles record, as an average over its programs. All times are us.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KERNEL, COPY, SET = "kernel", "copy", "set"
KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": SET}
"""Of activities of a device, by their category in a trace for Chrome."""
MEETING = "nccl"
"""In the names of kernels by which ranks meet ahead of a call (`common.Session.queue`)."""
BETWEEN = (MEETING, "spin_kernel", "FillFunctor")
"""In the names of kernels that are of no call: meetings, sleep, the flush of the cache (a set, or a kernel)."""
TERMS = ("launch", "opening", "tiles", "slowed", "waiting", "uneven", "copies", "sums", "idle", "rest")
CHUNK_BYTES = 4096
"""Copies of fewer bytes are flags."""
EARLY = 0.5
"""A profiler's clock may have a kernel begin so much ahead of the end of the one before it."""


@dataclass(frozen=True)
class Activity:
    """A kernel, a copy or a set of one device, from ``begin`` to ``end`` on the profiler's clock; ``bytes`` of copies."""

    kind: str
    name: str
    stream: int
    begin: float
    end: float
    bytes: int = 0

    @property
    def between(self) -> bool:
        return self.kind == SET or any(word in self.name for word in BETWEEN)


@dataclass(frozen=True)
class Call:
    """What ran of one call, in order of time, behind the moment ``met`` at which all ranks had met."""

    met: float
    activities: tuple[Activity, ...]

    @property
    def end(self) -> float:
        return max((each.end for each in self.activities), default=self.met)

    @property
    def kernels(self) -> set[str]:
        """Names of its kernels."""
        return {each.name for each in self.activities if each.kind == KERNEL}


def activities_of(trace: Mapping[str, Any]) -> list[Activity]:
    """The activities of the device in a trace for Chrome, in order of time."""
    found = []
    for event in trace["traceEvents"]:
        kind = KINDS.get(event.get("cat", ""))
        if kind is not None and event.get("ph") == "X":
            more, begin = event.get("args", {}), float(event["ts"])
            end, moved = begin + float(event["dur"]), int(more.get("bytes", 0) or 0)
            found.append(Activity(kind, event["name"], int(more.get("stream", 0) or 0), begin, end, moved))
    return sorted(found, key=lambda each: (each.begin, each.end))


def calls_of(activities: Iterable[Activity]) -> list[Call]:
    """The calls that stand behind a meeting each, up to the next thing that is of no call."""
    found: list[Call] = []
    inside: list[Activity] = []
    met: float | None = None
    for each in sorted(activities, key=lambda each: (each.begin, each.end)):
        if not each.between:
            inside += [each] if met is not None and each.begin >= met - EARLY else []
            continue
        if met is not None and inside:
            found.append(Call(met, tuple(inside)))
        met, inside = each.end if MEETING in each.name else None, []
    if met is not None and inside:
        found.append(Call(met, tuple(inside)))
    return found


@dataclass(frozen=True)
class Frame:
    """A call by its kernels and copies; ``product``: from the begin of its product's first kernel to the end of the last."""

    launch: float
    opening: float
    product: float
    copies: float
    sums: float
    idle: float

    @property
    def total(self) -> float:
        return self.launch + self.opening + self.product + self.copies + self.sums + self.idle


def frame_of(call: Call, product: Collection[str]) -> Frame:
    """Takes a call apart around its product.

    Args:
        product: names of the kernels that the product is made by.

    Raises:
        ValueError: none of them ran.
    """
    own = [each for each in call.activities if each.name in product]
    if not own:
        raise ValueError(f"none of {', '.join(sorted(product)) or 'no kernels'} ran in the call")
    begin, end = own[0].begin, max(each.end for each in own)
    first = min(begin, *(each.begin for each in call.activities))
    copies = covered([(e.begin, e.end) for e in call.activities if e.kind == COPY], end, call.end)
    anything = covered([(e.begin, e.end) for e in call.activities], end, call.end)
    idle = call.end - end - anything
    return Frame(first - call.met, begin - first, end - begin, copies, anything - copies, idle)


def covered(intervals: Iterable[tuple[float, float]], low: float, high: float) -> float:
    """How much of ``low`` to ``high`` lies within any of the intervals."""
    total, reached = 0.0, low
    for begin, end in sorted(intervals):
        begin, end = max(begin, reached), min(end, high)
        if end > begin:
            total, reached = total + end - begin, end
    return total


@dataclass(frozen=True)
class Tiles:
    """Where the time of a program went, on average over ``programs``, from the first tile's begin to the last one's end."""

    programs: int
    busy: float
    waiting: float
    uneven: float

    @property
    def span(self) -> float:
        return self.busy + self.waiting + self.uneven


def tiles_of(record: Any) -> Tiles:
    """Of what a rank's tiles recorded (`overlap.schedule.recorded.RankRecord`, whose times are seconds)."""
    spent = {name: 1e6 * seconds for name, seconds in record.spent().items()}
    return Tiles(len(record.programs), spent["computing"], spent["waiting"], spent["not running while others do"])


def terms_of(ours: float, frames: Sequence[Frame], tiles: Sequence[Tiles], alone: Sequence[Tiles]) -> dict[str, float]:
    """The terms, which add up to ``ours``: each a median over calls.

    Args:
        ours: of the call, without profiler and records.
        frames: of profiled calls.
        tiles: of calls whose tiles record.
        alone: of launches of the same kernel by itself, whose tiles record.
    """
    middle = {key: statistics.median(getattr(frame, key) for frame in frames) for key in Frame.__annotations__}
    busy, waiting = (statistics.median(getattr(each, key) for each in tiles) for key in ("busy", "waiting"))
    undisturbed = statistics.median(each.busy for each in alone)
    product = middle.pop("product")
    parts = {"tiles": undisturbed, "slowed": busy - undisturbed, "waiting": waiting, "uneven": product - busy - waiting}
    found = {**middle, **parts}
    found["rest"] = ours - sum(found.values())
    return {name: found[name] for name in TERMS}


def copying_of(call: Call) -> dict[str, float]:
    """The copies of chunks, nothing of none: when the first begins and the last ends, how long any runs, and GB/s meanwhile;
    ``beside``: how much longer they would take one behind the other."""
    chunks = [each for each in call.activities if each.kind == COPY and each.bytes >= CHUNK_BYTES]
    if not chunks:
        return {}
    begin, end = min(each.begin for each in chunks), max(each.end for each in chunks)
    busy = covered([(each.begin, each.end) for each in chunks], begin, end)
    found = {"from": begin - call.met, "until": end - call.met, "busy": busy}
    found["gb_s"] = sum(each.bytes for each in chunks) / busy / 1e3
    found["beside"] = sum(each.end - each.begin for each in chunks) - busy
    return {name: round(value, 1) for name, value in found.items()}


def timeline_of(call: Call) -> list[list[Any]]:
    """A call as rows for a file: kind, name, stream, begin and length, counted from the meeting, and bytes of copies."""
    return [
        [e.kind, e.name[:48], e.stream, round(e.begin - call.met, 1), round(e.end - e.begin, 1), e.bytes]
        for e in call.activities
    ]
