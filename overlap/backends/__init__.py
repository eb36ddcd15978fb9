"""How chunks move: the realizations, what each can do, and the value that selects one."""

from .base import Backend, Realization
from .registry import backend, backends

__all__ = ["Backend", "Realization", "backend", "backends"]
