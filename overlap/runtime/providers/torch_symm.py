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
        self._kept: list[Any] = []

    def allocate(self, numel: int, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
        local = symm_mem.empty(numel, dtype=dtype, device=self.device)
        handle = symm_mem.rendezvous(local, self.group)
        self._kept.append(handle)
        rank = dist.get_rank(self.group)
        peers = [
            local if p == rank else handle.get_buffer(p, (numel,), dtype) for p in range(dist.get_world_size(self.group))
        ]
        return local, peers
