"""Collectives of a plan, each carried out by torch.distributed as a whole.

Pieces may be of any sizes. A collective over some of the ranks is an exchange among all of them in which the others send
and get nothing: a group of its own is torch's to make by all ranks of the job, and not every one of them need be here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from overlap.chunkplan.order import collective_groups, happens_before
from overlap.chunkplan.plan import Chunk, Collective, CommPlan, OpId
from overlap.chunkplan.region import Box

from .collectives import add_in_order, all_reduce, exchange, gather_single, reduce_scatter_single


class Views(Protocol):
    """What a rank has of a tensor."""

    device: torch.device

    def view(self, box: Box) -> torch.Tensor:
        """The elements of a box."""


class Boxed:
    """A tensor that holds one box of a global tensor."""

    def __init__(self, tensor: torch.Tensor, box: Box) -> None:
        self.tensor = tensor
        self.box = box
        self.device = tensor.device

    def view(self, box: Box) -> torch.Tensor:
        """An empty box is anywhere."""
        if box.empty:
            return self.tensor.new_empty(box.shape)
        return self.tensor[tuple(slice(a - o, b - o) for a, b, o in zip(box.lo, box.hi, self.box.lo, strict=True))]


def call_all(plan: CommPlan, group: Any, source: Boxed, target: Boxed) -> None:
    """All collectives of a plan over one tensor, in an order that all ranks share."""
    (name,) = (spec.name for spec in plan.tensors)
    calls = {member: members for members in collective_groups(plan) for member in members}
    called: set[OpId] = set()
    for op_id in happens_before(plan).order:
        if op_id not in called:
            called.update(calls[op_id])
            call_library(plan, group, calls[op_id], {name: source}, {name: target})


def call_library(
    plan: CommPlan,
    group: Any,
    members: tuple[OpId, ...],
    sources: Mapping[str, Views],
    targets: Mapping[str, Views],
) -> None:
    """One collective of a plan, on the stream that the caller works on.

    Args:
        members: its entries, one of each rank that takes part; every rank of the group calls.
        sources, targets: by tensor, where what it reads and what it writes lie.
    """
    at = {member[0]: plan.op(member) for member in members}
    if all(op.dst.box.empty for op in at.values()):
        return
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if len(at) < world:
        _call_some(group, rank, world, at, sources, targets)
        return
    op = at[rank]
    assert isinstance(op, Collective)
    src, dst = sources[op.src.tensor], targets[op.dst.tensor]
    if op.kind == "all_gather":
        _all_gather(group, src.view(op.src.box), [(dst, at[other].src) for other in range(world)], op.dst)
    elif op.kind == "all_to_all":
        _exchanged(group, rank, at, world, sources, targets)
    elif op.kind == "reduce_scatter":
        _reduce_scatter(group, [src.view(at[other].dst.box) for other in range(world)], dst.view(op.dst.box))
    else:
        all_reduce(group if world > 1 else None, src.view(op.src.box).clone(), dst.view(op.dst.box))


def _call_some(
    group: Any,
    rank: int,
    world: int,
    at: Mapping[int, Any],
    sources: Mapping[str, Views],
    targets: Mapping[str, Views],
) -> None:
    """A collective over the ranks of ``at`` alone: every member sends to each what that one needs of its part."""
    op = at.get(rank)
    whole = next(iter(at.values())).reduce is not None
    summands = _exchanged(group, rank, at, world, sources, targets, whole=whole)
    if op is not None and op.reduce is not None:
        targets[op.dst.tensor].view(op.dst.box).copy_(add_in_order(summands))


def _exchanged(
    group: Any,
    rank: int,
    at: Mapping[int, Any],
    world: int,
    sources: Mapping[str, Views],
    targets: Mapping[str, Views],
    whole: bool = False,
) -> list[torch.Tensor]:
    """What each member has of what another ends with goes there, into its place; or with ``whole`` into the list returned."""
    op = at.get(rank)
    device = next(iter(targets.values())).device
    nothing = torch.empty(0, dtype=torch.uint8, device=device)
    sent, sizes, places = [nothing] * world, [(0,)] * world, {}
    if op is not None:
        src, dst = sources[op.src.tensor], targets[op.dst.tensor]
        for other, theirs in at.items():
            sent[other] = _as_bytes(src.view(op.src.box.intersect(theirs.dst.box)))
            box = theirs.src.box.intersect(op.dst.box)
            places[other] = dst.view(box).new_empty(box.shape) if whole else dst.view(box)
            sizes[other] = (places[other].numel() * places[other].element_size(),)
    pieces = exchange(group, sent, sizes)
    for other, place in places.items():
        place.copy_(pieces[other].view(place.dtype).view(place.shape))
    return [places[other] for other in sorted(places)]


def _all_gather(group: Any, mine: torch.Tensor, places: Sequence[tuple[Views, Chunk]], wanted: Chunk) -> None:
    longest = max(chunk.box.size for _, chunk in places)
    if not longest:
        return
    padded = mine.new_zeros(longest)
    padded[: mine.numel()] = mine.reshape(-1)
    whole = padded.new_empty(longest * len(places))
    gather_single(_as_bytes(whole), _as_bytes(padded), group=group)
    for (place, chunk), piece in zip(places, whole.view(len(places), longest), strict=True):
        part = chunk.box.intersect(wanted.box)
        inside = tuple(slice(a - o, b - o) for a, b, o in zip(part.lo, part.hi, chunk.box.lo, strict=True))
        place.view(part).copy_(piece[: chunk.box.size].view(chunk.box.shape)[inside])


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """What is moved goes as bytes: not every backend knows every dtype. Of a dense tensor a view."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def _reduce_scatter(group: Any, summands: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    if not out.is_cuda:
        out.copy_(add_in_order(exchange(group, summands, [out.shape] * len(summands))))
        return
    longest = max(summand.numel() for summand in summands)
    if not longest:
        return
    padded = out.new_zeros(len(summands), longest)
    for row, summand in zip(padded, summands, strict=True):
        row[: summand.numel()] = summand.reshape(-1)
    piece = out.new_empty(longest)
    reduce_scatter_single(piece, padded.view(-1), group=group)
    out.copy_(piece[: out.numel()].view(out.shape))
