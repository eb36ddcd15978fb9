"""A plan of collectives, each handed to torch.distributed as a whole: ``path="direct"``.

    all_gather       members' boxes, padded to the largest     -> every member
    reduce_scatter   every member's summand, cut by who gets it -> summed at its owner
    all_reduce       every member's summand                     -> summed everywhere
    all_to_all       what of a member's box each other one gets -> there

The tensors lie in ordinary memory, on any device that the group's backend takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from overlap.chunkplan.order import collective_groups, happens_before
from overlap.chunkplan.plan import P2P, CommOp, CommPlan, OpId
from overlap.chunkplan.region import Box
from overlap.runtime.group.library import call_library
from overlap.runtime.memory.layout import separated
from overlap.runtime.transfer.transfer import boxes_of


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
            call_library(plan, group, calls[op_id], memory, memory)
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
