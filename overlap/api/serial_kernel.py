"""`SerialKernelCall`: a direct launch of the original kernel, with collectives before and after it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from overlap.chunkplan.region import Box
from overlap.runtime.calls.kernel_call import KernelCall
from overlap.runtime.calls.shapes import piece
from overlap.runtime.memory.layout import dense_strides
from overlap.runtime.memory.part import Given
from overlap.runtime.operator import Comm

from . import small
from .fallback import Choice


class SerialKernelCall(KernelCall):
    """A direct launch that communicates before and after the original kernel. Without a group there is one rank.

    ``went_by``: what each tensor was communicated by (`overlap.api.small`).
    """

    def __init__(
        self,
        operator: Any,
        group: Any,
        choice: Choice,
        kernel: Any,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        transport: torch.dtype | None = None,
    ) -> None:
        super().__init__(operator, _Ranks(group), grid, args, kwargs, transport=transport)  # type: ignore[arg-type]
        self.group = group
        self.choice = choice
        self.went_by: list[str] = []
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
                went_by = small.reduce_scatter(self.group, self.choice, partial, comm.dim, shard)
            elif comm.kind == "all_reduce":
                went_by = small.all_reduce(self.group, self.choice, partial, shard)
            else:
                assert comm.to_dim is not None
                went_by = small.all_to_all(self.group, self.choice, partial, comm.dim, comm.to_dim, shard)
            self.went_by.append(went_by)

    def _input(self, comm: Comm, given: Given) -> torch.Tensor:
        shard = self.shards[comm.tensor]
        if self._alone(given, shard):
            return shard
        if comm.kind == "gather":
            whole, went_by = small.gather(self.group, self.choice, shard, given.shape, comm.dim, given.order)
        else:
            assert comm.to_dim is not None
            whole = self._seen(comm, given, shard)
            went_by = small.all_to_all(self.group, self.choice, shard, comm.dim, comm.to_dim, whole)
        self.went_by.append(went_by)
        return whole

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
