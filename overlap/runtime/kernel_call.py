"""One launch of a kernel that its callers launch themselves: ``kernel[grid](a_shard, b, c, M, N, K, ...)``.

Sizes, strides and grid are global; of the communicated tensor the caller holds only this rank's shard. The kernel gets
the gathered buffer in its place, and the buffer has the strides that the launch passes, or the launch is refused.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from overlap.chunkplan.region import shard_interval
from overlap.errors import AlignmentError, OverlapError, RuntimeContractError, SourceSpan, UsageError

from . import launch
from .call import HostCall
from .instance import Instance, instance_for
from .operator import Operator
from .protocol import Runtime
from .resolve import Bound, parameters_of, python_function

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_GLOBAL = "sizes, strides and grid describe the whole tensor; only its data is this rank's shard"


def calling_line() -> SourceSpan | None:
    """The innermost line that runs outside this package."""
    frame = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return None
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).rstrip("\n")
    column = len(text) - len(text.lstrip()) + 1
    return SourceSpan(frame.f_code.co_filename, frame.f_lineno, column, text, max(1, len(text.strip())))


class KernelCall(HostCall):
    """A direct launch on one rank of a group.

    Args:
        operator: of a module made by `overlap.codegen.generate_kernel`.
        runtime: this rank's.
        grid, args, kwargs: the launch as its caller wrote it.
        behind: called with the instance to enqueue more work on the gathered buffer (see `launch.launch`).
    """

    def __init__(
        self,
        operator: Operator,
        runtime: Runtime,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        behind: Callable[[Instance], None] | None = None,
    ) -> None:
        super().__init__(operator, {})
        self.runtime = runtime
        self.grid = grid
        self.kwargs = dict(kwargs)
        self.behind = behind
        names = parameters(operator)
        if len(args) > len(names):
            raise UsageError(f"`{operator.name}` takes {len(names)} arguments, not {len(args)}", where=calling_line())
        for name, value in zip(names, args, strict=False):
            if name in self.kwargs:
                raise UsageError(f"`{operator.name}` got two values for `{name}`", where=calling_line())
            self.kwargs[name] = value
        self.instance: Instance | None = None

    def here(self) -> SourceSpan | None:
        return calling_line()

    def run(self) -> None:
        """Carries the launch out.

        Raises:
            RuntimeContractError: sizes, strides or a descriptor that do not describe the global tensor; another world.
            UsageError: an argument that is missing or of the wrong kind.
        """
        try:
            self._run()
        except OverlapError as error:
            where = calling_line()
            raise error.at(where) if where else error from None

    def _run(self) -> None:
        operator = self.operator
        shape, order = self.read_launch(self.runtime.world, self.runtime.rank)
        self.instance = instance_for(operator, self.runtime, shape, self.shard, order)
        with self.instance.opening():
            self.substitute(self.instance.buffer)
            self.bind(operator.kernel, self.grid, (), self.kwargs)

    def read_launch(self, world: int, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Global shape and memory order of the communicated tensor, checked against this rank's shard."""
        operator = self.operator
        if operator.world is not None and operator.world != world:
            raise RuntimeContractError(
                f"`{operator.name}` was compiled for {operator.world} ranks, the group has {world}",
                help="compile without world=, or for this one",
            )
        value = self.kwargs.get(operator.tensor)
        shard = getattr(value, "base", None) if _is_descriptor(value) else value
        if not isinstance(shard, torch.Tensor):
            raise UsageError(f"`{operator.tensor}` must be this rank's shard, not {type(value).__name__}")
        self.shard = shard
        shape = launch_shape(operator, self.kwargs, shard, world, rank)
        return shape, memory_order(operator, shape, global_strides(operator, self.kwargs, value, shape))

    def substitute(self, gathered: torch.Tensor) -> None:
        """Puts the gathered tensor in the shard's place."""
        name = self.operator.tensor
        value = self.kwargs[name]
        if not _is_descriptor(value):
            self.kwargs[name] = gathered
            return
        shape, strides = list(gathered.shape), list(gathered.stride())
        try:
            self.kwargs[name] = replace(value, base=gathered, shape=shape, strides=strides)
        except AssertionError as error:
            raise AlignmentError(
                f"a TMA descriptor cannot take the gathered `{name}`: {error}",
                help="rows must be a multiple of 16 bytes; pad the last dimension, or use a kernel with pointers",
            ) from None

    def execute(self, bound: Bound, grid: tuple[int, int, int]) -> None:
        instance, behind = self.instance, self.behind
        assert instance is not None
        more = (lambda: behind(instance)) if behind is not None else None
        launch.launch(self.operator, instance, self.shard, bound, grid, more)


