"""`DependenceGraph`: which tiles of a rank read or make which chunk, as products of intervals and never a node a tile.

a[M, K] in chunks along M, block 32, M = 136         tiles of axis M
chunk 0: rows   0:34                                 [0, 2)
chunk 1: rows  34:68                                 [1, 3)     tile 1 reads (or makes parts of) chunks 0 and 1
chunk 2: rows  68:102                                [2, 4)
chunk 3: rows 102:136                                [3, 5)

Tiles are counted from the start of what the rank's kernel is given of a tensor, its window: all of it, but for
all-to-alls, whose kernel gets or makes the rank's part of one dimension.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from overlap.chunkplan.plan import Chunk, Collective, CommPlan, OpId
from overlap.chunkplan.region import Box, uncovered, union_size
from overlap.errors import PlanError, ScheduleError

from .early import kept_chunks, places_of
from .model import AxisTiles, TensorRead, TensorWrite
from .pieces import Values, check_produced, partial_sources

Interval = tuple[int, int]
"""Half-open, of tile coordinates along one axis."""

Windows = Mapping[str, Box]
"""What the kernel of a rank sees or makes of tensors, in global coordinates; all of those that are not named."""


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


@dataclass(frozen=True)
class Made:
    """A chunk that operations of the rank send as its tiles made it: these operations, and the tiles that write to it.

    ``target``: how many tiles those are. ``place``: where it stands among what leaves, twice the index of the first of its
    operations. A chunk that none sends and an early sum adds stands behind those of its round (`early.places_of`).
    """

    chunk: Chunk
    ops: tuple[OpId, ...]
    tiles: tuple[TileSet, ...]
    target: int
    place: int = 0


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
    """Consumer tiles of every chunk that ``rank`` holds or receives, and producer tiles of every chunk that it sends.

    ``arriving`` maps each operation that lands on the rank to the sets of tiles that read it (one or more a read;
    none where no tile does); ``own`` lists the chunks held before the first operation with theirs; ``made`` those that
    tiles make, in the order of their counters.
    """

    rank: int
    axes: tuple[AxisTiles, ...]
    arriving: dict[OpId, tuple[TileSet, ...]]
    own: tuple[tuple[Chunk, tuple[TileSet, ...]], ...]
    made: tuple[Made, ...] = ()

    def needed(self, origin: Sequence[int], counts: Sequence[int]) -> frozenset[OpId]:
        """Operations that some tile of a box of tiles reads the result of."""
        if not self.axes:
            return frozenset(op for op, sets in self.arriving.items() if any(s.meets(origin, counts) for s in sets))
        axis, begins, found, widest = self._along
        first = bisect_left(begins, origin[axis] - widest + 1)
        last = bisect_left(begins, origin[axis] + counts[axis])
        return frozenset(op for op, tiles in found[first:last] if tiles.meets(origin, counts))

    @cached_property
    def _along(self) -> tuple[int, list[int], list[tuple[OpId, TileSet]], int]:
        """The axis along which the tiles that read chunks differ most; where intervals of them begin there, ascending, with
        their operations and sets; and the longest interval. A question then costs as much as it has answers, about.
        """
        sets = [(op, tiles) for op, found in self.arriving.items() for tiles in found if not tiles.empty]
        axis = max(range(len(self.axes)), key=lambda axis: len({tiles.intervals[axis] for _, tiles in sets}))
        entries = [(lo, hi, number) for number, (_, tiles) in enumerate(sets) for lo, hi in tiles.intervals[axis]]
        entries.sort()
        widest = max((hi - lo for lo, hi, _ in entries), default=0)
        return axis, [lo for lo, _, _ in entries], [sets[number] for _, _, number in entries], widest

    def makes(self, origin: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
        """Positions in ``made`` of the chunks that some tile of a box of tiles writes to."""
        return tuple(i for i, made in enumerate(self.made) if any(s.meets(origin, counts) for s in made.tiles))


def dependence_graph(
    plan: CommPlan,
    reads: Sequence[TensorRead],
    axes: Sequence[AxisTiles],
    rank: int,
    *,
    writes: Sequence[TensorWrite] = (),
    windows: Windows | None = None,
    values: Values | None = None,
    early: bool = False,
    finish: bool = False,
) -> DependenceGraph:
    """The graph of one rank of a plan whose structure is sound (`overlap.chunkplan.verify.check_structure`).

    Args:
        writes: how tiles write tensors of the plan.
        windows: the rank's windows.
        values: of the plan, where the caller has them already.
        early: sums are made while the kernel runs (`early.kept_chunks`).
        finish: tiles of written tensors wait for what lands in their place (`tile_sums`).

    Raises:
        ScheduleError: a read or write that names an unknown tensor or axis, an axis that does not span its dimension,
            or a chunk that is sent and no tile makes.
        UnsupportedError: an operation on a written tensor that is no push.
        PlanError: the plan is cyclic (with ``writes`` only).
    """
    windows = windows or {}
    check_reads(plan, reads, axes, windows)

    def tiles_at(tensor: str, boxes: Iterable[Box], accesses: Sequence[TensorRead | TensorWrite]) -> list[TileSet]:
        found: list[TileSet] = []
        for box in boxes:
            inside = in_window(box, windows.get(tensor))
            for access in accesses:
                if access.tensor == tensor and not inside.empty:
                    tiles = _tiles_of_box(access, axes, inside)
                    if not tiles.empty and tiles not in found:
                        found.append(tiles)
        return found

    def readers(tensor: str, boxes: Iterable[Box]) -> tuple[TileSet, ...]:
        return tuple(tiles_at(tensor, boxes, reads))

    own = plan.before[rank]
    arriving = {}
    for op_id in plan.arriving(rank):
        op = plan.op(op_id)
        boxes = [op.dst.box]
        if isinstance(op, Collective) and op.kind == "all_gather":
            # The rank's own part of a gathered tensor is there already.
            boxes = uncovered([chunk.box for chunk in own if chunk.tensor == op.dst.tensor], op.dst.box)
        arriving[op_id] = readers(op.dst.tensor, boxes)
        if finish and not arriving[op_id]:
            arriving[op_id] = tuple(tiles_at(op.dst.tensor, boxes, writes))
    made = []
    if writes:
        check_writes(plan, writes, axes, windows)
        written = {write.tensor for write in writes}
        sent = partial_sources(plan, rank, written, values)
        leaving = [(chunk, ops, 2 * ops[0][1]) for chunk, ops in sent]
        if early:
            kept = kept_chunks(plan, rank, written, values)
            places = places_of(plan, rank, kept, [op for _, ops in sent for op in ops])
            leaving += [(chunk, (), place) for (chunk, _), place in zip(kept, places, strict=True)]
        for chunk, ops, place in leaving:
            window = windows.get(chunk.tensor)
            if window is not None and not window.contains(chunk.box):
                raise ScheduleError(
                    f"plan {plan.name}: rank {rank} sends {chunk}, and its tiles make {chunk.tensor}{window}",
                    where=plan.where(ops[0] if ops else None),
                    help="a rank sends what it holds `before` the first operation",
                )
            tiles = tiles_at(chunk.tensor, [chunk.box], writes)
            made.append(Made(chunk, ops, tuple(tiles), _tiles_in(tiles), place))
    return DependenceGraph(
        rank, tuple(axes), arriving, tuple((chunk, readers(chunk.tensor, [chunk.box])) for chunk in own), tuple(made)
    )


def in_window(box: Box, window: Box | None) -> Box:
    """The part of ``box`` in the window, in coordinates counted from the window's start."""
    if window is None:
        return box
    return box.intersect(window).translate(tuple(-low for low in window.lo))


