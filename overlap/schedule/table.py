"""`ScheduleTable`: a rank's schedule as int32 words, the one form kernels read.

    header (8 words)   version, runs, run base, coordinate base, flag base, axes, tiles, 0
    runs               RUN_WORDS each, closed by a sentinel whose first tile is past every tile
    waits, raises      (slot, count) pairs, each run's waits and behind them its raises
    coordinates        only for mappings that are no bijection: one word an axis and position

A new order, split or shape is a new table, never a new kernel. `overlap.language` reads these
offsets and nothing else, so a change here raises VERSION.
"""

from __future__ import annotations

from overlap.errors import ScheduleError

from .model import RankSchedule

VERSION = 1

HEADER_WORDS = 8
H_VERSION, H_RUNS, H_RUN_BASE, H_COORD_BASE, H_FLAG_BASE, H_AXES, H_TILES = range(7)

RUN_WORDS = 16
R_FIRST, R_UNIT, R_WAIT_BEGIN, R_WAIT_END, R_RAISE_BEGIN, R_RAISE_END, R_PEER = range(7)
R_AXIS = 8
"""From here two words an axis: origin, count. At most `MAX_AXES`."""

MAX_AXES = 4
SENTINEL = 2**31 - 1

# The state tensor of an instance: int64 words, each slot alone in a 32-byte sector.
SLOT_WORDS = 4
S_EPOCH, S_COUNTER, S_SPIN_LIMIT, S_FAULT = range(4)
S_READY = 4


def done_base(world: int) -> int:
    """Slot of the first ``done`` credit; ``ready`` words stand before it."""
    return S_READY + world


def flag_base(world: int) -> int:
    """Slot of flag 0."""
    return S_READY + 2 * world


def state_words(world: int, flags: int) -> int:
    """int64 words of an instance's state tensor."""
    return (flag_base(world) + flags) * SLOT_WORDS


def to_words(schedule: RankSchedule) -> list[int]:
    """The schedule as int32 words.

    Raises:
        ScheduleError: more than `MAX_AXES` axes, or a value outside int32.
    """
    axes = len(schedule.axes)
    if axes > MAX_AXES:
        raise ScheduleError(f"{axes} tile axes; a table holds {MAX_AXES}")
    runs = schedule.runs
    run_base = HEADER_WORDS
    flag_words = run_base + (len(runs) + 1) * RUN_WORDS
    flags: list[int] = []
    records: list[int] = []
    for run in runs:
        record = [0] * RUN_WORDS
        record[R_FIRST] = run.first
        record[R_UNIT] = run.unit
        record[R_WAIT_BEGIN] = flag_words + len(flags)
        for wait in run.waits:
            flags += [wait.slot, wait.count]
        record[R_WAIT_END] = record[R_RAISE_BEGIN] = flag_words + len(flags)
        for raised in run.raises:
            flags += [raised.slot, raised.count]
        record[R_RAISE_END] = flag_words + len(flags)
        record[R_PEER] = run.peer
        for axis in range(axes):
            record[R_AXIS + 2 * axis] = run.origin[axis]
            record[R_AXIS + 2 * axis + 1] = run.counts[axis]
        records += record
    sentinel = [0] * RUN_WORDS
    sentinel[R_FIRST] = SENTINEL
    coordinates = [c for tile in schedule.coordinates or () for c in tile]
    header = [0] * HEADER_WORDS
    header[H_VERSION] = VERSION
    header[H_RUNS] = len(runs)
    header[H_RUN_BASE] = run_base
    header[H_COORD_BASE] = flag_words + len(flags) if coordinates else 0
    header[H_FLAG_BASE] = flag_base(schedule.world) * SLOT_WORDS
    header[H_AXES] = axes
    header[H_TILES] = sum(run.tiles for run in runs)
    words = header + records + sentinel + flags + coordinates
    if any(not -(2**31) <= w < 2**31 for w in words):
        raise ScheduleError("a value of the schedule does not fit 32 bits: the kernel has too many tiles")
    return words
