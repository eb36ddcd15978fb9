"""Adapters to torch: custom operators that `torch.compile` keeps whole."""

from .custom_op import define, traced

__all__ = ["define", "traced"]
