"""Import from compilers that partition tensors (Alpa, Domino, DTensor): placements before and after, as a plan.

    mesh = parse_mesh("2x4")
    ir = PartitionIR(mesh, (Reshard("x", (1000, 64), ("shard(0)", "partial"), ("shard(0)", "shard(1)")),))
    plan = lower_partition_ir(ir)                               # a CommPlan of P2P; rank = place in the mesh

Sums come first: the ranks that hold parts of one sum divide it among them, along the cut that is wanted in the end
where that divides it, and each sums its piece. Then every rank takes what it still lacks from the nearest rank that has
it, nearest being the one with the fewest outer axes between. A sum wanted whole is therefore a reduce-scatter and a gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from overlap.errors import PlanError

from ..build import DIRECTIONS
from ..cuts import Split
from ..links import Links
from ..merge import merge_plans
from ..mesh import Mesh
from ..plan import CommPlan, TensorSpec
from ..reduction import Reduction, check_reduction
from ..region import Box, uncovered
from ..split import split_plan
from .axis_steps import Way, axis_steps, carry_out, way_of
from .moves import Moves
from .placement import Partial, Placement, box_at, checked


@dataclass(frozen=True)
class Reshard:
    """A tensor of global ``shape``, and how it lies on the mesh before and after: one placement, or its text, an axis."""

    name: str
    shape: tuple[int, ...]
    before: tuple[Placement | str, ...]
    after: tuple[Placement | str, ...]


@dataclass(frozen=True)
class PartitionIR:
    """All tensors that are placed anew between two kernels. Rank r of the plan stands at ``mesh.coordinates(r)``."""

    mesh: Mesh
    tensors: tuple[Reshard, ...]


def lower_partition_ir(
    ir: PartitionIR,
    *,
    direction: str = "pull",
    split: Split = 1,
    accumulate: str = "fp32",
    name: str | None = None,
    path: str = "template",
    links: Links | None = None,
) -> CommPlan:
    """The plan that takes every tensor from its placements before to those after.

    Args:
        direction: who carries transfers out, the destination (``pull``) or the source (``push``).
        split: how every transfer is cut (`overlap.chunkplan.cuts`).
        accumulate: the type that sums are carried out in.
        name: of the plan; made of the tensors' names where it is None.
        path: ``template``: every piece from the nearest rank that has it, as above. Otherwise collectives along one axis
            after the other (`axis_steps`), left to a library (``direct``) or made for the links (``synth``).
        links: of all ranks, for ``synth``.

    Raises:
        PlanError: a placement that does not exist or that no communication leads to, with what to write instead; links that
            do not join the ranks along an axis.
    """
    if not ir.tensors:
        raise PlanError("a partition without tensors", help="give one Reshard a tensor that changes its placements")
    if direction not in DIRECTIONS:
        raise PlanError(f"unknown direction `{direction}`", help=f"there is {', '.join(DIRECTIONS)}")
    check_reduction(Reduction("sum", accumulate))
    way = way_of(path, links)
    plans = []
    for tensor in ir.tensors:
        before = checked(tensor.name, tensor.shape, ir.mesh, tensor.before, "before")
        after = checked(tensor.name, tensor.shape, ir.mesh, tensor.after, "after")
        _check_pair(tensor, ir.mesh, before, after)
        spec = TensorSpec(tensor.name, tuple(tensor.shape), parts_of(ir.mesh, summed_axes(before, after)))
        moves = Moves(spec, ir.mesh.world, direction)
        has, wants = reshard(moves, ir.mesh, before, after, accumulate, way)
        meta = {"mesh": str(ir.mesh), "from": f"{_said(before)} to {_said(after)}"}
        plans.append(split_plan(moves.plan(f"reshard_{tensor.name}", has, wants, meta), split))
    plan = merge_plans(plans)
    return plan if name is None else replace(plan, name=name)


def _said(placements: Sequence[Placement]) -> str:
    return ", ".join(map(str, placements))


def _check_pair(tensor: Reshard, mesh: Mesh, before: Sequence[Placement], after: Sequence[Placement]) -> None:
    merges = {p.op for p in (*before, *after) if isinstance(p, Partial)}
    if len(merges) > 1:
        raise PlanError(
            f"tensor {tensor.name} is merged in two ways, {' and '.join(sorted(merges))}",
            help="finish one sum in a plan of its own first",
        )
    for axis, old, new in zip(mesh.names, before, after, strict=True):
        if isinstance(new, Partial) and not isinstance(old, Partial):
            raise PlanError(
                f"tensor {tensor.name} goes from {old} to {new} along {axis}: no transfer makes parts of a whole",
                help=f"keep it {old} along {axis}, or let the kernel that makes it leave it {new}",
            )


def summed_axes(before: Sequence[Placement], after: Sequence[Placement]) -> tuple[int, ...]:
    """Mesh axes along which parts are summed up."""
    pairs = enumerate(zip(before, after, strict=True))
    return tuple(axis for axis, (old, new) in pairs if isinstance(old, Partial) and not isinstance(new, Partial))


def parts_of(mesh: Mesh, axes: Sequence[int]) -> tuple[int, ...]:
    """`TensorSpec.parts` of a sum over some axes of a mesh; empty where every rank has a part of its own, or none."""
    if not axes or len(axes) == len(mesh.sizes):
        return ()
    found = []
    for rank in range(mesh.world):
        at, number = mesh.coordinates(rank), 0
        for axis in axes:
            number = number * mesh.sizes[axis] + at[axis]
        found.append(number)
    return () if found == list(range(mesh.world)) else tuple(found)


def reshard(
    moves: Moves,
    mesh: Mesh,
    before: Sequence[Placement],
    after: Sequence[Placement],
    accumulate: str = "fp32",
    way: Way | None = None,
    order: Sequence[int] = (),
) -> tuple[list[Box], list[Box]]:
    """Writes down all moves from one layout to another; gives what each rank holds before and after them.

    Args:
        way: as collectives along one axis after the other; None: every piece from the nearest rank that has it.
        order: the mesh's axes in the order in which they cut (`box_at`).
    """
    places = [mesh.coordinates(rank) for rank in range(mesh.world)]
    shape = moves.tensor.shape
    has = [box_at(shape, mesh, before, at, order) for at in places]
    wants = [box_at(shape, mesh, after, at, order) for at in places]
    held: list[Box | None] = list(has)
    summed = summed_axes(before, after)
    if way is not None:
        merge = next((p.op for p in before if isinstance(p, Partial)), "sum")
        steps = axis_steps(shape, mesh, before, after, order)
        carry_out(moves, mesh, steps, way, Reduction(merge, accumulate))
        return has, wants
    if summed:
        op = next(p.op for p in before if isinstance(p, Partial))
        held = _sum_up(moves, mesh, summed, has, wants, Reduction(op, accumulate))
    # A part that stays a part is that of one coordinate only, and cannot be taken from another one.
    kept = [axis for axis, placement in enumerate(after) if isinstance(placement, Partial)]
    _deliver(moves, places, kept, held, wants)
    return has, wants


def _sum_up(
    moves: Moves, mesh: Mesh, axes: Sequence[int], has: list[Box], wants: list[Box], reduction: Reduction
) -> list[Box | None]:
    """Every group of ranks that hold parts of one sum divides it; gives the piece that each rank sums up."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(mesh.world):
        at = mesh.coordinates(rank)
        groups.setdefault(tuple(c for axis, c in enumerate(at) if axis not in axes), []).append(rank)
    held: list[Box | None] = list(has)
    for group in groups.values():
        whole = has[group[0]]
        sharers: dict[Box, list[int]] = {}
        for rank in group:
            sharers.setdefault(wants[rank].intersect(whole), []).append(rank)
        if sum(box.size for box in sharers) != whole.size or uncovered(sharers, whole):
            sharers = {whole: group}  # the wanted cut does not divide it
        for box, ranks in sharers.items():
            for rank, piece in zip(ranks, _pieces(box, len(ranks)), strict=True):
                held[rank] = piece
    longest = max(map(len, groups.values()))
    for step in range(1, longest):
        for group in groups.values():
            for i, rank in enumerate(group):
                piece = held[rank]
                if piece is not None and step < len(group):
                    moves.move(group[(i + step) % len(group)], rank, piece, reduction)
    return held


