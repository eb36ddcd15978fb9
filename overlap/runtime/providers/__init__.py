"""Where symmetric memory comes from: a provider allocates the same tensor on every rank and maps its peers.

torch_symm.py   torch's own symmetric memory
nvshmem.py      NVSHMEM's heap, through nvshmem4py

NVLink multicast is never used: nothing here asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from overlap import settings
from overlap.errors import RuntimeContractError


class Provider(Protocol):
    """Symmetric memory of one group."""

    name: str
    pes: Sequence[int]
    """NVSHMEM's number of every rank; empty where the memory is not NVSHMEM's."""

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """This rank's own 1-D tensor. Raises on the rank that has no memory left."""

    def history(self) -> int:
        """What the ranks tell each other before `map`."""

    def map(
        self, local: torch.Tensor, histories: list[int], near: Sequence[bool] | None = None
    ) -> list[torch.Tensor | None]:
        """Collective, once all ranks have allocated: every rank's tensor, in rank order, ``local`` at this rank's place.

        ``histories``: `history` of every rank; ``near``: whether a pointer is to reach it, else None stands in its place
        (None: one does).
        """

    def free(self, address: int) -> None:
        """Gives back the memory of the local tensor at ``address``, as far as one rank may alone."""

    def close(self) -> None:
        """Collective: gives all memory back."""


def choose_provider(group: Any, device: torch.device, *, network: bool = False) -> Provider:
    """The provider that the setting ``provider`` names; by itself torch's, or NVSHMEM where torch has none.

    Args:
        network: some rank of the group is reached by no pointer, so that it must be NVSHMEM's.

    Raises:
        RuntimeContractError: the provider is not available here; says why.
    """
    wanted = settings.get("provider")
    why: dict[str, str] = {}
    if network and wanted == "auto":
        wanted = "nvshmem"
    if network and wanted == "torch":
        raise RuntimeContractError(
            "torch's symmetric memory reaches the ranks of one node, and this group has several nodes",
            help="OVERLAP_PROVIDER=nvshmem, or leave it out (package nvshmem4py-cu12 or -cu13)",
        )
    for name, make in (("torch", _torch), ("nvshmem", _nvshmem)):
        if wanted in ("auto", name):
            try:
                return make(group, device)
            except (ImportError, AttributeError, OSError) as error:
                why[name] = f"{type(error).__name__}: {error}"
    raise RuntimeContractError(
        "no symmetric memory: " + "; ".join(f"{name}: {text}" for name, text in why.items()),
        help="OVERLAP_PROVIDER chooses torch or nvshmem (package nvshmem4py-cu12 or -cu13)",
    )


def _torch(group: Any, device: torch.device) -> Provider:
    from .torch_symm import TorchSymmetricMemory

    return TorchSymmetricMemory(group, device)


def _nvshmem(group: Any, device: torch.device) -> Provider:
    from .nvshmem import NvshmemMemory

    return NvshmemMemory(group, device)
