"""What of a produced result stays where it is made: no operation sends it, and nobody adds to it.

    all-to-all, rank 1 of 3: its kernel makes rows 2:4, its result is columns 2:4

    c[2:4, 0:6]    to rank 0 | stays | to rank 2
                               `----- tiles can store it in the result itself, no sum has to copy it from the partial

A tile that makes a part of it and a part of what is sent has no one place to store to. So it is all or nothing: what stays is
one box, and every tile that makes any of it makes nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from overlap.chunkplan.plan import CommPlan
from overlap.chunkplan.region import Box, bounding

from .model import AxisTiles, Run, TensorWrite
from .pieces import Piece, Values, partial_sources, pieces


def staying(plan: CommPlan, rank: int, tensor: str, values: Values | None = None) -> tuple[Piece, ...]:
    """The pieces of the rank's result that are its own partial as it is, and are not sent; no empty ones."""
    values = values or Values(plan)
    sent = [chunk.box for chunk, _ in partial_sources(plan, rank, (tensor,), values)]
    return tuple(
        piece
        for piece in pieces(plan, rank, tensor, values)[1]
        if piece.summands == (None,) and not piece.keep and not piece.chunk.box.empty
        if not any(map(piece.chunk.box.overlaps, sent))
    )


def staying_box(found: Collection[Piece]) -> Box | None:
    """What these pieces are together; None where that is nothing, or no box."""
    around = bounding(piece.chunk.box for piece in found)
    return around if around is not None and around.size == sum(piece.chunk.box.size for piece in found) else None


def making(
    runs: Sequence[Run], box: Box | None, axes: Sequence[AxisTiles], writes: Sequence[TensorWrite], window: Box
) -> tuple[bool, ...]:
    """By run, whether its tiles make nothing but parts of ``box``, if all tiles that make any of it are of such runs.

    Args:
        box: what stays of the one tensor that is communicated, in global coordinates.
        axes: tile axes of the rank.
        writes: how its tiles write that tensor.
        window: what its kernel makes of it.
    """
    found = []
    for run in runs:
        made = [_made(run, axes, write, window) for write in writes]
        here = [part for part in made if box is not None and part.overlaps(box)]
        own = bool(here) and not run.raises and box is not None and all(map(box.contains, made))
        if here and not own:
            return (False,) * len(runs)
        found.append(own)
    return tuple(found)


def _made(run: Run, axes: Sequence[AxisTiles], write: TensorWrite, window: Box) -> Box:
    """What the tiles of a run may write, in global coordinates."""
    lo, hi = list(window.lo), list(window.hi)
    for axis, first, count in zip(axes, run.origin, run.counts, strict=True):
        for d, name in enumerate(write.axes):
            if name == axis.name:
                lo[d] = window.lo[d] + first * axis.block
                hi[d] = min(window.hi[d], lo[d] + count * axis.block)
    return Box(tuple(lo), tuple(hi))
