"""`ScheduleTable`: a rank's schedule as int32 words, the one form kernels read.

    header (9 words)   version, runs, run base, coordinate base, flag base, axes, tiles, counter base, first tile that is finished
    runs               RUN_WORDS each, closed by a sentinel whose first tile is past every tile
    waits              (flag slot, count) pairs of each run
    raises             RAISE_WORDS each: counter slot, target, peer, flag slot there (-1, -1: nobody but this rank is told)
    coordinates        only for mappings that are no bijection: one word an axis and position

A new order, split or shape is a new table, never a new kernel. `overlap.language` reads these
offsets and nothing else, so a change here raises VERSION.
"""

from __future__ import annotations

from collections.abc import Sequence

from overlap.errors import ScheduleError

from .model import RankSchedule
from .pushes import Pushes
from .words import first_way

VERSION = 5

HEADER_WORDS = 9
H_VERSION, H_RUNS, H_RUN_BASE, H_COORD_BASE, H_FLAG_BASE, H_AXES, H_TILES, H_COUNTER_BASE, H_FINISHED = range(9)

RUN_WORDS = 18
R_FIRST, R_UNIT, R_WAIT_BEGIN, R_WAIT_END, R_RAISE_BEGIN, R_RAISE_END, R_PEER, R_WAY, R_MOVES, R_OWN = range(10)
"""R_WAY: where the tiles of the run are stored, the first of the entries of the table of ways (`overlap.schedule.pushes`); or
what is added to them, a record of the table of summands (`overlap.schedule.tile_sums`).
R_MOVES: how many moves are ahead of the run's wait, if the programs that compute make them (`overlap.schedule.interleave`).
R_OWN: 1 where the run's tiles touch nothing but the rank's own (`model.Run`)."""
R_AXIS = 10
"""From here two words an axis: origin, count. At most `MAX_AXES`."""

MAX_AXES = 4
RAISE_WORDS = 4
MAX_RAISES = 128
"""Counters that the tiles of one run may count into: a tile's atomics are the lanes of one vector."""
SENTINEL = 2**31 - 1

# The table of places where tiles are stored (`overlap.runtime.tables.slots`): int64 words, a header, then every run's ways.
W_LOWEST, W_HIGHEST, W_STATES = range(3)
"""What the descriptor that reaches all places begins at and how far it goes; then the address of every rank's state tensor."""
LOW_BYTES, HIGH_BYTES = 16, 1 << 30
"""Steps of the two coordinates that are a place: TMA's alignment, and what keeps both below 2^31 in any address space."""

# The table of what is added to tiles (`overlap.runtime.tables.tile_sums`): int64 words, a record for each run that is finished.
MOST_DIMS = 3
"""Of a tensor whose tiles are finished."""
F_FIRST = 0
"""From here on, for each of `MOST_DIMS` dimensions: where the rank's part begins and ends in what the kernel makes."""
F_ENDS = F_FIRST + MOST_DIMS
F_STRIDES = F_ENDS + MOST_DIMS
"""Of the slots, in elements, the last one 1."""
F_SLOTS = F_STRIDES + MOST_DIMS
"""Of each summand the address that the first element of what the kernel makes would have in its slot."""

# The state tensor of an instance: int64 words, each slot alone in a 32-byte sector.
SLOT_WORDS = 4
S_EPOCH, S_COUNTER, S_SPIN_LIMIT, S_FAULT = range(4)
SUMS_WORD = S_COUNTER * SLOT_WORDS + 1
"""The word that programs of a sum count themselves out in; beside that of the entry kernel, which is over by then."""
S_READY = 4


def done_base(world: int) -> int:
    """Slot of the first ``done`` credit; ``ready`` words stand before it."""
    return S_READY + world


def flag_base(world: int) -> int:
    """Slot of flag 0."""
    return S_READY + 2 * world


def counter_base(world: int, flags: int) -> int:
    """Slot of counter 0, behind room for ``flags`` flags: a counter is reset in every launch, a flag never."""
    return flag_base(world) + flags


def state_words(world: int, flags: int, counters: int = 0) -> int:
    """int64 words of an instance's state tensor."""
    return (counter_base(world, flags) + counters) * SLOT_WORDS


def way_base(world: int) -> int:
    """Where the ways of the first run begin in the table of places."""
    return W_STATES + world


