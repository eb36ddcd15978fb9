"""overlap: fuses communication into Triton kernels, and simulates the result on a CPU.

Importing this package imports neither torch nor Triton; names of the user interface are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from overlap.version import __version__

_LAZY = {
    "CompiledKernel": "overlap.api",
    "LastPlan": "overlap.api",
    "Realization": "overlap.backends.base",
    "check": "overlap.api",
    "compile": "overlap.api",
    "release": "overlap.api",
    "reserve": "overlap.ops",
    "symmetric": "overlap.api",
    "transfer": "overlap.api",
    "tune": "overlap.ops",
}
"""Public name to the module that defines it."""

_MODULES = ("ops", "sim")

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _MODULES:
        return import_module(f"overlap.{name}")
    raise AttributeError(f"module 'overlap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, *_MODULES])
