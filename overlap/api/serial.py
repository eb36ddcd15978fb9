"""The serial way: torch collectives before and after the original kernel. The fallback, and the oracle of what it stands for.

serial.py          a gather of pieces of any sizes
serial_kernel.py   a kernel's launch between collectives
small.py           low-latency words or blocks instead, where the message is small
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from overlap.chunkplan.region import shard_interval

# Newer versions of torch call it all_gather_single and warn of the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def gather(
    group: Any, shard: torch.Tensor, shape: tuple[int, ...], dim: int, order: tuple[int, ...] | None = None
) -> torch.Tensor:
    """The global tensor of ``shape``, of which every rank passes its piece under `torch.chunk` along ``dim``.

    Args:
        group: None is one rank alone.
        order: dimensions in memory of the result, outermost first; row-major without.
    """
    world = 1 if group is None else dist.get_world_size(group)
    whole = ordered(shard, shape, order)
    bounds = [shard_interval(shape[dim], world, rank) for rank in range(world)]
    longest = max(high - low for low, high in bounds)
    rest = [n for d, n in enumerate(shape) if d != dim]
    if world == 1:
        return whole.copy_(shard)
    outer = shard.movedim(dim, 0)
    if whole.is_contiguous() and dim == 0 and shape[0] == longest * world:
        _all_gather(whole, outer.contiguous(), group=group)
        return whole
    # A collective takes equal pieces: short ones are padded.
    piece = shard.new_zeros([longest, *rest])
    piece[: outer.shape[0]] = outer
    pieces = shard.new_empty([world * longest, *rest])
    _all_gather(pieces, piece, group=group)
    for rank, (low, high) in enumerate(bounds):
        got = pieces[rank * longest : rank * longest + high - low]
        whole.narrow(dim, low, high - low).copy_(got.movedim(0, dim))
    return whole


def ordered(like: torch.Tensor, shape: tuple[int, ...], order: tuple[int, ...] | None) -> torch.Tensor:
    """New memory for a tensor of ``shape``, with ``like``'s dtype and device; ``order`` as in `gather`."""
    if order is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    made = torch.empty([shape[d] for d in order], dtype=like.dtype, device=like.device)
    return made.permute([order.index(d) for d in range(len(shape))])
