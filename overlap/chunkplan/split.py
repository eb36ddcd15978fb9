"""Cutting the transfers of a built plan into parts, so that a consumer can start on the first part earlier."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from overlap.errors import PlanError, SourceSpan

from .plan import P2P, Chunk, Collective, CommOp, CommPlan, OpId

Item = TypeVar("Item")


def split_plan(plan: CommPlan, parts: int, *, dim: int | None = None, around: bool = False) -> CommPlan:
    """The plan with every P2P cut into ``parts`` transfers by the rule of ``torch.chunk``.

    The parts of an operation stand where it stood, one behind the other, with its direction, ranks, channel,
    reduction and backend; parts beyond the chunk's extent are empty. Part i of a relay depends on part i of the
    operation that brought the chunk; every other dependency becomes one on all parts. Collectives stay whole.

    Args:
        parts: at least 1; 1 gives the plan itself.
        dim: dimension to cut along; without it, the first in which a chunk is not all of its tensor (else 0).
        around: the first part of every operation comes before the second of any, for consumers that need a part of
            each; a plan whose operations depend on each other keeps its order.

    Raises:
        PlanError: ``parts`` is below 1, or a chunk has no such dimension.
    """
    if parts < 1:
        raise PlanError(f"plan {plan.name}: a split into {parts} parts", where=plan.where(), help="split is 1 or more")
    if parts == 1:
        return plan
    first: dict[OpId, int] = {}
    for rank, ops in enumerate(plan.ops):
        place = 0
        for index, op in enumerate(ops):
            first[rank, index] = place
            place += parts if isinstance(op, P2P) else 1

    def all_parts(dep: OpId) -> list[OpId]:
        count = parts if isinstance(plan.op(dep), P2P) else 1
        return [(dep[0], first[dep] + part) for part in range(count)]

    def depends_of(op: CommOp, part: int) -> tuple[OpId, ...]:
        found: list[OpId] = []
        for dep in op.depends:
            found += [(dep[0], first[dep] + part)] if _relays(op, plan.op(dep)) else all_parts(dep)
        return tuple(found)

    lists: list[tuple[CommOp, ...]] = []
    spans: list[tuple[SourceSpan | None, ...]] = []
    for rank, ops in enumerate(plan.ops):
        row: list[CommOp] = []
        places: list[SourceSpan | None] = []
        for index, op in enumerate(ops):
            if isinstance(op, Collective):
                pieces: list[CommOp] = [replace(op, depends=depends_of(op, 0))]
            else:
                pieces = _cut(plan, op, parts, dim, [depends_of(op, part) for part in range(parts)])
            row += pieces
            places += [plan.where((rank, index))] * len(pieces)
        lists.append(tuple(row))
        spans.append(tuple(places))
    if around and all(isinstance(op, P2P) and not op.depends for _, op in plan.items()):
        lists = [_around(row, parts) for row in lists]
        spans = [_around(row, parts) for row in spans]
    return replace(plan, ops=tuple(lists), spans=tuple(spans) if plan.spans else ())


def _around(row: tuple[Item, ...], parts: int) -> tuple[Item, ...]:
    return tuple(item for part in range(parts) for item in row[part::parts])


def _relays(op: CommOp, dep: CommOp) -> bool:
    """Whether ``op`` sends on exactly the chunk that ``dep`` brought to its source."""
    return isinstance(op, P2P) and isinstance(dep, P2P) and dep.dst_rank == op.src_rank and dep.dst == op.src


def _cut(plan: CommPlan, op: P2P, parts: int, dim: int | None, depends: list[tuple[OpId, ...]]) -> list[CommOp]:
    ndim = op.src.box.ndim
    if dim is None:
        whole = plan.tensor(op.src.tensor).shape
        dim = next((d for d in range(ndim) if op.src.box.shape[d] != whole[d]), 0)
    if not 0 <= dim < ndim:
        raise PlanError(
            f"plan {plan.name}: {op.src} has no dimension {dim} to split along", help="split along another one"
        )
    sources = op.src.box.split(dim, parts)
    targets = sources if op.dst == op.src else op.dst.box.split(dim, parts)
    return [
        replace(op, src=Chunk(op.src.tensor, src), dst=Chunk(op.dst.tensor, dst), depends=after)
        for src, dst, after in zip(sources, targets, depends, strict=True)
    ]
