"""One launch of a kernel that its callers launch themselves: ``kernel[grid](a_shard, b, c, M, N, K, ...)``.

Sizes, strides and grid are global; of a communicated tensor the caller holds only this rank's shard. The kernel gets
what it sees or makes of the tensor in its place: that has the strides that the launch passes, or the launch is refused.
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

from overlap.errors import AlignmentError, OverlapError, RuntimeContractError, SourceSpan, UsageError

from ..instance import Instance
from ..instances import instance_for
from ..launch import launch
from ..launch.in_place import LastTiles
from ..memory.layout import dense_strides
from ..memory.part import Given
from ..operator import Comm, Operator
from ..protocol import Runtime
from ..repeat.repeat import Repeat
from .hostcall import HostCall
from .operands import check_launch, check_results
from .passed import check_strides
from .resolve import Bound, parameters_of, python_function
from .shapes import GLOBAL, check_device, launch_shape, overlapping, piece

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


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
        transport: dtype in which the kernel makes communicated outputs, and in which they travel; by default the results'.
        repeat: asks that the launch be made ready for other tensors.
        sum_sms: multiprocessors that may be left to sums, where nobody asks (`instance_for`).
    """

    def __init__(
        self,
        operator: Operator,
        runtime: Runtime,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        behind: Callable[[Instance], None] | None = None,
        transport: torch.dtype | None = None,
        repeat: Repeat | None = None,
        sum_sms: int | None = None,
    ) -> None:
        super().__init__(operator, {})
        self.runtime = runtime
        self.grid = grid
        self.kwargs = dict(kwargs)
        self.behind = behind
        self.transport = transport
        self.repeat = repeat
        self.sum_sms = sum_sms
        self.shards: dict[str, torch.Tensor] = {}
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
        given = self.read_launch(self.runtime.world, self.runtime.rank)
        for name, shard in self.shards.items():
            check_device(name, shard, self.runtime)
        self.instance = instance_for(operator, self.runtime, given, self.sum_sms)
        for comm in operator.comms:
            check_strides(operator, comm, self.kwargs, self.instance.parts[comm.tensor].tensor, calling_line)
        with self.instance.opening():
            for name, part in self.instance.parts.items():
                self.substitute(part.tensor, name)
            self.bind(operator.kernel, self.grid, (), self.kwargs)

    def read_launch(self, world: int, rank: int) -> tuple[Given, ...]:
        """Global shapes and memory orders of the communicated tensors, checked against this rank's shards."""
        operator = self.operator
        if operator.world is not None and operator.world != world:
            raise RuntimeContractError(
                f"`{operator.name}` was compiled for {operator.world} ranks, the group has {world}",
                help="compile without world=, or for this one",
            )
        check_launch(self.kwargs)
        given = []
        for comm in operator.comms:
            value = self.kwargs.get(comm.param)
            shard = getattr(value, "base", None) if _is_descriptor(value) else value
            if not isinstance(shard, torch.Tensor):
                raise UsageError(f"`{comm.param}` must be this rank's shard, not {type(shard).__name__}")
            if comm.produced:
                check_results([(f"`{comm.param}`", shard)])
            self.shards[comm.tensor] = shard
            shape = launch_shape(operator, comm, self.kwargs, shard, world, rank)
            seen = piece(shape, comm.seen, world, rank).shape
            order = memory_order(comm, seen, global_strides(comm, self.kwargs, value, seen))
            dtype = self.transport if comm.produced and self.transport is not None else shard.dtype
            given.append(Given(shape, dtype, order))
        self._check_apart()
        return tuple(given)

    def _check_apart(self) -> None:
        """Refuses an output in the memory of another argument, and an input that is passed as another one too."""
        operator = self.operator
        params = {comm.param for comm in operator.comms} | {operator.params[name] for name in operator.outputs}
        for comm in self.operator.comms:
            shard = self.shards[comm.tensor]
            for name, other in self.kwargs.items() if not comm.produced and shard.numel() else ():
                base = getattr(other, "base", other)
                if name not in params and isinstance(base, torch.Tensor) and base.numel() and overlapping(base, shard):
                    raise RuntimeContractError(
                        f"the shard `{comm.param}` is passed a second time, as `{name}`, where nothing is gathered",
                        help=f"read it through `{comm.param}` alone, or communicate `{name}` as well",
                    )
        for comm in self.operator.comms:
            shard = self.shards[comm.tensor]
            for name, other in self.kwargs.items() if comm.produced and shard.numel() else ():
                base = getattr(other, "base", other)
                if name == comm.param or not isinstance(base, torch.Tensor):
                    continue
                if base.numel() and base.untyped_storage().data_ptr() == shard.untyped_storage().data_ptr():
                    if overlapping(base, shard):
                        raise RuntimeContractError(
                            f"the result `{comm.param}` lies in the memory of `{name}`",
                            help="give the result memory of its own",
                        )

    def substitute(self, seen: torch.Tensor, tensor: str | None = None) -> None:
        """Puts what the kernel works on in the place of the shard of ``tensor`` (the first communicated one)."""
        comm = next(c for c in self.operator.comms if tensor is None or c.tensor == tensor)
        name = comm.param
        value = self.kwargs[name]
        if not _is_descriptor(value):
            self.kwargs[name] = seen
            return
        shape, strides = list(seen.shape), list(seen.stride())
        if not seen.numel():
            return  # no tiles, so the kernel is not launched, and no descriptor describes nothing
        try:
            self.kwargs[name] = replace(value, base=seen, shape=shape, strides=strides)
        except AssertionError as error:
            raise AlignmentError(
                f"a TMA descriptor cannot take the whole `{name}`: {error}",
                help="rows must be a multiple of 16 bytes; pad the last dimension, or use a kernel with pointers",
            ) from None

    def execute(self, bound: Bound, grid: tuple[int, int, int]) -> None:
        instance, behind = self.instance, self.behind
        assert instance is not None
        more = (lambda: behind(instance)) if behind is not None else None
        left = behind.left if isinstance(behind, LastTiles) else None
        comms = self.operator.comms
        given = {c.tensor: self.shards[c.tensor] for c in comms if not c.produced or c.adds}
        results = {c.tensor: self.shards[c.tensor] for c in comms if c.produced}
        launch.launch(self.operator, instance, given, bound, grid, results, more, self.repeat, left)


