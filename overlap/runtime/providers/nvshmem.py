"""NVSHMEM's symmetric heap through nvshmem4py (``nvshmem.core``).

A process has one NVSHMEM, and its allocations are collective over all of its ranks. So it is initialised over the
first group that asks, with a unique id that travels through the group's store; another set of ranks is refused.
Memory goes back when all ranks release it together: one rank alone may not free.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from overlap.errors import RuntimeContractError

_OWNER: list[tuple[int, ...]] = []
"""The global ranks that this module initialised NVSHMEM over, if it did."""


class NvshmemMemory:
    name = "nvshmem"

    def __init__(self, group: Any, device: torch.device) -> None:
        # Read when NVSHMEM is initialised: NVLink multicast is never used.
        os.environ["NVSHMEM_DISABLE_NVLS"] = "1"
        import nvshmem.core as core
        from nvshmem.core.interop import torch as interop

        self._core, self._interop = core, interop
        self.device = device
        self.world = dist.get_world_size(group)
        ranks = tuple(dist.get_process_group_ranks(group))
        if initialised(core):
            self._check(ranks)
        else:
            self._initialise(group, ranks)
        self.pes: Sequence[int] = self._pes(ranks)
        self._held: list[torch.Tensor] = []

    def _check(self, ranks: tuple[int, ...]) -> None:
        """Raises RuntimeContractError when NVSHMEM runs over other ranks than the group's."""
        owner = _OWNER[0] if _OWNER else None
        pes = self._core.n_pes()
        if owner is not None and owner != ranks or owner is None and pes != len(ranks):
            over = f"ranks {list(owner)}" if owner is not None else f"{pes} ranks"
            raise RuntimeContractError(
                f"NVSHMEM of this process spans {over}, the group is ranks {list(ranks)}; its allocations are collective "
                "over all of its ranks",
                help="OVERLAP_PROVIDER=torch serves any number of groups",
            )

    def _initialise(self, group: Any, ranks: tuple[int, ...]) -> None:
        from cuda.core import Device

        core = self._core
        rank = dist.get_rank(group)
        device = Device(self.device.index)
        device.set_current()
        uid = core.get_unique_id(empty=rank != 0)
        store = dist.distributed_c10d._get_process_group_store(group)
        if rank == 0:
            store.set("overlap/nvshmem", uid._data.tobytes())
        else:
            import numpy as np

            told = np.frombuffer(store.get("overlap/nvshmem"), dtype=np.uint8)
            uid._data.view(np.uint8).reshape(-1)[:] = told
        core.init(device=device, uid=uid, rank=rank, nranks=len(ranks), initializer_method="uid")
        _OWNER[:] = [ranks]

    def _pes(self, ranks: tuple[int, ...]) -> list[int]:
        """NVSHMEM's number of every rank of the group."""
        if _OWNER:
            return list(range(len(ranks)))
        return list(ranks)

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        made = self._interop.tensor((numel,), dtype=dtype, except_on_del=False)
        self._held.append(made)
        return made

    def history(self) -> int:
        return 0

    def map(
        self, local: torch.Tensor, histories: list[int], near: Sequence[bool] | None = None
    ) -> list[torch.Tensor | None]:
        mine, get_peer_tensor = self._core.my_pe(), self._interop.get_peer_tensor
        return [
            local if pe == mine else get_peer_tensor(local, pe) if reached else None
            for pe, reached in zip(self.pes, near or (True,) * self.world, strict=True)
        ]

    def free(self, address: int) -> None:
        """Kept until `close`: freeing is collective."""

    def close(self) -> None:
        for held in self._held:
            self._interop.free_tensor(held)
        self._held.clear()


def initialised(core: Any) -> bool:
    """Whether NVSHMEM runs in this process; ``core``: ``nvshmem.core``."""
    from nvshmem.core._internal_tracking import InternalInitStatus, _is_initialized

    return bool(_is_initialized["status"] == InternalInitStatus.INITIALIZED)
