"""The serial way: torch collectives before and after the original kernel. The fallback, and the oracle of what it stands for."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from overlap.chunkplan.region import Box, shard_interval
from overlap.runtime.collectives import all_reduce, all_to_all, reduce_scatter
from overlap.runtime.kernel_call import KernelCall
from overlap.runtime.layout import dense_strides
from overlap.runtime.operator import Comm
from overlap.runtime.part import Given
from overlap.runtime.shapes import piece

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
    """A direct launch that communicates before and after the original kernel. Without a group there is one rank."""

    def __init__(
        self,
        operator: Any,
        group: Any,
        kernel: Any,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        transport: torch.dtype | None = None,
    ) -> None:
        super().__init__(operator, _Ranks(group), grid, args, kwargs, transport=transport)  # type: ignore[arg-type]
        self.group = group
        self.kernel_object = kernel
        self.given: tuple[Given, ...] = ()

    def _run(self) -> None:
        self.given = self.read_launch(self.runtime.world, self.runtime.rank)
        made: list[tuple[Comm, torch.Tensor]] = []
        for comm, given in zip(self.operator.comms, self.given, strict=True):
            if comm.produced:
                made.append((comm, self._partial(comm, given)))
                self.substitute(made[-1][1], comm.tensor)
            else:
                self.substitute(self._input(comm, given), comm.tensor)
        self.kernel_object[self.grid](**self.kwargs)
        for comm, partial in made:
            shard = self.shards[comm.tensor]
            if partial is shard:
                continue
            if comm.kind == "reduce_scatter":
                reduce_scatter(self.group, partial, comm.dim, shard)
            elif comm.kind == "all_reduce":
                all_reduce(self.group, partial, shard)
            else:
                assert comm.to_dim is not None
                all_to_all(self.group, partial, comm.dim, comm.to_dim, shard)

    def _input(self, comm: Comm, given: Given) -> torch.Tensor:
        shard = self.shards[comm.tensor]
        if self._alone(given, shard):
            return shard
        if comm.kind == "gather":
            return gather(self.group, shard, given.shape, comm.dim, given.order)
        assert comm.to_dim is not None
        return all_to_all(self.group, shard, comm.dim, comm.to_dim, self._seen(comm, given, shard))

    def _partial(self, comm: Comm, given: Given) -> torch.Tensor:
        """Where the kernel writes; what it adds to starts from the caller's shard, and from zeros elsewhere."""
        shard = self.shards[comm.tensor]
        if self._alone(given, shard):
            return shard
        partial = self._seen(comm, given, shard)
        if comm.adds:
            ranks = self.runtime
            held = piece(given.shape, comm.held, ranks.world, ranks.rank)
            window = piece(given.shape, comm.seen, ranks.world, ranks.rank)
            both = held.intersect(window)
            partial.zero_()
            partial[_inside(both, window)] = shard[_inside(both, held)].to(partial.dtype)
        return partial

    def _alone(self, given: Given, shard: torch.Tensor) -> bool:
        """Whether the kernel may work on the caller's own tensor."""
        return (
            self.runtime.world == 1
            and shard.dtype == given.dtype
            and shard.permute(given.order or tuple(range(shard.dim()))).is_contiguous()
        )

    def _seen(self, comm: Comm, given: Given, shard: torch.Tensor) -> torch.Tensor:
        shape = piece(given.shape, comm.seen, self.runtime.world, self.runtime.rank).shape
        strides = dense_strides(shape, given.order or tuple(range(len(shape))))
        return torch.empty_strided(shape, strides, dtype=given.dtype, device=shard.device)


def _inside(box: Box, outer: Box) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(box.lo, box.hi, outer.lo, strict=True))


class _Ranks:
    """Rank and size of a group."""

    def __init__(self, group: Any) -> None:
        self.rank = 0 if group is None else dist.get_rank(group)
        self.world = 1 if group is None else dist.get_world_size(group)
