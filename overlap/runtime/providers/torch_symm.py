"""torch's own symmetric memory (`torch.distributed._symmetric_memory`): peer pointers inside one host.

torch numbers its rendezvous by one counter a process, not a group: ranks of a group that have made different numbers of
them, in other groups, would look for each other under different keys and wait for ever. So ranks tell each other how
many they have made, and those behind make some with themselves first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

_made = 0
"""Rendezvous of this process."""
_alone: list[Any] = []
"""The group of this rank alone, once there is one."""


class TorchSymmetricMemory:
    name = "torch"
    pes: Sequence[int] = ()

    def __init__(self, group: Any, device: torch.device) -> None:
        # Read at torch's first rendezvous: NVLink multicast objects are never made.
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        import torch.distributed._symmetric_memory as symm_mem

        self._symm_mem = symm_mem
        self.group = group
        self.device = device
        self._handles: dict[int, Any] = {}

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return self._symm_mem.empty(numel, dtype=dtype, device=self.device)

    def history(self) -> int:
        return _made

    def map(
        self, local: torch.Tensor, histories: list[int], near: Sequence[bool] | None = None
    ) -> list[torch.Tensor | None]:
        mine, world = dist.get_rank(self.group), dist.get_world_size(self.group)
        if world == 1:
            return [local]
        while _made < max(histories):
            self._rendezvous(self.allocate(1, torch.int64), _group_of_this_rank())
        handle = self._rendezvous(local, self.group)
        self._handles[local.data_ptr()] = handle
        numel, dtype = local.numel(), local.dtype
        return [local if p == mine else handle.get_buffer(p, (numel,), dtype) for p in range(world)]

    def _rendezvous(self, tensor: torch.Tensor, group: Any) -> Any:
        global _made
        _made += 1
        return self._symm_mem.rendezvous(tensor, group)

    def free(self, address: int) -> None:
        self._handles.pop(address, None)

    def close(self) -> None:
        self._handles.clear()


def _group_of_this_rank() -> Any:
    if not _alone or _alone[0] not in dist.distributed_c10d._world.pg_map:
        _alone[:] = [dist.new_group([dist.get_rank()], use_local_synchronization=True)]
    return _alone[0]