def _tiles_in(sets: Sequence[TileSet]) -> int:
    """Number of tiles in at least one of the sets."""
    boxes = [box for tiles in sets for box in product(*tiles.intervals)]
    return union_size(Box(tuple(lo for lo, _ in box), tuple(hi for _, hi in box)) for box in boxes)


def _tiles_of_box(read: TensorRead | TensorWrite, axes: Sequence[AxisTiles], box: Box) -> TileSet:
    """Tiles that read or write an element of ``box``; an axis that spans no dimension is not narrowed."""
    intervals: list[tuple[Interval, ...]] = []
    for axis in axes:
        found: tuple[Interval, ...] = ((0, axis.count),) if axis.count else ()
        for d, name in enumerate(read.axes):
            if name == axis.name:
                wraps = isinstance(read, TensorRead) and read.wraps[d]
                found = _common(found, tiles_reading(axis, box.lo[d], box.hi[d], wraps))
        intervals.append(found)
    return TileSet(tuple(intervals))


def _common(left: Sequence[Interval], right: Sequence[Interval]) -> tuple[Interval, ...]:
    both = ((max(a, c), min(b, d)) for a, b in left for c, d in right)
    return tuple(sorted((lo, hi) for lo, hi in both if lo < hi))


def check_reads(
    plan: CommPlan, reads: Sequence[TensorRead], axes: Sequence[AxisTiles], windows: Windows | None = None
) -> None:
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
    for read in reads:
        _check_access(plan, read, axes, windows or {}, "read")