@lru_cache(maxsize=256)
def parameters(operator: Operator) -> tuple[str, ...]:
    """The kernel's own parameters."""
    return tuple(name for name in parameters_of(python_function(operator.kernel)) if name not in operator.ours)


@lru_cache(maxsize=256)
def _layout(comm: Comm) -> tuple[CodeType | None, ...]:
    """Strides of a communicated tensor as code that gives them from the launch's arguments."""
    return tuple(None if text is None else compile(text, "<stride>", "eval") for text in comm.layout)


def _is_descriptor(value: Any) -> bool:
    return hasattr(value, "block_shape") and hasattr(value, "base")


def global_strides(comm: Comm, arguments: dict[str, Any], value: Any, shape: tuple[int, ...]) -> tuple[int | None, ...]:
    """Strides of what the kernel sees of a tensor, of ``shape``, as the launch passes them, in elements; None: not said.

    Raises:
        RuntimeContractError: a descriptor of another shape than that.
    """
    if _is_descriptor(value):
        if tuple(value.shape) != shape:
            raise RuntimeContractError(
                f"the descriptor `{comm.param}` has shape {tuple(value.shape)}, the global tensor has {shape}",
                help=f"TensorDescriptor(shard, {list(shape)}, global strides, block_shape): {GLOBAL}",
            )
        return tuple(value.strides)
    known = {name: v for name, v in arguments.items() if isinstance(v, (int, tuple))}
    found: list[int | None] = []
    for code in _layout(comm):
        try:
            found.append(None if code is None else int(eval(code, {"__builtins__": {}}, known)))
        except NameError as error:
            raise UsageError(f"the launch gives `{error.name}`, a stride of `{comm.param}`, no integer") from None
        except (IndexError, TypeError):
            raise UsageError(f"the launch gives no integers for the strides of `{comm.param}`") from None
    return tuple(found) or (None,) * len(shape)


@lru_cache(maxsize=4096)
def memory_order(comm: Comm, shape: tuple[int, ...], strides: tuple[int | None, ...]) -> tuple[int, ...]:
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
        dense = dense_strides(shape, order)
        if all(n == 1 or s is None or s == t for n, s, t in zip(shape, strides, dense, strict=True)):
            return order
    what = "made whole" if comm.produced else "gathered"
    raise RuntimeContractError(
        f"the launch passes strides {strides} for `{comm.param}`, whose global shape is {shape}; {what}, it has "
        f"strides {dense_strides(shape, rows)}",
        help=f"{GLOBAL}; a dense layout in another order of dimensions is taken as well",
    )
