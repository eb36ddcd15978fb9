"""Whether a plan does what `--on` says: who holds which part of the tensor before the operations, and after them."""

from __future__ import annotations

from collections.abc import Sequence

from overlap.annotate.on import OnSpec
from overlap.chunkplan.plan import Chunk, CommPlan
from overlap.chunkplan.region import Box, union_size
from overlap.errors import PlanError

TEMPLATES = {
    "gather": "all_gather_1d or all_gather_ring",
    "reduce_scatter": "reduce_scatter_1d",
    "all_reduce": "all_reduce_one_shot or all_reduce_two_shot",
    "all_to_all": "all_to_all_1d",
}


def check_kind(plan: CommPlan, on: OnSpec) -> None:
    """Refuses a plan for another kind of communication than ``on``, such as an all-reduce for ``c[M]``.

    Raises:
        PlanError: names what some rank holds, and what ``on`` says it does.
    """
    if on.reduces:
        _check_whole(plan, on, plan.before, "starts with")
    if on.kind == "all_reduce":
        _check_whole(plan, on, plan.after, "ends with")
    elif on.kind == "reduce_scatter":
        _check_shards(plan, on, plan.after, "ends with", on.dim, on.axis)
    elif on.kind == "all_to_all":
        assert on.to_dim is not None
        _check_shards(plan, on, plan.before, "starts with", on.dim, on.axis)
        _check_shards(plan, on, plan.after, "ends with", on.to_dim, on.to)


def _check_whole(plan: CommPlan, on: OnSpec, held: Sequence[Sequence[Chunk]], verb: str) -> None:
    size = Box.whole(plan.tensor(on.tensor).shape).size
    for rank, chunks in enumerate(held):
        boxes = _boxes(chunks, on)
        if union_size(boxes) != size:
            raise _other(plan, on, rank, verb, boxes, f"all of {on.tensor}")


def _check_shards(plan: CommPlan, on: OnSpec, held: Sequence[Sequence[Chunk]], verb: str, dim: int, axis: str) -> None:
    """Every element belongs to one rank, and a rank's part is cut along one dimension alone."""
    whole = Box.whole(plan.tensor(on.tensor).shape)
    taken: list[Box] = []
    for rank, chunks in enumerate(held):
        boxes = _boxes(chunks, on)
        # All that a rank holds in its interval along the dimension.
        slabs = [whole.with_interval(dim, box.lo[dim], box.hi[dim]) for box in boxes]
        if union_size(boxes) != union_size(slabs) or any(slab.overlaps(other) for slab in slabs for other in taken):
            raise _other(plan, on, rank, verb, boxes, f"a shard of {on.tensor} along {axis}")
        taken += slabs
    if union_size(taken) != whole.size:
        raise PlanError(
            f"plan {plan.name}: {on} shards {on.tensor} along {axis}, but no rank {verb} some of it",
            where=plan.where(),
            help=f"for {on} take a plan such as {TEMPLATES[on.kind]}",
        )


def _boxes(chunks: Sequence[Chunk], on: OnSpec) -> list[Box]:
    return [chunk.box for chunk in chunks if chunk.tensor == on.tensor and not chunk.box.empty]


def _other(plan: CommPlan, on: OnSpec, rank: int, verb: str, boxes: Sequence[Box], wanted: str) -> PlanError:
    has = ", ".join(f"{on.tensor}{box}" for box in boxes) or f"nothing of {on.tensor}"
    return PlanError(
        f"plan {plan.name}: rank {rank} {verb} {has}, but with {on} it {verb} {wanted}",
        where=plan.where(),
        help=f"for {on} take a plan such as {TEMPLATES[on.kind]}",
    )
