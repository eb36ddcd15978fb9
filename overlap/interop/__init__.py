"""Adapters to torch: custom operators that `torch.compile` keeps whole, and the groups they name."""

from .custom_op import define, traced, tracing
from .groups import group_name

__all__ = ["define", "group_name", "traced", "tracing"]
