"""The nouns of a schedule: pure integers, one `RankSchedule` per rank.

plan + axes + reads  --depgraph-->  chunk -> tiles, as boxes
                     --arrival-->   order in which chunks reach this rank
                     --runs-->      Run, Run, ...   (own chunk first, then by last arrival)
                     --sync-->      the fewest flags each run must wait for
                     --table-->     ScheduleTable (int32 words read by overlap.language)
"""

from __future__ import annotations

from dataclasses import dataclass

from overlap.chunkplan.plan import OpId


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
class Wait:
    """A flag slot on this rank and how many raises it gets in one launch (1 for a copy).

    In ``Run.waits`` the flag that ``op`` raises when it has landed here; in ``Run.raises`` the counter that ``op``
    is held back by until the run has counted in.
    """

    op: OpId
    slot: int
    count: int = 1


@dataclass(frozen=True)
class Run:
    """Tiles that become ready together: a box of tile coordinates, in launch order.

    ``first`` is the run's first position in the rank's tile order, ``origin``/``counts`` the box
    (one entry a tile axis, in the order of ``RankSchedule.axes``). ``waits`` are the flags to
    wait for, ``raises`` those its tiles raise (none where the kernel only consumes); ``chunk`` is the arrival that
    completes it (None: nothing to wait for) and ``peer`` the rank that comes from (-1: no rank in particular).
    """

    first: int
    origin: tuple[int, ...]
    counts: tuple[int, ...]
    waits: tuple[Wait, ...] = ()
    chunk: OpId | None = None
    unit: int = 0
    peer: int = -1
    raises: tuple[Wait, ...] = ()

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
    mapping is no bijection on some run.
    """

    rank: int
    world: int
    axes: tuple[AxisTiles, ...]
    runs: tuple[Run, ...]
    slots: dict[OpId, int]
    order: tuple[tuple[int, tuple[int, ...]], ...]
    coordinates: tuple[tuple[int, ...], ...] | None = None
