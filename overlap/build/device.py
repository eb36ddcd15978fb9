"""What host code finds when it asks for its device while a kernel is built where there is none.

Sizes of grids and persistent loops depend on the number of multiprocessors, so the target's is told; tensors that
host code makes on the device become ``meta`` tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from triton.runtime.driver import driver

from . import compat
from .target import Target

MULTIPROCESSORS = {
    "sm_80": 108, "sm_86": 84, "sm_89": 142, "sm_90": 132, "sm_100": 148, "sm_120": 188,
    "gfx90a": 110, "gfx942": 304, "gfx950": 256, "gfx1100": 96, "gfx1201": 64,
}  # fmt: skip
"""Of the largest part of each architecture in wide use."""


class _OnMeta(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs["device"] = "meta"
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0]
        if name == "to":
            args = tuple("meta" if isinstance(a, str | torch.device) else a for a in args)
        return func(*args, **kwargs)


@contextlib.contextmanager
def planned_device(target: Target) -> Iterator[None]:
    """Host code inside sees one device of the target's architecture."""
    count = MULTIPROCESSORS[target.name]
    capability = divmod(target.arch, 10) if isinstance(target.arch, int) else (9, 4)
    properties = SimpleNamespace(
        name=target.name, multi_processor_count=count, major=capability[0], minor=capability[1], warp_size=target.warp,
        total_memory=80 << 30, shared_memory_per_block_optin=232448, max_threads_per_multi_processor=2048,
    )  # fmt: skip
    replaced = {
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: capability,
        "get_device_name": lambda device=None: target.name,
        "is_available": lambda: True,
        "set_device": lambda device: None,
    }
    before = driver._active
    with contextlib.ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        driver.set_active(_Driver(target, count))  # type: ignore[arg-type]
        stack.callback(setattr, driver, "_active", before)
        stack.enter_context(_OnMeta())
        yield


class _Driver:
    """The parts of a Triton driver that host code asks for."""

    def __init__(self, target: Target, count: int) -> None:
        self._target = target
        properties = {
            "multiprocessor_count": count, "max_shared_mem": 232448, "max_num_regs": 65536, "warpSize": target.warp,
        }  # fmt: skip
        self.utils = SimpleNamespace(get_device_properties=lambda device: dict(properties))

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_current_target(self) -> Any:
        return compat.gpu_target(self._target)

    def get_device_interface(self) -> Any:
        return torch.cuda
