"""What is wrong with a result that tiles were stored for: where, and whether what it was made of has arrived by now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from overlap.chunkplan.region import Box
from overlap.runtime.instance import Instance
from overlap.runtime.instances import instances
from overlap.runtime.of_group import runtime_of
from overlap.schedule.pieces import pieces
from overlap.schedule.table import S_EPOCH, S_FAULT, S_SPIN_LIMIT, SLOT_WORDS, flag_base

from .conftest import meet

Partial = Callable[[int], torch.Tensor]
"""Of a rank: the whole of what its kernel makes, in fp32, at the places of the global tensor."""


def poison(group: Any) -> None:
    """Fills all memory that tiles are stored in with NaN, on all ranks, while nothing runs."""
    torch.cuda.synchronize()
    for workspace in getattr(runtime_of(group), "overlap_workspaces", {}).values():
        if workspace.memory is not None:
            for data in workspace.memory.data:
                data.fill_(float("nan"))
    torch.cuda.synchronize()
    meet("memory is poisoned", dist.get_rank(group))


def findings(group: Any, got: torch.Tensor, exact: torch.Tensor, misses: torch.Tensor, partial: Partial) -> str:
    """Where ``got`` is wrong, and of each slot that it was made from whether that is right once all is quiet.

    Slots that are right by then were read too early. Called on every rank, whether or not its result is wrong.
    """
    rank = dist.get_rank(group)
    torch.cuda.synchronize()
    meet("every rank is quiet", rank)
    told = [f"rank {rank}: {_where(got, exact, misses)}"]
    instance = next(i for i in reversed(instances(runtime_of(group)).values()) if isinstance(i, Instance))
    part = instance.made
    words = instance.state.tolist()[::SLOT_WORDS]
    flags = words[flag_base(dist.get_world_size(group)) :][: len(instance.slots[rank])]
    told.append(f"  epoch {words[S_EPOCH]}, polls {words[S_SPIN_LIMIT]}, fault {words[S_FAULT]}, flags {flags}")

    def wanted(source: int, box: Box) -> torch.Tensor:
        whole = partial(source).reshape(part.shape)  # an operator's kernel may see more dimensions
        return whole[tuple(slice(low, high) for low, high in zip(box.lo, box.hi, strict=True))]

    _, result = pieces(instance.plan, rank, part.comm.tensor)
    for box in (piece.chunk.box for piece in result if None in piece.summands and not piece.chunk.box.empty):
        seen = part.view(part.layout.window, box=box)
        told.append(f"  own part {box} {_compare(seen, wanted(rank, box))}")
    for op_id in sorted(part.layout.slots):
        op = instance.plan.op(op_id)
        if op_id in instance.stored:
            seen = part.view(part.layout.slots[op_id], box=op.dst.box)
            told.append(f"  slot of {op.dst} from rank {op.src_rank} {_compare(seen, wanted(op.src_rank, op.dst.box))}")
    return "\n".join(told)


def _compare(seen: torch.Tensor, exact: torch.Tensor) -> str:
    allowed = 2 * torch.finfo(seen.dtype).eps * exact.abs() + 2e-2
    return f"by now: {_where(seen, exact, ~((seen.float() - exact).abs() <= allowed))}"


def _where(got: torch.Tensor, exact: torch.Tensor, misses: torch.Tensor) -> str:
    """How many elements are wrong, within which indices, and some of them."""
    if not misses.any():
        return "right"
    places = misses.nonzero()
    inside = [f"{low}:{high + 1}" for low, high in zip(places.amin(0).tolist(), places.amax(0).tolist(), strict=True)]
    nothing = int(got[misses].isnan().sum())
    pairs = [(float(a), float(b)) for a, b in zip(got[misses][:4], exact[misses][:4], strict=True)]
    return (
        f"{len(places)} of {got.numel()} elements are wrong, all within [{', '.join(inside)}] of {tuple(got.shape)}; {nothing} "
        f"of them NaN; seen and wanted: {', '.join(f'{a:.4g} {b:.4g}' for a, b in pairs)}"
    )
