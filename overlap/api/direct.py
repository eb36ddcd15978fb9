"""A plan of collectives, each handed to torch.distributed as a whole: ``path="direct"``.

    all_gather       members' boxes, padded to the largest     -> every member
    reduce_scatter   every member's summand, cut by who gets it -> summed at its owner
    all_reduce       every member's summand                     -> summed everywhere
    all_to_all       what of a member's box each other one gets -> there

Pieces may be of any sizes, and a collective may be over some of the ranks, which then have a group of their own, made once.
The tensors lie in ordinary memory, on any device that the group's backend takes.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from overlap.chunkplan.order import collective_groups, happens_before, name_op
from overlap.chunkplan.plan import Chunk, Collective, CommPlan, OpId
from overlap.chunkplan.region import Box
from overlap.errors import UnsupportedError
from overlap.runtime.layout import separated
from overlap.runtime.transfer import boxes_of

from .collectives import add_in_order, all_reduce, exchange, gather_single, reduce_scatter_single

_GROUPS: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Any]] = weakref.WeakKeyDictionary()
"""By group: the groups made of some of its ranks."""


def check_direct(plan: CommPlan) -> None:
    """Refuses what no library does.

    Raises:
        UnsupportedError: copies beside collectives, or a reduction other than a sum.
    """
    for op_id, op in plan.items():
        if not isinstance(op, Collective):
            raise UnsupportedError(
                f"plan {plan.name} has collectives, and {name_op(plan, op_id)}, which is none",
                where=plan.where(op_id),
                help="let a plan move chunks or hand collectives to a library: use two plans, one behind the other",
            )
        if op.reduce is not None and op.reduce.op != "sum":
            raise UnsupportedError(
                f"plan {plan.name}, {name_op(plan, op_id)}: `reduce: {op.reduce}` is not handed to a library",
                where=plan.where(op_id),
                help="there is sum",
            )


def carry_out_direct(
    plan: CommPlan,
    group: Any,
    given: Mapping[str, Sequence[torch.Tensor]],
    results: Mapping[str, torch.Tensor],
    held: Mapping[str, Box],
) -> None:
    """Runs the collectives of a verified plan in which this rank takes part, in an order that all ranks share.

    Args:
        given: by tensor, one tensor for each of `boxes_of` what this rank holds before.
        results: by tensor, where what lies in ``held`` of it afterwards goes.
    """
    rank = dist.get_rank(group)
    memory = {name: _Places(plan, name, rank, out) for name, out in results.items()}
    for name, tensors in given.items():
        boxes = boxes_of(plan.before[rank], name, len(plan.tensor(name).shape))
        for box, tensor in zip(boxes, tensors, strict=True):
            if not box.empty:
                memory[name].view(box).copy_(tensor)
    calls = {member: members for members in collective_groups(plan) for member in members}
    for op_id in happens_before(plan).order:
        if op_id[0] == rank:
            _call(plan, group, op_id, calls[op_id], memory)
    for name, out in results.items():
        for box in boxes_of(plan.after[rank], name, len(plan.tensor(name).shape)):
            if not box.empty:
                inside = tuple(slice(a - o, b - o) for a, b, o in zip(box.lo, box.hi, held[name].lo, strict=True))
                out[inside].copy_(memory[name].view(box))


class _Places:
    """What a rank has of a tensor, as boxes that share no element."""

    def __init__(self, plan: CommPlan, tensor: str, rank: int, like: torch.Tensor) -> None:
        ndim = len(plan.tensor(tensor).shape)
        chunks = [chunk for op in plan.ops[rank] for chunk in (op.src, op.dst)]
        boxes = [chunk.box for chunk in chunks if chunk.tensor == tensor]
        boxes += [*boxes_of(plan.before[rank], tensor, ndim), *boxes_of(plan.after[rank], tensor, ndim)]
        self._like = like
        self._places = [(box, like.new_empty(box.shape)) for box in separated(boxes)]

    def view(self, box: Box) -> torch.Tensor:
        for place, data in self._places:
            if not box.empty and place.contains(box):
                return data[tuple(slice(a - o, b - o) for a, b, o in zip(box.lo, box.hi, place.lo, strict=True))]
        return self._like.new_empty(box.shape)


def _call(plan: CommPlan, group: Any, op_id: OpId, members: tuple[OpId, ...], memory: Mapping[str, _Places]) -> None:
    op = plan.op(op_id)
    assert isinstance(op, Collective)
    at = {member[0]: plan.op(member) for member in members}
    among, ranks = _subgroup(group, at)
    src, dst = memory[op.src.tensor], memory[op.dst.tensor]
    if op.kind == "all_gather":
        _all_gather(among, src.view(op.src.box), [(dst, at[rank].src) for rank in ranks], op.dst)
    elif op.kind == "all_to_all":
        sent = [op.src.box.intersect(at[rank].dst.box) for rank in ranks]
        got = [at[rank].src.box.intersect(op.dst.box) for rank in ranks]
        places = [dst.view(box) for box in got]
        sizes = [(place.numel() * place.element_size(),) for place in places]
        pieces = exchange(among, [_as_bytes(src.view(box)) for box in sent], sizes)
        for place, piece in zip(places, pieces, strict=True):
            place.copy_(piece.view(place.dtype).view(place.shape))
    elif op.kind == "reduce_scatter":
        _reduce_scatter(among, [src.view(at[rank].dst.box) for rank in ranks], dst.view(op.dst.box))
    else:
        all_reduce(among if len(ranks) > 1 else None, src.view(op.src.box).clone(), dst.view(op.dst.box))


def _all_gather(group: Any, mine: torch.Tensor, places: Sequence[tuple[_Places, Chunk]], wanted: Chunk) -> None:
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


def _subgroup(group: Any, members: Collection[int]) -> tuple[Any, list[int]]:
    """The group of some of a group's ranks, and these ranks in its order; the group itself where it is all of them."""
    if len(members) == dist.get_world_size(group):
        return group, sorted(members)
    ranks = sorted(members, key=lambda rank: dist.get_global_rank(group, rank))
    made = _GROUPS.setdefault(group, {})
    key = tuple(ranks)
    if key not in made:
        among = [dist.get_global_rank(group, rank) for rank in ranks]
        made[key] = dist.new_group(among, use_local_synchronization=True)
    return made[key], ranks
