"""Where symmetric memory comes from: a provider allocates the same tensor on every rank and maps its peers."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Provider(Protocol):
    """Symmetric memory of one group."""

    name: str

    def allocate(self, numel: int, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Collective: the own 1-D tensor, and every rank's, in rank order."""


def choose_provider(group: Any, device: torch.device) -> Provider:
    """torch's symmetric memory."""
    from .torch_symm import TorchSymmetricMemory

    return TorchSymmetricMemory(group, device)
