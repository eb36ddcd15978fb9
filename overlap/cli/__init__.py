"""The ``overlap`` command. Exit codes: 0 ok, 1 a fault found, 2 bad usage."""

from .main import main

__all__ = ["main"]
