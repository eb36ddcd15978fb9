"""Kernels whose assembly declares shared memory of its own, beside what Triton lays out and asks for at the launch.

    shared memory of a program   | declared (static) | asked for (dynamic) ........ |    227 KiB together on sm_90

Triton knows the second part alone: it compares that with what a device has, and below 48 KiB leaves a function's limit as the
driver sets it, 48 KiB for both. A launch that is over would fail with an error that names neither.
"""

from __future__ import annotations

import re
from typing import Any

from overlap.errors import UnsupportedError
from overlap.language.boxes import MEMORY

_DECLARED = re.compile(rf"\s{MEMORY}\[(\d+)\];")


def declared(made: Any) -> int:
    """Bytes of shared memory that a compiled kernel's assembly declares: boxes of chunks that move between tiles, or nothing."""
    return sum(map(int, _DECLARED.findall(getattr(made, "asm", {}).get("ptx", ""))))


def make_room(made: Any) -> None:
    """Has a compiled kernel, loaded onto the current device, be launched with what it declares.

    Raises:
        UnsupportedError: both together are more than a program has there.
    """
    static = declared(made)
    if not static:
        return
    limit = _limit()
    check(made.name, made.metadata.shared, static, limit)
    _allow(made.function, limit - static)


def check(name: str, asked: int, static: int, limit: int) -> None:
    """Raises UnsupportedError where a kernel does not fit that asks for and declares so many bytes, of ``limit``."""
    if asked + static > limit:
        raise UnsupportedError(
            f"`{name}` takes {asked} bytes of shared memory for its tiles and {static} for chunks that it moves by TMA between "
            f"them, and a program has {limit}",
            help='fewer stages or smaller blocks, or backend="ldst_inline", which moves them through registers',
        )


def _limit() -> int:
    """Bytes of shared memory that a program may have on the current device."""
    import torch
    from cuda.bindings import driver

    kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    error, limit = driver.cuDeviceGetAttribute(kind, torch.cuda.current_device())
    return int(answered(error, limit))


def _allow(function: int, dynamic: int) -> None:
    """Lets launches of a function ask for so many bytes."""
    from cuda.bindings import driver

    kind = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    answered(*driver.cuFuncSetAttribute(function, kind, dynamic))


def answered(error: Any, *values: Any) -> Any:
    """What the driver answered, if anything; raises UnsupportedError for an error."""
    if error.value:
        raise UnsupportedError(f"the CUDA driver answered {error}")
    return values[0] if values else None
