"""Calls of the prebuilt operators that are like an earlier one (`overlap.api.repeat`)."""

from __future__ import annotations

from functools import partial

from overlap.api import repeat
from overlap.api.repeat import Asked

from .record import remember

__all__ = ["Asked", "repeated"]

repeated = partial(repeat.repeated, told=remember)
"""`overlap.api.repeat.repeated`, remembered as the operator's last call."""
