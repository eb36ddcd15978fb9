"""The nouns of a schedule: pure integers, one `RankSchedule` per rank.

plan + axes + reads  --depgraph-->  chunk -> tiles, as boxes
                     --arrival-->   order in which chunks reach this rank
                     --runs-->      Run, Run, ...   (own chunk first, then by last arrival)
                     --sync-->      the fewest flags each run must wait for
                     --table-->     ScheduleTable (int32 words read by overlap.language)
"""

from __future__ import annotations

from dataclasses import dataclass

from overlap.chunkplan.plan import Chunk, OpId


@dataclass(frozen=True)
class AxisTiles:
    """One tile axis: ``extent`` elements cut into blocks of ``block``."""

    name: str
    extent: int
    block: int

    @property
    def count(self) -> int:
        return -(-self.extent // self.block)


@dataclass(frozen=True)
class TensorRead:
    """How a tile reads a communicated tensor.

    ``axes[d]`` is the tile axis that spans dimension d, or None when a tile reads the whole of
    it. ``wraps[d]`` says that the kernel takes the index modulo the extent, so the last tile
    also reads from the front.
    """

    tensor: str
    axes: tuple[str | None, ...]
    wraps: tuple[bool, ...]


@dataclass(frozen=True)
class TensorWrite:
    """How a tile writes a communicated tensor.

    ``axes[d]`` is the tile axis that spans dimension d, or None when a tile may write all of it. A tile axis that
    spans no dimension (the split of a split-K kernel) makes several tiles contribute to the same elements.
    """

    tensor: str
    axes: tuple[str | None, ...]


@dataclass(frozen=True)
class Wait:
    """A flag slot on this rank and how many raises it gets in one launch (1 for a copy).

    ``op`` raises the flag when it has landed here.
    """

    op: OpId
    slot: int
    count: int = 1


@dataclass(frozen=True)
class CountIn:
    """What every tile of a run adds to a counter once it has stored its part of the counter's chunk."""

    slot: int
    count: int = 1


@dataclass(frozen=True)
class Counter:
    """Says when a chunk that this rank's tiles make is whole: at ``target``, all contributions of one launch.

    ``ops`` are the operations, of this rank's list, that read the chunk and are held back until then.
    """

    slot: int
    chunk: Chunk
    target: int
    ops: tuple[OpId, ...]


@dataclass(frozen=True)
class Run:
    """Tiles that become ready together: a box of tile coordinates, in launch order.

    ``first`` is the run's first position in the rank's tile order, ``origin``/``counts`` the box
    (one entry a tile axis, in the order of ``RankSchedule.axes``). ``waits`` are the flags to
    wait for, ``raises`` the counters its tiles count into (none where the kernel only consumes); ``chunk`` is the arrival that
    completes it (None: nothing to wait for) and ``peer`` the rank that comes from (-1: no rank in particular). ``own``: of the
    one tensor that is communicated its tiles read nothing but what the rank holds, or make nothing but what it keeps, and no
    tile of another run touches any of that (`own.reading`).
    """

    first: int
    origin: tuple[int, ...]
    counts: tuple[int, ...]
    waits: tuple[Wait, ...] = ()
    chunk: OpId | None = None
    unit: int = 0
    peer: int = -1
    raises: tuple[CountIn, ...] = ()
    own: bool = False

    @property
    def tiles(self) -> int:
        n = 1
        for c in self.counts:
            n *= c
        return n


@dataclass(frozen=True)
class RankSchedule:
    """Everything one rank needs, apart from addresses.

    ``slots`` maps every operation that lands on this rank to its flag slot (0, 1, ...).
    ``order`` is the operation order of each channel of this rank: (channel, (index, ...)).
    ``coordinates`` is None, or the explicit tile coordinates by position where the user's own
    mapping is no bijection on some run. ``counters``: one for each chunk that tiles make and an operation reads.
    """

    rank: int
    world: int
    axes: tuple[AxisTiles, ...]
    runs: tuple[Run, ...]
    slots: dict[OpId, int]
    order: tuple[tuple[int, tuple[int, ...]], ...]
    coordinates: tuple[tuple[int, ...], ...] | None = None
    counters: tuple[Counter, ...] = ()
