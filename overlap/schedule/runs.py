"""Cut by last arrival: the run of chunk c holds every tile whose latest-arriving chunk, on this rank, is c.

    M = 136, 4 ranks, block 32, rank 1 (arrivals: own 1, then 2, 3, 0)
    tile            0      1      2      3      4
    reads chunks    0     0 1    1 2    2 3     3
    last arrival    0      0      2      3      3
    runs            [2] waits 2     [3, 4] wait 2 3     [0, 1] wait 0

Rounding each chunk by itself would compute tile rows twice here; the last arrival is one number a
tile, so runs partition the grid whatever the divisibility. On one communicated axis they are intervals
(several where reads wrap), on two products of intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from overlap.chunkplan.order import HappensBefore, happens_before
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.verify import check_structure

from .arrival import by_finish
from .cost import finish_times
from .depgraph import DependenceGraph, Interval, check_covered, dependence_graph
from .mapping import TileMap, TileMapCheck, row_major
from .model import AxisTiles, RankSchedule, Run, TensorRead, Wait
from .sync import assign_slots, channel_order, fewest_flags

TileBox = tuple[Interval, ...]
OWN = -1
"""Arrival number of what the rank holds from the start."""


def schedule_rank(
    plan: CommPlan,
    reads: Sequence[TensorRead],
    axes: Sequence[AxisTiles],
    rank: int,
    *,
    ordered: bool = True,
    tile_map: TileMap | None = None,
) -> RankSchedule:
    """The schedule of one rank.

    Args:
        plan: what moves.
        reads: how tiles read the tensors that it moves.
        axes: the tile axes, in the order of the kernel's pid map.
        ordered: flags are raised in stream order, so that one may stand for another (`sync.fewest_flags`).
        tile_map: the user's mapping on the host, ``(tile, counts) -> coordinates``. Where it is no bijection on some
            run's counts the schedule lists the coordinates of every position, row-major inside each run.

    Raises:
        ScheduleError: reads, axes and plan do not fit each other, or ``tile_map`` gives no coordinates.
        PlanError: the plan is cyclic or malformed, or does not bring what tiles read.
    """
    return _schedule(reads, axes, rank, _Shared.of(plan, ordered, tile_map))


def schedule_all(
    plan: CommPlan,
    reads: Sequence[TensorRead],
    axes: Sequence[AxisTiles],
    *,
    ordered: bool = True,
    tile_map: TileMap | None = None,
) -> tuple[RankSchedule, ...]:
    """`schedule_rank` for every rank, with what they share computed once."""
    shared = _Shared.of(plan, ordered, tile_map)
    return tuple(_schedule(reads, axes, rank, shared) for rank in range(plan.world))


@dataclass(frozen=True)
class _Shared:
    """What the schedules of all ranks have in common."""

    plan: CommPlan
    finish: dict[OpId, float]
    order: HappensBefore | None
    bijective: TileMapCheck | None

    @classmethod
    def of(cls, plan: CommPlan, ordered: bool, tile_map: TileMap | None) -> _Shared:
        check_structure(plan)
        order = happens_before(plan)
        bijective = TileMapCheck(tile_map) if tile_map is not None else None
        return cls(plan, finish_times(plan, order=order), order if ordered else None, bijective)


def _schedule(reads: Sequence[TensorRead], axes: Sequence[AxisTiles], rank: int, shared: _Shared) -> RankSchedule:
    plan = shared.plan
    check_covered(plan, reads, axes, rank)
    graph = dependence_graph(plan, reads, axes, rank)
    arrivals = by_finish(plan, rank, shared.finish)
    slots = assign_slots(plan, rank)
    position = {op: i for i, op in enumerate(arrivals)}
    runs: list[Run] = []
    first = 0
    for last, box in cut(graph, arrivals):
        origin = tuple(lo for lo, _ in box)
        counts = tuple(hi - lo for lo, hi in box)
        needed = sorted(graph.needed(origin, counts), key=position.__getitem__)
        chunk = None if last == OWN else arrivals[last]
        run = Run(
            first=first,
            origin=origin,
            counts=counts,
            waits=tuple(Wait(op, slots[op]) for op in fewest_flags(needed, shared.order)),
            chunk=chunk,
            peer=_source(plan, chunk),
        )
        runs.append(run)
        first += run.tiles
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
    )


def _source(plan: CommPlan, op_id: OpId | None) -> int:
    """The rank an operation reads from; -1 where it is none in particular."""
    op = plan.op(op_id) if op_id is not None else None
    return op.src_rank if isinstance(op, P2P) else -1


def cut(graph: DependenceGraph, arrivals: Sequence[OpId]) -> list[tuple[int, TileBox]]:
    """Boxes of tiles with one last arrival (an index into ``arrivals``, or `OWN`), in the order they become ready.

    The boxes partition the grid. Boxes of one arrival stand in row-major order of their origins.
    """
    segments = [_segments(graph, axis) for axis in range(len(graph.axes))]
    if not all(segments):
        return []
    last = {cell: OWN for cell in product(*(range(len(axis)) for axis in segments))}
    starts = [{lo: i for i, (lo, _) in enumerate(axis)} for axis in segments]
    ends = [{hi: i + 1 for i, (_, hi) in enumerate(axis)} for axis in segments]
    for number, op in enumerate(arrivals):
        # In order of arrival, so that what is written last is the last arrival.
        for tiles in graph.arriving[op]:
            along = [
                [i for lo, hi in intervals for i in range(starts[axis][lo], ends[axis][hi])]
                for axis, intervals in enumerate(tiles.intervals)
            ]
            for cell in product(*along):
                last[cell] = number
    boxes = _merge(last, segments)
    return sorted(boxes, key=lambda found: (found[0], tuple(lo for lo, _ in found[1])))


def _segments(graph: DependenceGraph, axis: int) -> list[Interval]:
    """The axis cut wherever the tiles of some chunk begin or end."""
    count = graph.axes[axis].count
    edges = {0, count}
    for sets in graph.arriving.values():
        for tiles in sets:
            for lo, hi in tiles.intervals[axis]:
                edges |= {lo, hi}
    ordered = sorted(edges)
    return list(zip(ordered[:-1], ordered[1:], strict=True))


def _merge(
    last: dict[tuple[int, ...], int], segments: Sequence[Sequence[Interval]], prefix: tuple[int, ...] = ()
) -> list[tuple[int, TileBox]]:
    """Cells of equal value under ``prefix`` joined into boxes: along the innermost axis first, then outwards."""
    axis = len(prefix)
    if axis == len(segments):
        return [(last[prefix], ())]
    return _join(
        (value, (interval, *box))
        for i, interval in enumerate(segments[axis])
        for value, box in _merge(last, segments, (*prefix, i))
    )


def _join(boxes: Iterable[tuple[int, TileBox]]) -> list[tuple[int, TileBox]]:
    """Joins boxes of one value that follow each other along the first axis and agree on the others."""
    joined: list[tuple[int, TileBox]] = []
    open_at: dict[tuple[int, TileBox], int] = {}
    for value, (interval, *rest) in boxes:
        key = (value, tuple(rest))
        at = open_at.get(key)
        if at is not None and joined[at][1][0][1] == interval[0]:
            joined[at] = (value, ((joined[at][1][0][0], interval[1]), *rest))
        else:
            open_at[key] = len(joined)
            joined.append((value, (interval, *rest)))
    return joined