@lru_cache(maxsize=256)
def parameters(operator: Operator) -> tuple[str, ...]:
    """The kernel's own parameters."""
    return tuple(name for name in parameters_of(python_function(operator.kernel)) if name not in operator.ours)


@lru_cache(maxsize=256)
def _layout(operator: Operator) -> tuple[CodeType | None, ...]:
    """Strides of the communicated tensor as code that gives them from the launch's arguments."""
    return tuple(None if text is None else compile(text, "<stride>", "eval") for text in operator.layout)


def _is_descriptor(value: Any) -> bool:
    return hasattr(value, "block_shape") and hasattr(value, "base")


def launch_shape(
    operator: Operator, arguments: dict[str, Any], shard: torch.Tensor, world: int, rank: int
) -> tuple[int, ...]:
    """Global shape of the communicated tensor, from the extents that the launch passes.

    Raises:
        RuntimeContractError: a shard that is not this rank's piece under `torch.chunk`.
        UsageError: the launch does not pass the gathered axis's extent.
    """
    dims = operator.inputs[operator.tensor]
    if shard.dim() != len(dims):
        raise RuntimeContractError(
            f"`{operator.tensor}` has {shard.dim()} dimensions, the kernel indexes {len(dims)}: {', '.join(dims)}"
        )
    shape = list(shard.shape)
    for d, axis in enumerate(dims):
        parameter = operator.extents.get(axis)
        extent = arguments.get(parameter) if parameter is not None else None
        if isinstance(extent, bool) or not isinstance(extent, int):
            if d == operator.dim:
                raise UsageError(
                    f"the launch gives `{parameter}`, the extent of {axis}, no integer: {extent!r}",
                    help=f"pass the global extent of `{operator.tensor}` along {axis}",
                )
            continue
        if d != operator.dim and extent != shape[d]:
            raise RuntimeContractError(
                f"rank {rank}: the launch passes {parameter}={extent}, its shard of `{operator.tensor}` has {shape[d]} "
                f"along {axis}"
            )
        if d == operator.dim:
            low, high = shard_interval(max(0, extent), world, rank)
            if extent < 0 or high - low != shape[d]:
                raise RuntimeContractError(
                    f"rank {rank} of {world}: the launch passes {parameter}={extent}, of which this rank holds "
                    f"{high - low} ({low}:{high}), its shard of `{operator.tensor}` has {shape[d]}",
                    help=f"{_GLOBAL}; shards follow torch.chunk along the axis",
                )
            shape[d] = extent
    return tuple(shape)


def global_strides(
    operator: Operator, arguments: dict[str, Any], value: Any, shape: tuple[int, ...]
) -> tuple[int | None, ...]:
    """Strides of the global tensor as the launch passes them, in elements; None where it says nothing.

    Raises:
        RuntimeContractError: a descriptor of another shape than the global one.
    """
    if _is_descriptor(value):
        if tuple(value.shape) != shape:
            raise RuntimeContractError(
                f"the descriptor `{operator.tensor}` has shape {tuple(value.shape)}, the global tensor has {shape}",
                help=f"TensorDescriptor(shard, {list(shape)}, global strides, block_shape): {_GLOBAL}",
            )
        return tuple(value.strides)
    known = {name: v for name, v in arguments.items() if isinstance(v, int)}
    found: list[int | None] = []
    for code in _layout(operator):
        try:
            found.append(None if code is None else int(eval(code, {"__builtins__": {}}, known)))
        except NameError as error:
            raise UsageError(f"the launch gives `{error.name}`, a stride of `{operator.tensor}`, no integer") from None
    return tuple(found) or (None,) * len(shape)


@lru_cache(maxsize=4096)
def memory_order(operator: Operator, shape: tuple[int, ...], strides: tuple[int | None, ...]) -> tuple[int, ...]:
    """The order of dimensions in memory, outermost first, in which a dense tensor has these strides.

    Raises:
        RuntimeContractError: no dense tensor has them; the strides expected are named.
    """
    rank = range(len(shape))
    rows = tuple(rank)
    if any(n == 0 for n in shape):
        return rows
    candidates = [rows]
    if None not in strides:
        candidates.append(tuple(sorted(rank, key=lambda d: (-strides[d], d))))  # type: ignore[operator]
    for order in candidates:
        dense = _dense(shape, order)
        if all(n == 1 or s is None or s == t for n, s, t in zip(shape, strides, dense, strict=True)):
            return order
    raise RuntimeContractError(
        f"the launch passes strides {strides} for `{operator.tensor}`, whose global shape is {shape}; gathered, it has "
        f"strides {_dense(shape, rows)}",
        help=f"{_GLOBAL}; a dense layout in another order of dimensions is taken as well",
    )


def _dense(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = step
        step *= max(1, shape[d])
    return tuple(strides)
