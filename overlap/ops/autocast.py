"""Autocast is not applied to the operators: operands have one dtype, and what computes with them keeps to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def without_autocast(function: Function) -> Function:
    """A function that runs as if outside `torch.autocast`."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch._C._is_any_autocast_enabled():
            return function(*args, **kwargs)
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]
