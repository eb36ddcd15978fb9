"""The Python interface: `compile` turns an annotated kernel into a `CompiledKernel` that is called with a group."""

from overlap.backends.base import Realization

from .compiled import CompiledKernel
from .decorator import compile
from .groups import resolve_group
from .memory import check, release, symmetric
from .report import LastPlan
from .transfer import transfer

__all__ = [
    "CompiledKernel",
    "LastPlan",
    "Realization",
    "check",
    "compile",
    "release",
    "resolve_group",
    "symmetric",
    "transfer",
]
