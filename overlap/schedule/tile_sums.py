"""Sums in tiles: the tiles of the part that a rank keeps add what other ranks have sent of it, ahead of their store.

    reduce-scatter, rank 1 of 3    sent to 2, to 0, to 2, to 0 | own part 0, behind flags of what 0 and 2 sent | own part 1 ...
    with a sum kernel              sent ...                    | own parts, stored as they are | read again, and added

The rank's own partial is neither stored nor read again, no launch stands behind the product, and nothing is left free for one
beside it. What tiles add is there by then or nearly so, since they come last. They have a loop of their own: in a flattened one
the wait of the first of them would stand ahead of the count of the last tile that is sent, and ranks would wait in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from overlap.chunkplan.plan import P2P, Chunk, CommPlan, OpId
from overlap.chunkplan.region import Box

from .machine import Machine
from .model import RankSchedule, Run, TensorWrite
from .pieces import Piece, Values, pieces

ACCUMULATE = "fp32"
COMBINE = "sum"


def finished(
    plan: CommPlan, schedule: RankSchedule, writes: Sequence[TensorWrite], window: Box, values: Values | None = None
) -> tuple[Piece | None, ...] | None:
    """By run, the piece of the rank's result that its tiles finish; None for tiles that are sent.

    Args:
        schedule: of a rank, made with ``finish``.
        writes: how tiles write the one tensor that they make.
        window: what the rank's kernel makes of it, in global coordinates.

    Returns:
        None where tiles cannot: a tile makes parts of two pieces, or of one and of what is sent; some piece is not added up
        in fp32, has nothing of the rank's own in it, or is sent on.
    """
    if len(writes) != 1:
        return None
    (write,) = writes
    sums, result = pieces(plan, schedule.rank, write.tensor, values)
    if sums or any(piece.combine != COMBINE or piece.accumulate != ACCUMULATE for piece in result):
        return None
    if any(piece.summands.count(None) != 1 for piece in result):
        return None
    found: list[Piece | None] = []
    for run in schedule.runs:
        made = region_of(schedule, run, write, window)
        touched = [piece for piece in result if piece.chunk.box.overlaps(made)]
        if not touched:
            found.append(None)
        elif len(touched) == 1 and not run.raises and touched[0].chunk.box.contains(made):
            found.append(touched[0])
        else:
            return None
    kept = [piece is not None for piece in found]
    return tuple(found) if kept == sorted(kept) else None


def region_of(schedule: RankSchedule, run: Run, write: TensorWrite, window: Box) -> Box:
    """What the tiles of a run write, in global coordinates."""
    by_name = {axis.name: (axis, lo, n) for axis, lo, n in zip(schedule.axes, run.origin, run.counts, strict=True)}
    lows, highs = [], []
    for name, low, high in zip(write.axes, window.lo, window.hi, strict=True):
        if name is None:
            lows.append(low)
            highs.append(high)
            continue
        axis, first, count = by_name[name]
        lows.append(low + min(first * axis.block, axis.extent))
        highs.append(low + min((first + count) * axis.block, axis.extent))
    return Box(tuple(lows), tuple(highs))


Parts = tuple[tuple[Chunk, tuple[OpId, ...]], ...]
"""Of a rank's result: parts, and of each the operations that bring what its tiles add to their own."""
LEAST_WAVES, LARGEST = 1.5, 0.6
"""Of a rank's own part, waves of tiles at least, and the share of its largest piece at most, where nobody says.

By the event model, of products of 512 to 16384 rows, 2048 to 16384 columns and, on a rank, 1024 to 14336 deep, in two pieces:
from there on tiles that add take 0.98 of what a sum kernel takes on two ranks, 0.99 on three, 1.00 on four and 1.01 on eight
(means), and below it 1.12 to 1.18. In one piece, or 3:1, own tiles waited measurably on two H200s (docs/performance.md)."""
MOST_RANKS = 2
"""Of groups that do so where nobody says: larger ones have on simulated ranks alone, and the model gives them nothing for it."""


def worth_adding(tiles: int, world: int, units: int, largest: float) -> bool:
    """Whether what a rank's own tiles wait for is there in time: they wait before they multiply, not behind it.

    Args:
        tiles: of a rank's product.
        largest: share of the largest of the pieces that the own part comes in.
    """
    return world == 1 or world <= MOST_RANKS and tiles >= LEAST_WAVES * world * units and largest <= LARGEST


