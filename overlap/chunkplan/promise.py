"""Does a plan promise what a kind of communication is for? A sound plan of another kind is found here."""

from __future__ import annotations

from collections.abc import Sequence

from overlap.errors import PlanError

from .plan import Chunk, CommPlan
from .region import Box, overlap_of, uncovered
from .window import KINDS

_TEMPLATES = {
    "gather": ("all_gather_1d",),
    "reduce_scatter": ("reduce_scatter_1d",),
    "all_reduce": ("all_reduce_one_shot", "all_reduce_two_shot"),
    "all_to_all": ("all_to_all_1d",),
}
_NAMES = {"reduce_scatter": "reduce-scatter", "all_reduce": "all-reduce", "all_to_all": "all-to-all"}


def verify_kind(
    plan: CommPlan, tensor: str, kind: str, *, dim: int, to_dim: int | None = None, ranks: Sequence[int] | None = None
) -> None:
    """Returns if what ranks hold before and after the plan is what a kind of communication gives and takes.

    A gather ends with everything on every rank. A reduce-scatter starts with everything on every rank and ends with it
    divided along ``dim``; an all-reduce starts and ends with everything. An all-to-all starts with the tensor divided
    along ``dim`` and ends with it divided along ``to_dim``. A division gives every element to one rank and cuts no other
    dimension; its parts may have any sizes.

    Args:
        ranks: the ranks that communicate; every rank where it is None. The others start and end with nothing. Of a tensor
            that is a different one in each group (`TensorSpec.groups`) they are a group or a part of one, and nothing is
            asked of other groups.

    Raises:
        PlanError: it is not; the message says on which rank.
        KeyError: the plan has no such tensor.
        ValueError: no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind `{kind}`, there is {', '.join(KINDS)}")
    shape = plan.tensor(tensor).shape
    members = range(plan.world) if ranks is None else ranks
    group = plan.tensor(tensor).group
    apart = next((rank for rank in members if group(rank) != group(members[0])), None)
    if apart is not None:
        raise _refused(plan, kind, f"ranks {members[0]} and {apart} hold different tensors under the name {tensor}")
    concerned = [rank for rank in range(plan.world) if not members or group(rank) == group(members[0])]
    _nothing_outside(plan, tensor, kind, members, concerned)
    if kind in ("reduce_scatter", "all_reduce"):
        _parts_apart(plan, tensor, kind, members)
        _everywhere(plan, tensor, kind, "starts", plan.before, shape, members)
    if kind in ("gather", "all_reduce"):
        _everywhere(plan, tensor, kind, "ends", plan.after, shape, members)
    if kind == "reduce_scatter":
        _divided(plan, tensor, kind, "ends", plan.after, shape, dim, members)
    if kind == "all_to_all":
        assert to_dim is not None
        _divided(plan, tensor, kind, "starts", plan.before, shape, dim, members)
        _divided(plan, tensor, kind, "ends", plan.after, shape, to_dim, members)


def _parts_apart(plan: CommPlan, tensor: str, kind: str, members: Sequence[int]) -> None:
    """Each rank has a part of its own: a sum counts all of them."""
    parts = plan.tensor(tensor).parts
    first: dict[int, int] = {}
    for rank in members if parts else ():
        other = first.setdefault(parts[rank], rank)
        if other != rank:
            raise _refused(plan, kind, f"its sums count one of ranks {other} and {rank} only, which hold one part")


Held = Sequence[Sequence[Chunk]]


def _boxes(held: Held, tensor: str) -> list[list[Box]]:
    return [[chunk.box for chunk in chunks if chunk.tensor == tensor] for chunks in held]


def _nothing_outside(plan: CommPlan, tensor: str, kind: str, members: Sequence[int], concerned: Sequence[int]) -> None:
    for when, held in (("starts", plan.before), ("ends", plan.after)):
        boxes = _boxes(held, tensor)
        for rank in concerned:
            full = [box for box in boxes[rank] if not box.empty]
            if full and rank not in members:
                raise _refused(plan, kind, f"rank {rank} {when} with {Chunk(tensor, full[0])}, and takes no part")


def _everywhere(
    plan: CommPlan, tensor: str, kind: str, when: str, held: Held, shape: tuple[int, ...], members: Sequence[int]
) -> None:
    boxes = _boxes(held, tensor)
    for rank in members:
        missing = uncovered(boxes[rank], Box.whole(shape))
        if missing:
            raise _refused(plan, kind, f"rank {rank} {when} without {Chunk(tensor, missing[0])}")


def _divided(
    plan: CommPlan,
    tensor: str,
    kind: str,
    when: str,
    held: Held,
    shape: tuple[int, ...],
    dim: int,
    members: Sequence[int],
) -> None:
    whole = Box.whole(shape)
    everything: list[Box] = []
    owners: list[int] = []
    held_boxes = _boxes(held, tensor)
    for rank in members:
        boxes = held_boxes[rank]
        for box in boxes:
            full = box.with_interval(dim, whole.lo[dim], whole.hi[dim])
            if not box.empty and full != whole:
                raise _refused(plan, kind, f"rank {rank} {when} with {Chunk(tensor, box)}, cut along another dimension")
        everything += boxes
        owners += [rank] * len(boxes)
    for i, j, shared in overlap_of(everything):
        if owners[i] != owners[j]:
            raise _refused(
                plan, kind, f"ranks {owners[i]} and {owners[j]} both {when[:-1]} with {Chunk(tensor, shared)}"
            )
    missing = uncovered(sorted(everything, key=lambda box: box.lo), whole)
    if missing:
        raise _refused(plan, kind, f"no rank {when} with {Chunk(tensor, missing[0])}")


def _refused(plan: CommPlan, kind: str, why: str) -> PlanError:
    name = _NAMES.get(kind, kind)
    article = "an" if name[0] == "a" else "a"
    known = " or ".join(_TEMPLATES[kind])
    return PlanError(
        f"plan {plan.name} is no {name}: {why}", where=plan.where(), help=f"{article} {name} is a plan such as {known}"
    )
