"""What torch keeps for a thread and code of a rank may set: each rank's is its own, though all of them run in one thread."""

from __future__ import annotations

from typing import NamedTuple

import torch

DEVICES = ("cpu", "cuda")


class Modes(NamedTuple):
    """Whether gradients are recorded; of each of `DEVICES` whether autocast is on, and its dtype."""

    grads: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]


def modes() -> Modes:
    """As they are now."""
    return Modes(
        torch.is_grad_enabled(),
        tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in DEVICES),
    )


def set_modes(wanted: Modes) -> None:
    """Makes them what they were."""
    torch.set_grad_enabled(wanted.grads)
    for device, (enabled, dtype) in zip(DEVICES, wanted.autocast, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
