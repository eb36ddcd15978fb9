"""`DependenceGraph`: which tiles of a rank read which chunk, as products of intervals and never a node a tile.

a[M, K] in chunks along M, block 32, M = 136         tiles of axis M
chunk 0: rows   0:34                                 [0, 2)
chunk 1: rows  34:68                                 [1, 3)     tile 1 reads chunks 0 and 1
chunk 2: rows  68:102                                [2, 4)
chunk 3: rows 102:136                                [3, 5)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overlap.chunkplan.plan import Chunk, Collective, CommPlan, OpId
from overlap.chunkplan.region import Box, uncovered
from overlap.errors import PlanError, ScheduleError

from .model import AxisTiles, TensorRead

Interval = tuple[int, int]
"""Half-open, of tile coordinates along one axis."""


@dataclass(frozen=True)
class TileSet:
    """The product of one list of disjoint intervals a tile axis."""

    intervals: tuple[tuple[Interval, ...], ...]

    @property
    def empty(self) -> bool:
        return any(not axis for axis in self.intervals)

    def meets(self, origin: Sequence[int], counts: Sequence[int]) -> bool:
        """Whether a tile of the box at ``origin`` with ``counts`` is in the set."""
        return all(
            any(lo < start + count and start < hi for lo, hi in axis)
            for axis, start, count in zip(self.intervals, origin, counts, strict=True)
        )


def tiles_reading(axis: AxisTiles, lo: int, hi: int, wraps: bool = False) -> tuple[Interval, ...]:
    """Tiles of ``axis`` that read an element of ``[lo, hi)``.

    Tile t covers elements ``[t * block, (t + 1) * block)``; what lies past the extent is masked off, or with
    ``wraps`` taken modulo the extent, so that the last tile reads from the front as well.
    """
    lo, hi = max(lo, 0), min(hi, axis.extent)
    if lo >= hi:
        return ()
    first, stop = lo // axis.block, (hi - 1) // axis.block + 1
    last = axis.count - 1
    past = axis.count * axis.block - axis.extent
    if not wraps or lo >= past or stop > last:
        return ((first, stop),)
    return ((first, axis.count),) if stop == last else ((first, stop), (last, axis.count))


@dataclass(frozen=True)
class DependenceGraph:
    """Consumer tiles of every chunk that ``rank`` holds or receives.

    ``arriving`` maps each operation that lands on the rank to the sets of tiles that read it (one or more a read;
    none where no tile does); ``own`` lists the chunks held before the first operation with theirs.
    """

    rank: int
    axes: tuple[AxisTiles, ...]
    arriving: dict[OpId, tuple[TileSet, ...]]
    own: tuple[tuple[Chunk, tuple[TileSet, ...]], ...]

    def needed(self, origin: Sequence[int], counts: Sequence[int]) -> frozenset[OpId]:
        """Operations that some tile of a box of tiles reads the result of."""
        return frozenset(op for op, sets in self.arriving.items() if any(s.meets(origin, counts) for s in sets))


def dependence_graph(
    plan: CommPlan, reads: Sequence[TensorRead], axes: Sequence[AxisTiles], rank: int
) -> DependenceGraph:
    """The graph of one rank of a plan whose structure is sound (`overlap.chunkplan.verify.check_structure`).

    Raises:
        ScheduleError: a read that names an unknown tensor or axis, or an axis that does not span its dimension.
    """
    check_reads(plan, reads, axes)

    def readers(tensor: str, boxes: Iterable[Box]) -> tuple[TileSet, ...]:
        found: list[TileSet] = []
        for box in boxes:
            for read in reads:
                if read.tensor == tensor and not box.empty:
                    tiles = _tiles_of_box(read, axes, box)
                    if not tiles.empty and tiles not in found:
                        found.append(tiles)
        return tuple(found)

    own = plan.before[rank]
    arriving = {}
    for op_id in plan.arriving(rank):
        op = plan.op(op_id)
        boxes = [op.dst.box]
        if isinstance(op, Collective) and op.kind == "all_gather":
            # The rank's own part of a gathered tensor is there already.
            boxes = uncovered([chunk.box for chunk in own if chunk.tensor == op.dst.tensor], op.dst.box)
        arriving[op_id] = readers(op.dst.tensor, boxes)
    return DependenceGraph(
        rank, tuple(axes), arriving, tuple((chunk, readers(chunk.tensor, [chunk.box])) for chunk in own)
    )


def _tiles_of_box(read: TensorRead, axes: Sequence[AxisTiles], box: Box) -> TileSet:
    """Tiles that read an element of ``box``; an axis that spans no dimension is not narrowed."""
    intervals: list[tuple[Interval, ...]] = []
    for axis in axes:
        found: tuple[Interval, ...] = ((0, axis.count),) if axis.count else ()
        for d, name in enumerate(read.axes):
            if name == axis.name:
                found = _common(found, tiles_reading(axis, box.lo[d], box.hi[d], read.wraps[d]))
        intervals.append(found)
    return TileSet(tuple(intervals))


def _common(left: Sequence[Interval], right: Sequence[Interval]) -> tuple[Interval, ...]:
    both = ((max(a, c), min(b, d)) for a, b in left for c, d in right)
    return tuple(sorted((lo, hi) for lo, hi in both if lo < hi))


def check_reads(plan: CommPlan, reads: Sequence[TensorRead], axes: Sequence[AxisTiles]) -> None:
    """Refuses reads and axes that do not fit the plan or each other (`ScheduleError`)."""
    names = [axis.name for axis in axes]
    for axis in axes:
        if axis.block < 1 or axis.extent < 0:
            raise ScheduleError(
                f"axis {axis.name}: {axis.extent} elements in blocks of {axis.block}",
                help="an extent is 0 or more and a block 1 or more",
            )
        if names.count(axis.name) > 1:
            raise ScheduleError(f"axis {axis.name} is given twice")
    by_name = {axis.name: axis for axis in axes}
    shapes = {spec.name: spec.shape for spec in plan.tensors}
    for read in reads:
        if read.tensor not in shapes:
            raise ScheduleError(
                f"tiles read {read.tensor!r}, which plan {plan.name} does not communicate",
                help=_nearest(read.tensor, shapes),
            )
        shape = shapes[read.tensor]
        if not len(read.axes) == len(read.wraps) == len(shape):
            raise ScheduleError(
                f"tiles read {read.tensor} as {len(read.axes)}-dimensional, the plan gives it shape {list(shape)}"
            )
        for d, name in enumerate(read.axes):
            if name is None:
                continue
            if name not in by_name:
                raise ScheduleError(
                    f"dimension {d} of {read.tensor} is spanned by axis {name!r}, which is no tile axis",
                    help=_nearest(name, by_name),
                )
            extent = by_name[name].extent
            if extent != shape[d]:
                raise ScheduleError(
                    f"axis {name} has {extent} elements, but dimension {d} of {read.tensor} has {shape[d]}",
                    help="the plan must be built for the sizes the kernel is launched with",
                )


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names) or 'none'}"


def check_covered(plan: CommPlan, reads: Sequence[TensorRead], axes: Sequence[AxisTiles], rank: int) -> None:
    """Checks that all a tile of ``rank`` reads of a communicated tensor is there before or arrives.

    Together the tiles of a grid read every element of every dimension, so the chunks must cover the whole tensor;
    a grid without tiles reads nothing.

    Raises:
        PlanError: names the uncovered box and a tile that reads it.
        ScheduleError: as `dependence_graph`.
    """
    check_reads(plan, reads, axes)
    if any(axis.count == 0 for axis in axes):
        return
    shapes = {spec.name: spec.shape for spec in plan.tensors}
    there = [*plan.before[rank], *(plan.op(op_id).dst for op_id in plan.arriving(rank))]
    for read in reads:
        boxes = [chunk.box for chunk in there if chunk.tensor == read.tensor]
        missing = next(iter(uncovered(boxes, Box.whole(shapes[read.tensor]))), None)
        if missing is not None:
            tiles = _tiles_of_box(read, axes, missing)
            first = ", ".join(
                f"{axis.name}={found[0][0]}" for axis, found in zip(axes, tiles.intervals, strict=True) if found
            )
            raise PlanError(
                f"plan {plan.name} never brings {read.tensor}{missing} to rank {rank}, but tile ({first}) reads it",
                where=plan.where(),
                help="move that chunk to the rank as well, or give it to the rank as its own",
            )