def to_words(
    schedule: RankSchedule,
    flags: int = 0,
    pushes: Pushes | None = None,
    moves: Sequence[int] = (),
    sent: Sequence[int] | None = None,
    summed: Sequence[int] | None = None,
) -> list[int]:
    """The schedule as int32 words.

    Args:
        flags: flags that the state tensor has room for, used or not; counters stand behind them.
        pushes: where tiles are stored, if the kernel stores them into other ranks' slots.
        moves: by run, the moves ahead of its wait, if the kernel makes them between tiles.
        sent: by run, how many receivers its tiles have, if the kernel sends them in words: nothing is counted then.
        summed: by run, where the record of what is added to its tiles begins, if the kernel finishes tiles; -1: they are sent.

    Raises:
        ScheduleError: more than `MAX_AXES` axes or `MAX_RAISES` counters of one run, or a value outside int32.
    """
    axes = len(schedule.axes)
    raises = [_raises(schedule, i, pushes) if sent is None else [] for i in range(len(schedule.runs))]
    most = max(map(len, raises), default=0)
    if most > MAX_RAISES:
        raise ScheduleError(
            f"a tile makes parts of {most} chunks; {MAX_RAISES} can be counted",
            help="use larger chunks (a smaller split) or smaller blocks",
        )
    if axes > MAX_AXES:
        raise ScheduleError(f"{axes} tile axes; a table holds {MAX_AXES}")
    runs = schedule.runs
    run_base = HEADER_WORDS
    flag_words = run_base + (len(runs) + 1) * RUN_WORDS
    pairs: list[int] = []
    records: list[int] = []
    way = way_base(schedule.world) if sent is None else first_way(schedule.world)
    for i, run in enumerate(runs):
        record = [0] * RUN_WORDS
        record[R_FIRST] = run.first
        record[R_UNIT] = run.unit
        record[R_WAIT_BEGIN] = flag_words + len(pairs)
        for wait in run.waits:
            pairs += [wait.slot, wait.count]
        record[R_WAIT_END] = record[R_RAISE_BEGIN] = flag_words + len(pairs)
        for entry in raises[i]:
            pairs += entry
        record[R_RAISE_END] = flag_words + len(pairs)
        record[R_PEER] = run.peer
        record[R_WAY] = way if summed is None else summed[i]
        record[R_MOVES] = moves[i] if moves else 0
        record[R_OWN] = int(run.own)
        way += sent[i] if sent is not None else len(pushes.ways[i]) if pushes is not None else 0
        for axis in range(axes):
            record[R_AXIS + 2 * axis] = run.origin[axis]
            record[R_AXIS + 2 * axis + 1] = run.counts[axis]
        records += record
    sentinel = [0] * RUN_WORDS
    sentinel[R_FIRST] = SENTINEL
    sentinel[R_WAY] = way
    coordinates = [c for tile in schedule.coordinates or () for c in tile]
    header = [0] * HEADER_WORDS
    header[H_VERSION] = VERSION
    header[H_RUNS] = len(runs)
    header[H_RUN_BASE] = run_base
    header[H_COORD_BASE] = flag_words + len(pairs) if coordinates else 0
    header[H_FLAG_BASE] = flag_base(schedule.world) * SLOT_WORDS
    header[H_AXES] = axes
    header[H_TILES] = sum(run.tiles for run in runs)
    finished = (run.first for run, at in zip(runs, summed or (), strict=False) if at >= 0)
    header[H_FINISHED] = next(finished, header[H_TILES])
    header[H_COUNTER_BASE] = counter_base(schedule.world, flags) * SLOT_WORDS
    words = header + records + sentinel + pairs + coordinates
    if any(not -(2**31) <= w < 2**31 for w in words):
        raise ScheduleError("a value of the schedule does not fit 32 bits: the kernel has too many tiles")
    return words


def _raises(schedule: RankSchedule, run: int, pushes: Pushes | None) -> list[tuple[int, int, int, int]]:
    """What a tile of a run counts into: counter slot, target, and the rank and flag slot that the last tile tells."""
    if pushes is not None:
        return [(tell.counter, tell.target, tell.peer, tell.flag) for tell in pushes.tells[run]]
    targets = {counter.slot: counter.target for counter in schedule.counters}
    return [(raised.slot, targets[raised.slot], -1, -1) for raised in schedule.runs[run].raises]
