"""Cutting the transfers of a built plan into parts, so that a consumer can start on the first part earlier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from overlap.errors import PlanError, SourceSpan

from .cuts import WHOLE, Split, Weights, split_of, weights_at
from .plan import P2P, Chunk, Collective, CommOp, CommPlan, OpId

Item = TypeVar("Item")


def split_plan(
    plan: CommPlan,
    split: Split,
    *,
    dim: int | None = None,
    around: bool = False,
    own: Mapping[OpId, Split] | None = None,
) -> CommPlan:
    """The plan with every P2P cut into the parts that ``split`` says (`cuts`).

    The parts of an operation stand where it stood, one behind the other, with its direction, ranks, channel,
    reduction and backend; parts beyond the chunk's extent are empty. Part i of a relay depends on part i of the
    operation that brought the chunk, or where that one is cut otherwise on those parts of it that hold some of part i; every
    other dependency becomes one on all parts. Collectives stay whole.

    Args:
        split: how transfers are cut; 1 leaves them whole. The first and the last transfer are those of each rank's list.
        dim: dimension to cut along; without it, the first in which a chunk is not all of its tensor (else 0).
        around: the first part of every operation comes before the second of any, for consumers that need a part of
            each; a plan whose operations depend on each other keeps its order.
        own: how single operations are cut instead.

    Raises:
        PlanError: no split, or a chunk has no such dimension.
    """
    try:
        split = split_of(split)
    except PlanError as error:
        raise PlanError(f"plan {plan.name}: {error.message}", where=plan.where(), help=error.help) from None
    if split == 1 and not own:
        return plan
    weights = _weights(plan, split, own or {})
    first: dict[OpId, int] = {}
    for rank, ops in enumerate(plan.ops):
        place = 0
        for index in range(len(ops)):
            first[rank, index] = place
            place += len(weights[rank, index])

    def parts_of(dep: OpId, among: Sequence[int] | None = None) -> list[OpId]:
        return [(dep[0], first[dep] + part) for part in among or range(len(weights[dep]))]

    pieces = {op_id: _cut(plan, op_id, weights[op_id], dim) for op_id, _ in plan.items()}

    def depends_of(op_id: OpId, op: CommOp, part: int) -> tuple[OpId, ...]:
        found: list[OpId] = []
        for dep in op.depends:
            if not _relays(op, plan.op(dep)):
                found += parts_of(dep)
            elif weights[dep] == weights[op_id]:
                found += parts_of(dep, [part])
            else:
                box = pieces[op_id][part].src.box
                found += parts_of(dep, [i for i, piece in enumerate(pieces[dep]) if piece.dst.box.overlaps(box)])
        return tuple(found)

    lists: list[tuple[CommOp, ...]] = []
    spans: list[tuple[SourceSpan | None, ...]] = []
    turning = around and all(isinstance(op, P2P) and not op.depends for _, op in plan.items())
    for rank, ops in enumerate(plan.ops):
        row: list[list[CommOp]] = []
        places: list[list[SourceSpan | None]] = []
        for index, op in enumerate(ops):
            cut = pieces[rank, index]
            row.append([replace(piece, depends=depends_of((rank, index), op, i)) for i, piece in enumerate(cut)])
            places.append([plan.where((rank, index))] * len(cut))
        lists.append(_in_order(row, turning))
        spans.append(_in_order(places, turning))
    return replace(plan, ops=tuple(lists), spans=tuple(spans) if plan.spans else ())


def _weights(plan: CommPlan, split: Split, own: Mapping[OpId, Split]) -> dict[OpId, Weights]:
    """Of every operation."""
    found: dict[OpId, Weights] = {}
    for rank, ops in enumerate(plan.ops):
        moves = [index for index, op in enumerate(ops) if isinstance(op, P2P) and op.direction != "local"]
        turn = {index: place for place, index in enumerate(moves)}
        # A local copy is neither first nor last.
        places = {index: (turn.get(index, 1), len(moves) if index in turn else 3) for index in range(len(ops))}
        for index, op in enumerate(ops):
            if isinstance(op, Collective):
                found[rank, index] = WHOLE
            else:
                found[rank, index] = weights_at(own.get((rank, index), split), *places[index])
    return found


def _in_order(parts: list[list[Item]], around: bool) -> tuple[Item, ...]:
    """Those of an operation one behind the other, or one of each operation in turn."""
    if not around:
        return tuple(item for row in parts for item in row)
    most = max(map(len, parts), default=0)
    return tuple(row[i] for i in range(most) for row in parts if i < len(row))


def _relays(op: CommOp, dep: CommOp) -> bool:
    """Whether ``op`` sends on exactly the chunk that ``dep`` brought to its source."""
    return isinstance(op, P2P) and isinstance(dep, P2P) and dep.dst_rank == op.src_rank and dep.dst == op.src


def _cut(plan: CommPlan, op_id: OpId, weights: Weights, dim: int | None) -> Sequence[CommOp]:
    op = plan.op(op_id)
    if isinstance(op, Collective) or weights == WHOLE:
        return [op]
    ndim = op.src.box.ndim
    if dim is None:
        whole = plan.tensor(op.src.tensor).shape
        dim = next((d for d in range(ndim) if op.src.box.shape[d] != whole[d]), 0)
    if not 0 <= dim < ndim:
        raise PlanError(
            f"plan {plan.name}: {op.src} has no dimension {dim} to split along",
            where=plan.where(op_id),
            help="split along another one",
        )
    sources = op.src.box.split(dim, weights)
    targets = sources if op.dst == op.src else op.dst.box.split(dim, weights)
    return [
        replace(op, src=Chunk(op.src.tensor, src), dst=Chunk(op.dst.tensor, dst))
        for src, dst in zip(sources, targets, strict=True)
    ]
