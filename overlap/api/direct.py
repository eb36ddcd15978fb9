"""A plan of collectives, each handed to torch.distributed as a whole: ``path="direct"``.

    all_gather       members' boxes, padded to the largest     -> every member
    reduce_scatter   every member's summand, cut by who gets it -> summed at its owner
    all_reduce       every member's summand                     -> summed everywhere
    all_to_all       what of a member's box each other one gets -> there

Pieces may be of any sizes. A collective over some of the ranks is an exchange among all of them in which the others send
and get nothing: a group of its own is torch's to make by all ranks of the job, and not every one of them need be here.
The tensors lie in ordinary memory, on any device that the group's backend takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from overlap.chunkplan.order import collective_groups, happens_before, name_op
from overlap.chunkplan.plan import P2P, Chunk, Collective, CommOp, CommPlan, OpId
from overlap.chunkplan.region import Box
from overlap.errors import UnsupportedError
from overlap.runtime.layout import separated
from overlap.runtime.transfer import boxes_of

from .collectives import add_in_order, all_reduce, exchange, gather_single, reduce_scatter_single


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
    """Runs the collectives of a verified plan, in an order that all ranks share; without a group, all of one rank's plan.

    Args:
        given: by tensor, one tensor for each of `boxes_of` what this rank holds before.
        results: by tensor, where what lies in ``held`` of it afterwards goes.
    """
    rank = 0 if group is None else dist.get_rank(group)
    memory = {name: _Places(plan, name, rank, out) for name, out in results.items()}
    for name, tensors in given.items():
        boxes = boxes_of(plan.before[rank], name, len(plan.tensor(name).shape))
        for box, tensor in zip(boxes, tensors, strict=False):  # of nothing, nothing need be given
            if not box.empty:
                memory[name].view(box).copy_(tensor)
    calls = {member: members for members in collective_groups(plan) for member in members}
    called: set[OpId] = set()
    for op_id in happens_before(plan).order:
        if group is None:
            _alone(plan.op(op_id), memory)
        elif op_id not in called:
            called.update(calls[op_id])
            _call(plan, group, calls[op_id], memory)
    for name, out in results.items():
        for box in boxes_of(plan.after[rank], name, len(plan.tensor(name).shape)):
            if not box.empty:
                inside = tuple(slice(a - o, b - o) for a, b, o in zip(box.lo, box.hi, held[name].lo, strict=True))
                out[inside].copy_(memory[name].view(box))


def _alone(op: CommOp, memory: Mapping[str, _Places]) -> None:
    """An operation of the only rank there is: from a place to another of its own."""
    into, brought = memory[op.dst.tensor].view(op.dst.box), memory[op.src.tensor].view(op.src.box)
    if isinstance(op, P2P) and op.reduce is not None:
        into.add_(brought)
    elif (op.src.tensor, op.src.box) != (op.dst.tensor, op.dst.box):
        into.copy_(brought)


class _Places:
    """What a rank has of a tensor, as boxes that share no element."""

    def __init__(self, plan: CommPlan, tensor: str, rank: int, like: torch.Tensor) -> None:
        ndim = len(plan.tensor(tensor).shape)
        chunks = [chunk for op in plan.ops[rank] for chunk in (op.src, op.dst)]
        boxes = [chunk.box for chunk in chunks if chunk.tensor == tensor]
        boxes += [*boxes_of(plan.before[rank], tensor, ndim), *boxes_of(plan.after[rank], tensor, ndim)]
        self._like = like
        self._places = [(box, like.new_empty(box.shape)) for box in separated(boxes)]
        self.device = like.device

    def view(self, box: Box) -> torch.Tensor:
        for place, data in self._places:
            if not box.empty and place.contains(box):
                return data[tuple(slice(a - o, b - o) for a, b, o in zip(box.lo, box.hi, place.lo, strict=True))]
        return self._like.new_empty(box.shape)


def _call(plan: CommPlan, group: Any, members: tuple[OpId, ...], memory: Mapping[str, _Places]) -> None:
    at = {member[0]: plan.op(member) for member in members}
    if all(op.dst.box.empty for op in at.values()):
        return
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if len(at) < world:
        _call_some(group, rank, world, at, memory)
        return
    op = at[rank]
    assert isinstance(op, Collective)
    src, dst = memory[op.src.tensor], memory[op.dst.tensor]
    if op.kind == "all_gather":
        _all_gather(group, src.view(op.src.box), [(dst, at[other].src) for other in range(world)], op.dst)
    elif op.kind == "all_to_all":
        _exchanged(group, rank, at, world, memory)
    elif op.kind == "reduce_scatter":
        _reduce_scatter(group, [src.view(at[other].dst.box) for other in range(world)], dst.view(op.dst.box))
    else:
        all_reduce(group if world > 1 else None, src.view(op.src.box).clone(), dst.view(op.dst.box))


def _call_some(group: Any, rank: int, world: int, at: Mapping[int, Any], memory: Mapping[str, _Places]) -> None:
    """A collective over the ranks of ``at`` alone: every member sends to each what that one needs of its part."""
    op = at.get(rank)
    summands = _exchanged(group, rank, at, world, memory, whole=next(iter(at.values())).reduce is not None)
    if op is not None and op.reduce is not None:
        memory[op.dst.tensor].view(op.dst.box).copy_(add_in_order(summands))


def _exchanged(
    group: Any, rank: int, at: Mapping[int, Any], world: int, memory: Mapping[str, _Places], whole: bool = False
) -> list[torch.Tensor]:
    """What each member has of what another ends with goes there, into its place; or with ``whole`` into the list returned."""
    op = at.get(rank)
    device = next(iter(memory.values())).device
    nothing = torch.empty(0, dtype=torch.uint8, device=device)
    sent, sizes, places = [nothing] * world, [(0,)] * world, {}
    if op is not None:
        src, dst = memory[op.src.tensor], memory[op.dst.tensor]
        for other, theirs in at.items():
            sent[other] = _as_bytes(src.view(op.src.box.intersect(theirs.dst.box)))
            box = theirs.src.box.intersect(op.dst.box)
            places[other] = dst.view(box).new_empty(box.shape) if whole else dst.view(box)
            sizes[other] = (places[other].numel() * places[other].element_size(),)
    pieces = exchange(group, sent, sizes)
    for other, place in places.items():
        place.copy_(pieces[other].view(place.dtype).view(place.shape))
    return [places[other] for other in sorted(places)]


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
