"""The serial way: gather with a torch collective, then compute. The fallback, and the oracle of what it stands for."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from overlap.chunkplan.region import shard_interval
from overlap.runtime.kernel_call import KernelCall

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
    order = order or tuple(range(len(shape)))
    whole = torch.empty([shape[d] for d in order], dtype=shard.dtype, device=shard.device)
    whole = whole.permute([order.index(d) for d in range(len(shape))])
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


class SerialKernelCall(KernelCall):
    """A direct launch that gathers first and then launches the original kernel. Without a group there is one rank."""

    def __init__(
        self, operator: Any, group: Any, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        super().__init__(operator, _Ranks(group), grid, args, kwargs)  # type: ignore[arg-type]
        self.group = group
        self.kernel_object = kernel
        self.shape: tuple[int, ...] = ()

    def _run(self) -> None:
        self.shape, order = self.read_launch(self.runtime.world, self.runtime.rank)
        if self.runtime.world == 1 and self.shard.permute(order).is_contiguous():
            whole = self.shard
        else:
            whole = gather(self.group, self.shard, self.shape, self.operator.dim, order)
        self.substitute(whole)
        self.kernel_object[self.grid](**self.kwargs)


class _Ranks:
    """Rank and size of a group."""

    def __init__(self, group: Any) -> None:
        self.rank = 0 if group is None else dist.get_rank(group)
        self.world = 1 if group is None else dist.get_world_size(group)