def _pieces(box: Box, count: int) -> list[Box | None]:
    """``count`` pieces along the longest dimension; a scalar is the first rank's."""
    if count == 1 or not box.ndim:
        return [box, *[None] * (count - 1)]
    return [*box.split(max(range(box.ndim), key=lambda dim: box.shape[dim]), count)]


def _deliver(
    moves: Moves, places: list[tuple[int, ...]], kept: Sequence[int], held: list[Box | None], wants: list[Box]
) -> None:
    """Brings each rank what it wants and does not hold, from the nearest rank that holds it."""
    world = len(places)
    queues: list[list[tuple[int, Box]]] = []
    for rank, wanted in enumerate(wants):
        queue: list[tuple[int, Box]] = []
        own = held[rank]
        left = uncovered([] if own is None else [own], wanted)
        if left:
            at = places[rank]
            near = [
                (tuple(map(int.__ne__, there, at)), (other - rank) % world, other)
                for other, there in enumerate(places)
                if other != rank and all(there[axis] == at[axis] for axis in kept)
            ]
            for _, _, other in sorted(near):
                theirs = held[other]
                if theirs is not None:
                    queue += [(other, piece.intersect(theirs)) for piece in left if piece.overlaps(theirs)]
                    left = [rest for piece in left for rest in piece.subtract(theirs)]
        queues.append(queue)
    for turn, rank in product(range(max(map(len, queues), default=0)), range(world)):
        if turn < len(queues[rank]):
            other, box = queues[rank][turn]
            moves.move(other, rank, box)
