"""What a traced kernel writes down of each tile, and what is read off it: when chunks were seen, what was waited for.

    log    tile 0 | tile 1 | ... | tile 0: part 0, part 1, ... | tile 1: part 0, ... |
    tile   waits | ready | begins | ends | program, multiprocessor | - | - | -
    part   waits | ready                                  (of loops inside the tile that wait for chunks)

Words are int64, times nanoseconds of the device's timer; 0 is what was never written. `overlap.language.record` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from overlap.chunkplan.plan import OpId
from overlap.errors import ScheduleError

from .model import RankSchedule, Run

TILE_WORDS = 8
PART_WORDS = 2
WAITS, READY, BEGINS, ENDS, WHO = range(5)

LOOK = 2e-6
"""Seconds up to which a wait may be no wait: a look at flags that are up took 0.6 us on average, and 1.8 at most, on an H200."""


def log_words(tiles: int, parts: int = 0) -> int:
    """int64 words of the log of so many tiles with ``parts`` parts each."""
    return tiles * (TILE_WORDS + parts * PART_WORDS)


class TileTimes(NamedTuple):
    """One tile: its position in the schedule, seconds on a clock that all ranks share, and where it ran.

    ``waits`` to ``ready`` is its wait, at its beginning where it waits for nothing; ``parts``: the waits of its parts, of each
    loop over them; None of a loop that was not entered.
    """

    position: int
    program: int
    unit: int
    begins: float
    waits: float
    ready: float
    ends: float
    parts: tuple[tuple[float, float] | None, ...] = ()

    @property
    def waited(self) -> float:
        """Seconds that the program did nothing but wait; mere looks do not count."""
        waits = ((self.waits, self.ready), *(part for part in self.parts if part is not None))
        return sum(ready - begun for begun, ready in waits if ready - begun > LOOK)


def tiles_of(
    words: Sequence[int], tiles: int, parts: int, zero: float, rate: float = 1e-9, loops: int = 1
) -> tuple[TileTimes, ...]:
    """The records of a log, by position.

    Args:
        words: of `log_words(tiles, parts)`, ``parts`` of all ``loops`` together.
        zero: the moment of the device's timer that is time 0.
        rate: seconds of a count of the timer.

    Raises:
        ScheduleError: a tile that has recorded nothing, or times that run backwards.
    """
    if len(words) != log_words(tiles, parts):
        raise ScheduleError(f"a log of {len(words)} words for {tiles} tiles with {parts} parts")
    found = []
    for position in range(tiles):
        line = words[position * TILE_WORDS : (position + 1) * TILE_WORDS]
        waits, ready, begins, ends, who = line[:5]
        # A tile that waits for nothing records no wait.
        waits, ready = (waits, ready) if waits or ready else (begins, begins)
        base = tiles * TILE_WORDS + position * parts * PART_WORDS
        pairs = [tuple(words[at : at + PART_WORDS]) for at in range(base, base + parts * PART_WORDS, PART_WORDS)]
        moments = [begins, waits, ready, *(moment for pair in pairs if any(pair) for moment in pair), ends]
        entered = [any(pair) for pair in pairs]
        each = parts // loops
        half = any(len(set(entered[at : at + each])) > 1 for at in range(0, parts, each or 1))
        if 0 in moments or half or (parts and not any(entered)):
            raise ScheduleError(f"tile {position} has not recorded all of its times")
        if sorted(moments) != moments:
            raise ScheduleError(f"the times of tile {position} run backwards: {moments}")
        begin, wait, seen, end = ((moment - zero) * rate for moment in (begins, waits, ready, ends))
        inner = tuple(((pair[0] - zero) * rate, (pair[1] - zero) * rate) if any(pair) else None for pair in pairs)
        found.append(TileTimes(position, who >> 32, who & 0xFFFFFFFF, begin, wait, seen, end, inner))
    return tuple(found)


@dataclass(frozen=True)
class Arrival:
    """When a chunk was first seen to have landed on a rank by one of its tiles, in seconds.

    ``tile``: the first that used it, by position. ``waited``: that tile waited for it until then, so it came at this moment;
    otherwise it was there when the tile looked, and came at any moment before.
    """

    op: OpId
    seen: float
    tile: int
    waited: bool


@dataclass(frozen=True)
class RankRecord:
    """One call on one rank, on a clock that all ranks share, from the moment when all ranks let it begin.

    ``parts``: of kernels whose tiles wait inside their loop, the schedule of its parts. ``names``: of the tiles, by position.
    ``end``: when all that the call enqueued on the caller's stream was done. ``watched``: by operation, when its flag was up;
    ``copied``: of operations that this rank's streams carry out, from when to when. ``exactly``: seconds within which this
    rank's clock is known against that of rank 0; ``step``: of its timer.
    """

    rank: int
    schedule: RankSchedule
    parts: RankSchedule | None
    names: tuple[str, ...]
    tiles: tuple[TileTimes, ...]
    end: float
    watched: Mapping[OpId, float] = field(default_factory=dict)
    copied: Mapping[OpId, tuple[float, float]] = field(default_factory=dict)
    exactly: float = 0.0
    step: float = 0.0

    @property
    def begin(self) -> float:
        """When the first tile began; the end of the call where the rank has none."""
        return min((tile.begins for tile in self.tiles), default=self.end)

    @property
    def tiles_end(self) -> float:
        """When the last tile ended."""
        return max((tile.ends for tile in self.tiles), default=self.begin)

    @property
    def programs(self) -> dict[int, list[TileTimes]]:
        """The tiles that each program computed, in order of time."""
        found: dict[int, list[TileTimes]] = {}
        for tile in sorted(self.tiles, key=lambda tile: (tile.begins, tile.position)):
            found.setdefault(tile.program, []).append(tile)
        return dict(sorted(found.items()))

    @property
    def waited(self) -> float:
        """Seconds that a program of this rank waited for chunks, on average."""
        programs = len({tile.program for tile in self.tiles})
        return sum(tile.waited for tile in self.tiles) / programs if programs else 0.0

    def spent(self) -> dict[str, float]:
        """Where the call's time went, for a program on average: seconds that add up to `end`."""
        programs = self.programs.values()
        own = sum(tiles[-1].ends - tiles[0].begins for tiles in programs) / len(programs) if programs else 0.0
        return {
            "ahead of the first tile": self.begin,
            "computing": own - self.waited,
            "waiting": self.waited,
            "not running while others do": self.tiles_end - self.begin - own,
            "behind the last tile": self.end - self.tiles_end,
        }

    @property
    def tile(self) -> float:
        """Seconds from when a tile is ready to its end, of the tile in the middle; 0 without tiles."""
        found = sorted(tile.ends - tile.ready for tile in self.tiles)
        return found[len(found) // 2] if found else 0.0

    def run_of(self, position: int) -> int:
        """Number of the run that holds a tile."""
        runs = self.schedule.runs
        return next(i for i, run in enumerate(runs) if run.first <= position < run.first + run.tiles)

    def arrivals(self) -> dict[OpId, Arrival]:
        """Of every chunk that a tile of this rank waits for, when that was first seen."""
        found: dict[OpId, Arrival] = {}
        for run in self.schedule.runs:
            for tile in self.tiles[run.first : run.first + run.tiles]:
                self._see(found, run, tile.position, tile.waits, tile.ready)
        runs = self.parts.runs if self.parts is not None else ()
        for tile in self.tiles if runs else ():
            for number, part in enumerate(tile.parts):
                if part is not None:
                    self._see(found, runs[number % len(runs)], tile.position, *part)
        return found

    def came(self) -> dict[OpId, float]:
        """Of every chunk that was seen, when that was first, by a tile ."""
        found = dict(self.watched)
        for op, arrival in self.arrivals().items():
            found[op] = min(arrival.seen, found.get(op, arrival.seen))
        return found

    def _see(self, found: dict[OpId, Arrival], run: Run, position: int, waits: float, ready: float) -> None:
        last = run.chunk
        for op in {wait.op for wait in run.waits} | ({last} if last is not None else set()):
            if op not in found or ready < found[op].seen:
                # Of several chunks the wait ends with the last; of the others it says that they were there by then.
                waited = ready - waits > LOOK and (op == last or len(run.waits) == 1)
                found[op] = Arrival(op, ready, position, waited)

    def made(self) -> dict[OpId, float]:
        """Of every chunk that tiles of this rank make, by the operation that sends it: when its last tile had ended."""
        found = {}
        for counter in self.schedule.counters:
            ends = [
                tile.ends
                for run in self.schedule.runs
                if any(raised.slot == counter.slot for raised in run.raises)
                for tile in self.tiles[run.first : run.first + run.tiles]
            ]
            found.update(dict.fromkeys(counter.ops, max(ends)) if ends else {})
        return found
