"""Memory for kernels that make tensor descriptors on the device: Triton asks whoever launches for it.

Kernels of users that make descriptors bring an allocator (`triton.set_allocator`), which is asked for ours too. A kernel that
makes none of its own may still move by TMA, and is given memory of torch's for the time of a launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.runtime import _allocation


def _of_torch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Bytes on the current device, in the order of its current stream, aligned as all of torch's memory is (512)."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


@contextmanager
def scratch() -> Iterator[None]:
    """Triton has an allocator meanwhile: the one that is set here, else torch's."""
    if not isinstance(_allocation._allocator.get(), _allocation.NullAllocator):
        yield
        return
    token: Any = _allocation._allocator.set(_of_torch)
    try:
        yield
    finally:
        _allocation._allocator.reset(token)