def check_writes(
    plan: CommPlan, writes: Sequence[TensorWrite], axes: Sequence[AxisTiles], windows: Windows | None = None
) -> None:
    """Refuses writes that do not fit the plan or the axes (`ScheduleError`), or that no realization can send on."""
    for write in writes:
        _check_access(plan, write, axes, windows or {}, "write")
    check_produced(plan, {write.tensor for write in writes})


def _check_access(
    plan: CommPlan, access: TensorRead | TensorWrite, axes: Sequence[AxisTiles], windows: Windows, verb: str
) -> None:
    by_name = {axis.name: axis for axis in axes}
    shapes = {spec.name: spec.shape for spec in plan.tensors}
    if access.tensor not in shapes:
        raise ScheduleError(
            f"tiles {verb} {access.tensor!r}, which plan {plan.name} does not communicate",
            help=_nearest(access.tensor, shapes),
        )
    shape = shapes[access.tensor]
    dims = {len(access.axes), len(shape)} | ({len(access.wraps)} if isinstance(access, TensorRead) else set())
    if len(dims) > 1:
        raise ScheduleError(
            f"tiles {verb} {access.tensor} as {len(access.axes)}-dimensional, the plan gives it shape {list(shape)}"
        )
    window = windows.get(access.tensor, Box.whole(shape))
    if not Box.whole(shape).contains(window):
        raise ScheduleError(f"the window {window} of {access.tensor} leaves its shape {list(shape)}")
    for d, name in enumerate(access.axes):
        if name is None:
            continue
        if name not in by_name:
            raise ScheduleError(
                f"dimension {d} of {access.tensor} is spanned by axis {name!r}, which is no tile axis",
                help=_nearest(name, by_name),
            )
        extent = by_name[name].extent
        if extent != window.shape[d]:
            raise ScheduleError(
                f"axis {name} has {extent} elements, but dimension {d} of {access.tensor} has {window.shape[d]}",
                help="the plan must be built for the sizes the kernel is launched with",
            )


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names) or 'none'}"


def check_covered(
    plan: CommPlan,
    reads: Sequence[TensorRead],
    axes: Sequence[AxisTiles],
    rank: int,
    windows: Windows | None = None,
) -> None:
    """Checks that all a tile of ``rank`` reads of a communicated tensor is there before or arrives.

    Together the tiles of a grid read every element of every dimension, so the chunks must cover the whole window;
    a grid without tiles reads nothing.

    Raises:
        PlanError: names the uncovered box and a tile that reads it.
        ScheduleError: as `dependence_graph`.
    """
    windows = windows or {}
    check_reads(plan, reads, axes, windows)
    if any(axis.count == 0 for axis in axes):
        return
    shapes = {spec.name: spec.shape for spec in plan.tensors}
    there = [*plan.before[rank], *(plan.op(op_id).dst for op_id in plan.arriving(rank))]
    for read in reads:
        boxes = [chunk.box for chunk in there if chunk.tensor == read.tensor]
        window = windows.get(read.tensor, Box.whole(shapes[read.tensor]))
        missing = next(iter(uncovered(boxes, window)), None)
        if missing is not None:
            tiles = _tiles_of_box(read, axes, in_window(missing, window))
            first = ", ".join(
                f"{axis.name}={found[0][0]}" for axis, found in zip(axes, tiles.intervals, strict=True) if found
            )
            raise PlanError(
                f"plan {plan.name} never brings {read.tensor}{missing} to rank {rank}, but tile ({first}) reads it",
                where=plan.where(),
                help="move that chunk to the rank as well, or give it to the rank as its own",
            )