def largest_share(parts: Parts) -> float:
    """`worth_adding`'s ``largest`` of what a rank finishes."""
    sizes = [chunk.box.size for chunk, _ in parts]
    return max(sizes) / sum(sizes) if any(sizes) else 0.0


def adding_seconds(block: Sequence[int], itemsize: float, machine: Machine) -> float:
    """How much longer a tile takes for each summand that it adds: to read it, at a unit's share of memory's rate."""
    return prod(block) * itemsize * machine.units / machine.memory


def parts_added(plan: CommPlan, tensor: str, blocks: Sequence[int]) -> tuple[Parts, ...] | None:
    """By rank, what its tiles finish, from the plan alone: for predictions, where there are no schedules.

    Args:
        blocks: elements of a tile along each dimension of the tensor.

    Returns:
        None where some rank's tiles cannot, as `finished` has it: the plan is none of one step that adds, what a rank keeps is
        sent as well, or some edge of a part lies inside of a tile.
    """
    landing: list[list[OpId]] = [[] for _ in range(plan.world)]
    for op_id, op in plan.items():
        if op.dst.tensor != tensor or op.dst.box.empty:
            continue
        if not isinstance(op, P2P) or op.depends or op.reduce is None:
            return None
        if (str(op.reduce), op.reduce.accumulate) != (COMBINE, ACCUMULATE):
            return None
        if any(op.src.tensor == end.tensor and op.src.box.overlaps(end.box) for end in plan.after[op.src_rank]):
            return None
        landing[op.dst_rank].append(op_id)
    found = []
    for rank, ops in enumerate(landing):
        parts = _parts_of(plan, rank, tensor, ops)
        if parts is None or not all(_in_tiles(plan, chunk, blocks) for chunk, _ in parts):
            return None
        found.append(parts)
    return tuple(found)


def parts_chosen(
    plan: CommPlan, tensor: str, blocks: Sequence[int], tiles: int, units: int, said: bool | None
) -> tuple[Parts, ...] | None:
    """By rank, what its tiles finish in a call; None where sums do.

    Args:
        blocks: elements of a tile along each dimension of the tensor.
        tiles: of a rank's product; ``units``: multiprocessors that make them.
        said: whether tiles are to add, where they can; None: where it is worth it.
    """
    parts = None if said is False else parts_added(plan, tensor, blocks)
    if parts is None or said:
        return parts
    return parts if worth_adding(tiles, plan.world, units, max(map(largest_share, parts))) else None


def _parts_of(plan: CommPlan, rank: int, tensor: str, ops: Sequence[OpId]) -> Parts | None:
    """What a rank ends with, cut wherever something that lands on it begins or ends; None where that is along two dimensions."""
    ends = [chunk.box for chunk in plan.after[rank] if chunk.tensor == tensor and not chunk.box.empty]
    if not ends:
        return None if ops else ()
    (whole, *others), boxes = ends, {op_id: plan.op(op_id).dst.box for op_id in ops}
    if others or not all(map(whole.contains, boxes.values())):
        return None
    cuts = [
        {edge for box in (whole, *boxes.values()) for edge in (box.lo[dim], box.hi[dim])}
        for dim in range(len(whole.shape))
    ]
    along = [dim for dim, edges in enumerate(cuts) if len(edges) > 2]
    if len(along) > 1:
        return None
    dim = along[0] if along else 0
    points = sorted(cuts[dim])
    parts = []
    for low, high in zip(points, points[1:], strict=False):
        here = tuple(op_id for op_id, box in boxes.items() if box.lo[dim] < high and low < box.hi[dim])
        parts.append((Chunk(tensor, whole.with_interval(dim, low, high)), here))
    # What comes last is finished last.
    return tuple(sorted(parts, key=lambda part: max((index for _, index in part[1]), default=-1)))


def _in_tiles(plan: CommPlan, chunk: Chunk, blocks: Sequence[int]) -> bool:
    shape = plan.tensor(chunk.tensor).shape
    edges = zip(chunk.box.lo, chunk.box.hi, blocks, shape, strict=True)
    return all(low % block == 0 and (high % block == 0 or high == extent) for low, high, block, extent in edges)
