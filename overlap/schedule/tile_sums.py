"""Sums in tiles: the tiles of the part that a rank keeps add what other ranks have sent of it, ahead of their store.

    reduce-scatter, rank 1 of 3    sent to 2, to 0, to 2, to 0 | own part 0, behind flags of what 0 and 2 sent | own part 1 ...
    with a sum kernel              sent ...                    | own parts, stored as they are | read again, and added

The rank's own partial is neither stored nor read again, no launch stands behind the product, and nothing is left free for one
beside it. What tiles add is there by then or nearly so, since they come last. They have a loop of their own: in a flattened one
the wait of the first of them would stand ahead of the count of the last tile that is sent, and ranks would wait in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence

from overlap.chunkplan.plan import CommPlan
from overlap.chunkplan.region import Box

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
