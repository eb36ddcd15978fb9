"""What torch keeps for a thread and code of a rank may set: each rank's is its own, though all of them run in one thread."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

DEVICES = ("cpu", "cuda")
_GUARDS: list[Any] = []
"""Of inference mode, which has no other switch: one that ends brings back what it found, so those used here are kept."""


class Modes(NamedTuple):
    """Whether gradients are recorded, whether it is inference mode; of each of `DEVICES` whether autocast is on, its dtype."""

    grads: bool
    inference: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]


def modes() -> Modes:
    """As they are now."""
    return Modes(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in DEVICES),
    )


def set_modes(wanted: Modes) -> None:
    """Makes them what they were."""
    if torch.is_inference_mode_enabled() != wanted.inference:
        guard = torch._C._InferenceMode(wanted.inference)
        guard.__enter__()
        _GUARDS.append(guard)
    torch.set_grad_enabled(wanted.grads)
    for device, (enabled, dtype) in zip(DEVICES, wanted.autocast, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
