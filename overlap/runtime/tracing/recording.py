"""The log of a traced kernel: where its tiles write when they wait, begin and end (`overlap.language.record`).

A log belongs to a table of an instance, so it is as large as the schedule. Every launch writes every record again; one that
shall be read is cleared ahead of it, so that what was never written shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlap.chunkplan.plan import OpId
from overlap.schedule.model import RankSchedule
from overlap.schedule.recorded import log_words

from ..bound_plan import BoundPlan
from ..calls.resolve import Bound
from ..protocol import Runtime
from ..repeat.places import NOTHING, Carried
from ..tables.hosteval import on_host
from ..tables.ranges import range_schedule

if TYPE_CHECKING:
    from ..instance import Instance, LaunchTable

_LAST, _COPIES = "log", "marked copies"

Enqueue = Callable[..., None]


@dataclass(frozen=True, eq=False)
class Log:
    """A log on the device; ``parts``: the schedule of the parts of a loop inside the tile, where one waits.

    ``names``: of the tiles, by position: their coordinates.
    """

    instance: Instance
    words: Any
    schedule: RankSchedule
    parts: RankSchedule | None
    names: tuple[str, ...]

    @property
    def tiles(self) -> int:
        return sum(run.tiles for run in self.schedule.runs)

    @property
    def parts_of_a_tile(self) -> int:
        return _parts(self.instance, self.parts)

    def clear(self) -> None:
        """Forgets what earlier launches wrote; the device must be done with them."""
        self.instance.runtime.table([0] * self.size, bits=64, into=self.words)

    def read(self) -> list[int]:
        """The words; the device must be done with the launch."""
        found: list[int] = self.words.tolist()
        return found[: log_words(self.tiles, self.parts_of_a_tile)]

    @property
    def size(self) -> int:
        """Words on the device; one at least, so that there is an address."""
        return max(1, log_words(self.tiles, self.parts_of_a_tile))


def log_arguments(instance: Instance, bound: Bound, table: LaunchTable) -> dict[str, Any]:
    """The kernel argument that holds the log, by name; none where the kernel records nothing. Made once for a table."""
    parameter = instance.operator.parameter("log")
    if not parameter:
        return {}
    parts = range_schedule(instance, bound)
    key = (_LAST, table, id(parts))
    log: Log | None = instance.prepared.get(key)
    if log is None:
        schedule = table.schedule
        tiles = sum(run.tiles for run in schedule.runs)
        words = [0] * max(1, log_words(tiles, _parts(instance, parts)))
        made = instance.runtime.table(words, bits=64)
        log = Log(instance, made, schedule, parts, _names(instance, bound, schedule))
        instance.prepared[key] = log
    instance.prepared[_LAST] = log
    return {parameter: log.words}


class MarkedCopy:
    """The copy of an operation in a traced operator's launches: between two marks while it is ``armed``, else as it is."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.armed = False
        self.marks: tuple[Any, Any] | None = None

    def around(self, copy: Enqueue) -> Enqueue:
        """The copy as it is made ready for launches of some kind, of which an operation may have several."""

        def enqueue(stream: Any, carried: Carried = NOTHING) -> None:
            if not self.armed:
                copy(stream, carried)
                return
            begin = self._runtime.mark(stream)
            copy(stream, carried)
            self.marks = begin, self._runtime.mark(stream)

        return enqueue


def marked(instance: BoundPlan, op: OpId, copy: Enqueue) -> Enqueue:
    """A copy that can be marked where the instance's kernel records its tiles; elsewhere the copy."""
    operator = getattr(instance, "operator", None)
    if operator is None or not operator.parameter("log"):
        return copy
    copies: dict[OpId, MarkedCopy] = instance.prepared.setdefault(_COPIES, {})
    if op not in copies:
        copies[op] = MarkedCopy(instance.runtime)
    return copies[op].around(copy)


def copies_of(instance: Any) -> dict[OpId, MarkedCopy]:
    """The copies of this rank that can be marked, by operation."""
    return dict(instance.prepared.get(_COPIES, {}))


def _parts(instance: Instance, parts: RankSchedule | None) -> int:
    """Records of parts that a tile writes."""
    return len(parts.runs) * instance.operator.logged if parts is not None else 0


def last_log(instance: Any) -> Log | None:
    """The log of the last launch that an instance bound; None: its kernel records nothing."""
    found: Log | None = instance.prepared.get(_LAST)
    return found


def _names(instance: Instance, bound: Bound, schedule: RankSchedule) -> tuple[str, ...]:
    """Coordinates of every tile, in the kernel's own order within each run."""
    tile_map = instance.operator.tile_map
    code = tile_map.__code__
    constants = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    given = {name: getattr(bound.arguments[name], "value", bound.arguments[name]) for name in constants}
    mapping = on_host(tile_map)
    names = []
    for run in schedule.runs:
        for tile in range(run.tiles):
            if schedule.coordinates is not None:
                at = schedule.coordinates[run.first + tile]
            else:
                inside = mapping(tile, *run.counts, **given)
                at = tuple(lo + int(c) for lo, c in zip(run.origin, inside, strict=True))
            names.append(" ".join(f"{axis.name} {c}" for axis, c in zip(schedule.axes, at, strict=True)))
    return tuple(names)
