"""Cut by last arrival: the run of chunk c holds every tile whose latest-arriving chunk, on this rank, is c.

    M = 136, 4 ranks, block 32, rank 1 (arrivals: own 1, then 2, 3, 0)
    tile            0      1      2      3      4
    reads chunks    0     0 1    1 2    2 3     3
    last arrival    0      0      2      3      3
    runs            [2] waits 2     [3, 4] wait 2 3     [0, 1] wait 0

Rounding each chunk by itself would compute tile rows twice here; the last arrival is one number a
tile, so runs partition the grid whatever the divisibility. On one communicated axis they are intervals
(several where reads wrap), on two products of intervals.

Tiles that make chunks are cut by the chunks they make as well, and run in the order in which these leave:

    reduce-scatter of c[M, N], the same sizes, rank 1 (departures: chunk 2, then 3, 0; chunk 1 stays)
    makes chunks    0     0 1    1 2    2 3     3
    first departure 0      0      2      2      3
    runs            [2] of 2    [3] of 2, 3     [4] of 3     [0] [1] of 0

A tile that makes nothing that is sent (the rank's own chunk) comes last, but for those of sums that are made while the kernel
runs (`early`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from overlap.chunkplan.order import happens_before
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.region import Box
from overlap.chunkplan.verify import check_structure
from overlap.errors import ScheduleError

from .arrival import arrival_times, in_order
from .depgraph import DependenceGraph, Interval, TileSet, Windows, check_covered, dependence_graph
from .events import ItemSize
from .machine import Machine
from .mapping import TileMap, TileMapCheck, row_major
from .model import AxisTiles, Counter, CountIn, RankSchedule, Run, TensorRead, TensorWrite, Wait
from .own import reading
from .pieces import Values
from .staying import making, staying, staying_box
from .sync import assign_slots, channel_order, fewest_flags

TileBox = tuple[Interval, ...]
OWN = -1
"""Arrival number of what the rank holds from the start."""
STAYS = sys.maxsize
"""Departure of what no operation sends."""


def schedule_rank(
    plan: CommPlan,
    reads: Sequence[TensorRead],
    axes: Sequence[AxisTiles],
    rank: int,
    *,
    writes: Sequence[TensorWrite] = (),
    windows: Windows | None = None,
    ordered: bool = True,
    tile_map: TileMap | None = None,
    machine: Machine | None = None,
    itemsize: ItemSize = 2,
    early: bool = False,
    finish: bool = False,
) -> RankSchedule:
    """The schedule of one rank.

    Args:
        plan: what moves.
        reads: how tiles read the tensors that it moves.
        axes: the rank's tile axes, in the order of the kernel's pid map.
        writes: how tiles write the tensors that it moves.
        windows: what the rank's kernel sees or makes of a tensor, where that is not all of it.
        ordered: flags are raised in stream order, so that one may stand for another (`sync.fewest_flags`).
        tile_map: the user's mapping on the host, ``(tile, counts) -> coordinates``. Where it is no bijection on some
            run's counts the schedule lists the coordinates of every position, row-major inside each run.
        machine, itemsize: whose times decide in which order chunks arrive, and bytes of elements (`arrival.arrival_times`).
        early: sums are made while the kernel runs: what a rank keeps has counters as well (`early`).
        finish: tiles that nobody is sent wait for what lands in their place, in the order in which it does (`tile_sums`).

    Raises:
        ScheduleError: reads, writes, windows, axes and plan do not fit each other, or ``tile_map`` gives no coordinates.
        PlanError: the plan is cyclic or malformed, or does not bring what tiles read.
        UnsupportedError: an operation on a written tensor that is no push.
    """
    return _schedule(
        reads, writes, axes, windows or {}, rank, _Shared.of(plan, ordered, tile_map, machine, itemsize, early, finish)
    )


def schedule_all(
    plan: CommPlan,
    reads: Sequence[TensorRead],
    axes: Sequence[AxisTiles] | Sequence[Sequence[AxisTiles]],
    *,
    writes: Sequence[TensorWrite] = (),
    windows: Sequence[Windows] | None = None,
    ordered: bool = True,
    tile_map: TileMap | None = None,
    machine: Machine | None = None,
    itemsize: ItemSize = 2,
    early: bool = False,
    finish: bool = False,
) -> tuple[RankSchedule, ...]:
    """`schedule_rank` for every rank, with what they share computed once.

    Args:
        axes: the same for all ranks, or one tuple a rank.
        windows: one mapping a rank.
    """
    shared = _Shared.of(plan, ordered, tile_map, machine, itemsize, early, finish)
    by_rank = axes_of_ranks(axes, plan.world)
    seen = windows_of_ranks(windows, plan.world)
    return tuple(_schedule(reads, writes, by_rank[rank], seen[rank], rank, shared) for rank in range(plan.world))


def axes_of_ranks(
    axes: Sequence[AxisTiles] | Sequence[Sequence[AxisTiles]], world: int
) -> tuple[tuple[AxisTiles, ...], ...]:
    """One tuple a rank, from that or from one for all.

    Raises:
        ScheduleError: tuples for another number of ranks.
    """
    same = [axis for axis in axes if isinstance(axis, AxisTiles)]
    if len(same) == len(axes):
        return (tuple(same),) * world
    own = [tuple(given) for given in axes if not isinstance(given, AxisTiles)]
    if same or len(own) != world:
        raise ScheduleError(f"tile axes of {len(own)} ranks for a world of {world}")
    return tuple(own)


def windows_of_ranks(windows: Sequence[Windows] | None, world: int) -> Sequence[Windows]:
    """One mapping a rank.

    Raises:
        ScheduleError: mappings for another number of ranks.
    """
    if windows is None:
        return [{}] * world
    if len(windows) != world:
        raise ScheduleError(f"windows of {len(windows)} ranks for a world of {world}")
    return windows


@dataclass(frozen=True)
class _Shared:
    """What the schedules of all ranks have in common."""

    plan: CommPlan
    times: dict[OpId, float]
    values: Values
    ordered: bool
    bijective: TileMapCheck | None
    early: bool
    finish: bool

    @classmethod
    def of(
        cls,
        plan: CommPlan,
        ordered: bool,
        tile_map: TileMap | None,
        machine: Machine | None,
        itemsize: ItemSize,
        early: bool,
        finish: bool,
    ) -> _Shared:
        check_structure(plan)
        order = happens_before(plan)
        bijective = TileMapCheck(tile_map) if tile_map is not None else None
        times = arrival_times(plan, machine, itemsize)
        return cls(plan, times, Values(plan, order), ordered, bijective, early, finish)


def _schedule(
    reads: Sequence[TensorRead],
    writes: Sequence[TensorWrite],
    axes: Sequence[AxisTiles],
    windows: Windows,
    rank: int,
    shared: _Shared,
) -> RankSchedule:
    plan = shared.plan
    check_covered(plan, reads, axes, rank, windows)
    graph = dependence_graph(
        plan,
        reads,
        axes,
        rank,
        writes=writes,
        windows=windows,
        values=shared.values,
        early=shared.early,
        finish=shared.finish,
    )
    arrivals = in_order(plan, rank, shared.times)
    slots = assign_slots(plan, rank)
    position = {op: i for i, op in enumerate(arrivals)}
    implied = shared.values.order if shared.ordered else None
    runs: list[Run] = []
    alone: list[bool] = []
    first = 0
    for ready, box in cut(graph, arrivals):
        origin = tuple(lo for lo, _ in box)
        counts = tuple(hi - lo for lo, hi in box)
        needed = sorted(graph.needed(origin, counts), key=position.__getitem__)
        chunk = None if ready.last == OWN else arrivals[ready.last]
        run = Run(
            first=first,
            origin=origin,
            counts=counts,
            waits=tuple(Wait(op, slots[op]) for op in fewest_flags(needed, implied)),
            chunk=chunk,
            peer=_source(plan, chunk),
            raises=tuple(CountIn(slot) for slot in ready.makes),
        )
        runs.append(run)
        alone.append(ready.last == OWN)
        first += run.tiles
    if not writes and len({read.tensor for read in reads}) == 1:
        runs = [replace(run, own=own) for run, own in zip(runs, reading(runs, alone, graph), strict=True)]
    if not reads and len({write.tensor for write in writes}) == 1:
        makes = _making(runs, writes, graph, windows, shared)
        runs = [replace(run, own=own) for run, own in zip(runs, makes, strict=True)]
    coordinates = None
    if shared.bijective is not None and not all(shared.bijective(run.counts) for run in runs):
        coordinates = tuple(place for run in runs for place in row_major(run.origin, run.counts))
    return RankSchedule(
        rank=rank,
        world=plan.world,
        axes=tuple(axes),
        runs=tuple(runs),
        slots=slots,
        order=channel_order(plan, rank),
        coordinates=coordinates,
        counters=tuple(Counter(slot, made.chunk, made.target, made.ops) for slot, made in enumerate(graph.made)),
    )


def _making(
    runs: Sequence[Run], writes: Sequence[TensorWrite], graph: DependenceGraph, windows: Windows, shared: _Shared
) -> tuple[bool, ...]:
    """`staying.making` for the one tensor that is communicated."""
    tensor = writes[0].tensor
    box = staying_box(staying(shared.plan, graph.rank, tensor, shared.values))
    window = windows.get(tensor) or Box.whole(shared.plan.tensor(tensor).shape)
    return making(runs, box, graph.axes, writes, window)


def _source(plan: CommPlan, op_id: OpId | None) -> int:
    """The rank an operation reads from; -1 where it is none in particular."""
    op = plan.op(op_id) if op_id is not None else None
    return op.src_rank if isinstance(op, P2P) else -1


class Ready(NamedTuple):
    """What the tiles of a run have in common; runs stand in this order.

    ``departure``: the first place (`depgraph.Made`) of a chunk that they make a part of, or `STAYS`;
    ``last``: their last arrival, an index into the order of arrival, or `OWN`; ``makes``: counters they count into.
    """

    departure: int
    last: int
    makes: tuple[int, ...]


def cut(graph: DependenceGraph, arrivals: Sequence[OpId]) -> list[tuple[Ready, TileBox]]:
    """Boxes of tiles with one last arrival that make parts of the same chunks, in the order in which they run.

    The boxes partition the grid. Boxes of which nothing else decides stand in row-major order of their origins.
    """
    segments = [_segments(graph, axis) for axis in range(len(graph.axes))]
    if not all(segments):
        return []
    cells = list(product(*(range(len(axis)) for axis in segments)))
    last = dict.fromkeys(cells, OWN)
    makes: dict[tuple[int, ...], list[int]] = {cell: [] for cell in cells}
    starts = [{lo: i for i, (lo, _) in enumerate(axis)} for axis in segments]
    ends = [{hi: i + 1 for i, (_, hi) in enumerate(axis)} for axis in segments]

    def cells_of(sets: Iterable[TileSet]) -> Iterator[tuple[int, ...]]:
        for tiles in sets:
            along = [
                [i for lo, hi in intervals for i in range(starts[axis][lo], ends[axis][hi])]
                for axis, intervals in enumerate(tiles.intervals)
            ]
            yield from product(*along)

    for number, op in enumerate(arrivals):
        # In order of arrival, so that what is written last is the last arrival.
        last.update(dict.fromkeys(cells_of(graph.arriving[op]), number))
    for slot, made in enumerate(graph.made):
        for cell in dict.fromkeys(cells_of(made.tiles)):
            makes[cell].append(slot)

    def ready(cell: tuple[int, ...]) -> Ready:
        leaving = [graph.made[slot].place for slot in makes[cell]]
        return Ready(min(leaving, default=STAYS), last[cell], tuple(makes[cell]))

    boxes = _merge({cell: ready(cell) for cell in cells}, segments)

    def rank(found: tuple[Ready, TileBox]) -> tuple[int, int, tuple[int, ...]]:
        return found[0].departure, found[0].last, tuple(lo for lo, _ in found[1])

    return sorted(boxes, key=rank)


def _segments(graph: DependenceGraph, axis: int) -> list[Interval]:
    """The axis cut wherever the tiles of some chunk begin or end."""
    count = graph.axes[axis].count
    edges = {0, count}
    for sets in (*graph.arriving.values(), *(made.tiles for made in graph.made)):
        for tiles in sets:
            for lo, hi in tiles.intervals[axis]:
                edges |= {lo, hi}
    ordered = sorted(edges)
    return list(zip(ordered[:-1], ordered[1:], strict=True))


def _merge(
    values: Mapping[tuple[int, ...], Ready], segments: Sequence[Sequence[Interval]], prefix: tuple[int, ...] = ()
) -> list[tuple[Ready, TileBox]]:
    """Cells of equal value under ``prefix`` joined into boxes: along the innermost axis first, then outwards."""
    axis = len(prefix)
    if axis == len(segments):
        return [(values[prefix], ())]
    return _join(
        (value, (interval, *box))
        for i, interval in enumerate(segments[axis])
        for value, box in _merge(values, segments, (*prefix, i))
    )


def _join(boxes: Iterable[tuple[Ready, TileBox]]) -> list[tuple[Ready, TileBox]]:
    """Joins boxes of one value that follow each other along the first axis and agree on the others."""
    joined: list[tuple[Ready, TileBox]] = []
    open_at: dict[tuple[Ready, TileBox], int] = {}
    for value, (interval, *rest) in boxes:
        key = (value, tuple(rest))
        at = open_at.get(key)
        if at is not None and joined[at][1][0][1] == interval[0]:
            joined[at] = (value, ((joined[at][1][0][0], interval[1]), *rest))
        else:
            open_at[key] = len(joined)
            joined.append((value, (interval, *rest)))
    return joined
