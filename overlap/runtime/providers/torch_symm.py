"""torch's own symmetric memory (`torch.distributed._symmetric_memory`): peer pointers inside one host."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem


class TorchSymmetricMemory:
    name = "torch"

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group = group
        self.device = device
        self._handles: dict[int, Any] = {}

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return symm_mem.empty(numel, dtype=dtype, device=self.device)

    def map(self, local: torch.Tensor) -> list[torch.Tensor]:
        handle = symm_mem.rendezvous(local, self.group)
        self._handles[local.data_ptr()] = handle
        mine, world = dist.get_rank(self.group), dist.get_world_size(self.group)
        numel, dtype = local.numel(), local.dtype
        return [local if p == mine else handle.get_buffer(p, (numel,), dtype) for p in range(world)]

    def free(self, address: int) -> None:
        self._handles.pop(address, None)

    def close(self) -> None:
        self._handles.clear()
