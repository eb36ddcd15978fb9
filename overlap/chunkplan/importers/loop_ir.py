"""Import from compilers that spread loops (Mercury): a loop nest on a mesh, as a plan.

Where a buffer is used follows from its index: a parallel loop cuts what it indexes; what it does not index every rank of
its axis reads whole, or, if the loop sums up, writes a part of. Where a buffer lies is the same, but for `shard`,
`replicate` and `shift`. Transfers are the difference:

    read, used whole, lies cut                  gathered; by a shifted loop passed around a ring, a piece a step
    read, used cut along another dimension      all-to-all (as in Ulysses)
    written in parts, lies whole                all-reduce
    written in parts, lies cut                  reduce-scatter; by a shifted loop the sums are passed around a ring
    written cut, lies whole or cut elsewhere    gathered, or all-to-all

Rings on several levels nest: a piece crosses an outer axis once, at the end of its way around the inner ones, so that it
crosses each slow link as seldom as can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from overlap.errors import PlanError

from ..build import DIRECTIONS
from ..cuts import Split
from ..links import Links
from ..merge import merge_plans
from ..plan import CommPlan, TensorSpec
from ..reduction import Reduction, check_reduction
from ..region import Box
from ..split import split_plan
from .axis_steps import Way, way_of
from .loop_model import Buffer, LoopNest
from .moves import Moves
from .partition_ir import parts_of, reshard, summed_axes
from .placement import Partial, Placement, Replicate, Shard, box_at


@dataclass(frozen=True)
class BufferLayout:
    """Where a buffer lies, where the body uses it, and the axes that pieces travel along step by step, outermost first.

    ``order``: the mesh's axes in the order in which they cut the buffer: as its index names their loops, then those over
    which it only lies cut.
    """

    stored: tuple[Placement, ...]
    used: tuple[Placement, ...]
    ring: tuple[int, ...]
    order: tuple[int, ...]


def lower_loop_ir(
    nest: LoopNest,
    *,
    direction: str = "pull",
    split: Split = 1,
    accumulate: str = "fp32",
    name: str = "loop_nest",
    path: str = "template",
    links: Links | None = None,
) -> CommPlan:
    """The plan of all transfers of a loop nest: before it buffers that are read, after it those that are written.

    A rank starts with the reads as they are stored and its own writes as the body makes them, parts of sums included. It
    ends with the reads that its body uses and the writes as they are stored.

    Args:
        direction: who carries transfers out, the destination (``pull``) or the source (``push``).
        split: how every transfer is cut (`overlap.chunkplan.cuts`).
        accumulate: the type that sums are carried out in.
        path, links: how collectives are carried out, as `lower_partition_ir` has them. Rings of shifted loops are rings.

    Raises:
        PlanError: a nest that no plan is right for, with the loop or buffer and what to write instead.
    """
    if direction not in DIRECTIONS:
        raise PlanError(f"unknown direction `{direction}`", help=f"there is {', '.join(DIRECTIONS)}")
    check_reduction(Reduction("sum", accumulate))
    if not nest.buffers:
        raise PlanError("a loop nest without buffers", help="give the body at least one Buffer")
    way = way_of(path, links)
    plans = [_lower(nest, buffer, direction, split, accumulate, way) for buffer in nest.buffers]
    return merge_plans(plans, name=name)


def layout_of(nest: LoopNest, buffer: Buffer) -> BufferLayout:
    """Where a buffer of the nest lies and is used.

    Raises:
        PlanError: it is written by all ranks of an axis at once, or cut by loops in an order that no placement has.
    """
    stored: list[Placement] = []
    used: list[Placement] = []
    levels: dict[int, int] = {}
    wanted = dict(buffer.stored)
    for axis in range(len(nest.mesh.sizes)):
        loop = nest.on_axis(axis)
        if loop is None:
            stored.append(Replicate())
            used.append(Replicate())
            continue
        dim = buffer.dim_of(loop.name)
        use: Placement = Shard(dim) if dim is not None else Partial() if buffer.write else Replicate()
        if isinstance(use, Partial) and not loop.reduce:
            raise PlanError(
                f"every rank along loop {loop.name} would write all of buffer {buffer.name}",
                help=f"index {buffer.name} by {loop.name}, or make it Loop(..., reduce=True) if its steps are summed up",
            )
        lies: Placement = use if isinstance(use, Shard) else Replicate()
        if dim is None:
            travels = [(place, other) for place, other in enumerate(nest.loops) if other.by == loop.name]
            found = [(place, buffer.dim_of(other.name)) for place, other in travels]
            found = [(place, cut) for place, cut in found if cut is not None]
            if len(found) > 1:
                raise PlanError(
                    f"buffer {buffer.name} is indexed by two loops that are shifted by {loop.name}",
                    help="shift one of the two",
                )
            if found and wanted.get(loop.name, found[0][1]) == found[0][1]:
                levels[axis] = found[0][0]
                lies = Shard(found[0][1])  # type: ignore[arg-type]
        if loop.name in wanted:
            cut = wanted[loop.name]
            lies = Replicate() if cut is None else Shard(cut)
        stored.append(lies)
        used.append(use)
    cuts = _cuts(nest, buffer, levels)
    order = (*cuts, *(axis for axis in range(len(nest.mesh.sizes)) if axis not in cuts))
    return BufferLayout(tuple(stored), tuple(used), tuple(sorted(levels, key=levels.__getitem__)), order)


def stored_boxes(nest: LoopNest, name: str) -> tuple[Box, ...]:
    """What each rank stores of a buffer; its size is the memory that the nest takes for it."""
    buffer = nest.buffer(name)
    layout = layout_of(nest, buffer)
    places = (nest.mesh.coordinates(rank) for rank in range(nest.mesh.world))
    return tuple(box_at(buffer.shape, nest.mesh, layout.stored, at, layout.order) for at in places)


def _cuts(nest: LoopNest, buffer: Buffer, ring: dict[int, int]) -> list[int]:
    """The mesh axes of the loops that cut a buffer, dimension by dimension in the order of its index.

    What a rank has of a dimension is one interval: spread loops cut it first, then those whose pieces travel, then others.

    Raises:
        PlanError: a dimension is indexed in another order.
    """
    cuts: list[int] = []
    for dim, names in enumerate(buffer.index):
        step, before = 0, names[0] if names else ""
        for name in names:
            loop = nest.loop(name)
            over = loop if loop.by is None else nest.loop(loop.by)
            travels = over.axis is not None and ring.get(over.axis) == nest.loops.index(loop)
            turn = 1 if travels else 0 if loop.axis is not None else 2
            if turn < step:
                raise PlanError(
                    f"dimension {dim} of buffer {buffer.name} is cut by {before} before {name}, which is "
                    f"{'shifted over' if travels else 'spread over'} axis {over.axis}: what a rank has would not be one box",
                    help="let spread loops come first in the index, then shifted ones, then local ones",
                )
            if turn < 2 and over.axis is not None:
                cuts.append(over.axis)
            step, before = turn, name
    return cuts


def _lower(nest: LoopNest, buffer: Buffer, direction: str, split: Split, accumulate: str, way: Way | None) -> CommPlan:
    mesh, layout = nest.mesh, layout_of(nest, buffer)
    made = layout.used if buffer.write else layout.stored
    final = layout.stored if buffer.write else layout.used
    parts = parts_of(mesh, summed_axes(made, final))
    moves = Moves(TensorSpec(buffer.name, tuple(buffer.shape), parts), mesh.world, direction)
    # Beside the rings, pieces lie as the body uses them: what else has to move does so before rings of reads, and
    # behind rings of sums.
    passing = tuple(
        layout.stored[axis] if axis in layout.ring else placement for axis, placement in enumerate(layout.used)
    )
    places, order = [mesh.coordinates(rank) for rank in range(mesh.world)], layout.order
    before = [box_at(buffer.shape, mesh, made, at, order) for at in places]
    after = [box_at(buffer.shape, mesh, final, at, order) for at in places]
    if buffer.write:
        _pass_sums(moves, nest, layout, passing, Reduction("sum", accumulate))
        reshard(moves, mesh, passing, final, accumulate, way, order)
    else:
        reshard(moves, mesh, made, passing, accumulate, way, order)
        _pass_pieces(moves, nest, layout, passing, before)
    meta = {"mesh": str(mesh)}
    return split_plan(moves.plan(buffer.name, before, after, meta), split)


Hop = tuple[tuple[int, ...], int, int, Box]


def _hops(moves: Moves, nest: LoopNest, layout: BufferLayout, placements: Sequence[Placement], first: int) -> list[Hop]:
    """For each rank and each piece that is not its own: step, rank, the rank after it on the piece's way, piece.

    A piece is on its way around the innermost ring as long as its place there is not reached, and then around the next.

    Args:
        first: the piece that a rank works on first, counted from its own.
    """
    mesh, ring, found = nest.mesh, layout.ring, []
    for rank in range(mesh.world):
        at = mesh.coordinates(rank)
        for piece in product(*(range(mesh.sizes[axis]) for axis in ring)):
            home = list(at)
            for axis, place in zip(ring, piece, strict=True):
                home[axis] = place
            level = next((axis for axis in reversed(ring) if home[axis] != at[axis]), None)
            if level is None:
                continue
            step = tuple((home[axis] - at[axis] - first) % mesh.sizes[axis] for axis in ring)
            beside = list(at)
            beside[level] += 1 if first == 0 else -1
            beside[level] %= mesh.sizes[level]
            box = box_at(moves.tensor.shape, mesh, placements, home, layout.order)
            found.append((step, rank, mesh.global_rank(beside), box))
    return sorted(found, key=lambda hop: hop[:2])


def _pass_pieces(
    moves: Moves, nest: LoopNest, layout: BufferLayout, placements: Sequence[Placement], owned: Sequence[Box]
) -> None:
    """Every rank takes each piece from the next rank, which has it from the one after it; its own piece comes first."""
    for _, rank, beside, box in _hops(moves, nest, layout, placements, 0):
        for missing in box.subtract(owned[rank]):
            moves.move(beside, rank, missing)


def _pass_sums(
    moves: Moves, nest: LoopNest, layout: BufferLayout, placements: Sequence[Placement], reduction: Reduction
) -> None:
    """Every rank adds its part to the sum of a piece and hands it to the rank before it; its own piece comes last."""
    for _, rank, beside, box in _hops(moves, nest, layout, placements, 1):
        moves.move(rank, beside, box, reduction)
