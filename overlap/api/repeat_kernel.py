"""Launches of compiled kernels that are like an earlier one but for where their tensors lie.

What a launch depends on beside its tensors: the grid, and each other argument by its value. A launch is known by those
(`repeat`) where all of them are numbers, words or dtypes; descriptors that the host makes count by what they say of their tensor.
Where a hook of the user's runs at each launch, every launch goes the long way.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from overlap.runtime.operator import Operator
from overlap.runtime.repeat.call import hooked
from overlap.runtime.repeat.known_calls import apart
from overlap.runtime.repeat.plain_body import VALUES

from .repeat import PLAIN, Asked, repeated, resolved_unwatched

if TYPE_CHECKING:
    from .compiled import CompiledKernel


def repeated_launch(
    kernel: CompiledKernel, group: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor] | Asked | None:
    """Makes a launch once more where one like it is known, and gives its results; otherwise as `repeat.repeated`.

    Raises:
        OverlapError: what an earlier launch left behind; what the kernel's module is refused for, at its first launch.
    """
    names = kernel.arg_names
    if len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
        return None  # the long way says so
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    sizes = _sizes(kernel.fn, grid, given)
    if sizes is None or resolved_unwatched(group) is None or hooked(kernel.operator.kernel):
        return None
    produced = _produced(kernel.operator)
    options: list[Any] = [sizes]
    tensors: list[torch.Tensor] = []
    outs: list[torch.Tensor] = []
    for name, value in given.items():
        kind = type(value)
        if kind in VALUES:
            options += (name, kind, value)
            continue
        if kind in PLAIN:
            options.append(name)
        elif hasattr(value, "block_shape") and hasattr(value, "base"):
            options += (name, kind, *_described(value))
            value = value.base
        else:
            return None
        (outs if name in produced else tensors).append(value)
    if len(produced) < len(kernel.operator.comms) and not apart(tensors):
        return None  # any may be the kernel's to write
    return repeated(kernel, group, tensors, outs, tuple(options), kernel.repeated, grads=True)


def _sizes(fn: Any, grid: Any, given: dict[str, Any]) -> tuple[int, ...] | None:
    """The grid as numbers. None: what it depends on is known below decorators of the kernel alone, or it is no grid."""
    if callable(grid):
        if not isinstance(getattr(fn, "fn", None), FunctionType):
            return None
        try:
            grid = grid(given)
        except Exception:  # as of a default that it asks for; the long way raises what is to be raised
            return None
    if type(grid) not in (tuple, list) or any(type(n) is not int for n in grid):
        return None
    return tuple(grid)


def _described(descriptor: Any) -> Iterator[Any]:
    for name, value in vars(descriptor).items():
        if name != "base":
            yield name
            yield tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=256)
def _produced(operator: Operator) -> frozenset[str]:
    """Parameters whose tensors the kernel makes."""
    return frozenset(comm.param for comm in operator.comms if comm.produced)
