"""One call of an operator: sizes checked, stand-ins made, the user's body run, its launch intercepted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from overlap.chunkplan.region import shard_interval
from overlap.errors import (
    AlignmentError,
    HostEntryError,
    RuntimeContractError,
    SourceSpan,
    UnsupportedError,
    UsageError,
)

from . import launch
from .instance import Instance, instance_for
from .operator import Operator
from .protocol import Runtime, runtime_of
from .resolve import Bound, evaluate_grid, resolve
from .standin import stand_in, unwrap


class HostCall:
    """What the generated host body holds as its first argument: counts and checks the one launch.

    Subclasses say what the launch does.
    """

    def __init__(self, operator: Operator, arguments: dict[str, Any]) -> None:
        self.operator = operator
        self.arguments = arguments
        self.launches = 0
        self.bound: Bound | None = None

    def here(self) -> SourceSpan | None:
        """The user's line that is running in the host body."""
        import inspect

        code = inspect.unwrap(self.operator.body).__code__
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == code.co_filename and frame.f_code.co_name == code.co_name:
                return self.operator.locate(frame.f_lineno, code.co_filename)
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def kernel(self, kernel: Any) -> _Launcher:
        """Stands where the host function named the kernel."""
        return _Launcher(self, kernel)

    def run_body(self) -> Any:
        """Runs the user's body on stand-ins; exactly one launch must happen."""
        try:
            result = self.operator.body(self, **self.arguments)
        except AssertionError as error:
            where = self._descriptor_line(error)
            if where is None:
                raise
            raise AlignmentError(
                f"a TMA descriptor cannot take this tensor: {error}",
                where=where,
                help="rows must be a multiple of 16 bytes and the last dimension contiguous; pad the tensor, or use a "
                "kernel with pointers",
            ) from error
        if self.launches == 0:
            raise HostEntryError(
                f"`{self.operator.name}` returned without launching its kernel",
                where=self.operator.span(self.operator.source.host_line),
                help="launch it exactly once on every path, also when a size is zero",
            )
        return result

    def _descriptor_line(self, error: AssertionError) -> SourceSpan | None:
        import inspect

        code = inspect.unwrap(self.operator.body).__code__
        trace, where, inside = error.__traceback__, None, False
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            if name == code.co_filename:
                where = self.operator.locate(trace.tb_lineno, name)
            inside = name.endswith("tensor_descriptor.py")
            trace = trace.tb_next
        return where if inside else None

    def launched(self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.launches += 1
        if self.launches > 1:
            raise HostEntryError(
                f"`{self.operator.name}` launches its kernel a second time",
                where=self.here(),
                help="a host entry launches its kernel exactly once; give each launch a host function of its own",
            )
        self.bind(kernel, grid, [unwrap(a) for a in args], {k: unwrap(v) for k, v in kwargs.items()})

    def bind(self, kernel: Any, grid: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Binds and executes a launch whose arguments are plain."""
        operator = self.operator
        bound = resolve(kernel, args, kwargs, ours=operator.ours, realization=operator.realization)
        if int(bound.options.get("num_ctas", 1) or 1) > 1:
            raise UnsupportedError(
                "num_ctas > 1: only the first CTA of a cluster would poll",
                where=self.here(),
                help="launch with num_ctas=1",
            )
        check_descriptors(operator, bound)
        self.bound = bound
        self.execute(bound, evaluate_grid(grid, bound))

    def execute(self, bound: Bound, grid: tuple[int, int, int]) -> None:
        """Does what this kind of call does with its launch."""
        raise TypeError("a HostCall is launched through a subclass")


class _Launcher:
    def __init__(self, call: HostCall, kernel: Any) -> None:
        self._call = call
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self._call.launched(self._kernel, grid, args, kwargs)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        self._call.launched(self._kernel, grid, args, kwargs)


def check_descriptors(operator: Operator, bound: Bound) -> None:
    """Refuses tensors whose rows a TMA descriptor cannot take.

    Raises:
        AlignmentError: a row is not a multiple of 16 bytes, or the last dimension is not contiguous.
    """
    for param, line in operator.descriptors.items():
        tensor = bound.arguments.get(param)
        if not isinstance(tensor, torch.Tensor) or tensor.dim() < 1 or tensor.numel() == 0:
            continue
        size = tensor.element_size()
        if tensor.stride(-1) != 1 or any(s * size % 16 for s in tensor.stride()[:-1]):
            raise AlignmentError(
                f"`{param}` has rows of {tensor.shape[-1]} x {size} bytes; TMA takes rows of a multiple of 16 bytes",
                where=operator.span(line),
                help="pad the last dimension, or use a kernel with pointers for such shapes",
            )


def global_shape(
    operator: Operator, shard: torch.Tensor, sizes: dict[str, int] | None, world: int, rank: int
) -> tuple[int, ...]:
    """Global shape of the communicated tensor, from a shard and ``sizes``.

    Raises:
        RuntimeContractError: a shard that is not this rank's piece under `torch.chunk`, or sizes that contradict the shard.
        UsageError: an axis nobody declared.
    """
    dims = operator.inputs[operator.tensor]
    if shard.dim() != len(dims):
        raise RuntimeContractError(
            f"`{operator.tensor}` has {shard.dim()} dimensions, the host entry names {len(dims)}: {', '.join(dims)}"
        )
    axes = {d for named in (*operator.inputs.values(), *operator.outputs.values()) for d in named}
    for axis in sizes or {}:
        if axis not in axes:
            raise UsageError(f"sizes names axis {axis!r}, which no tensor has", help="axes: " + ", ".join(sorted(axes)))
    sizes = sizes or {}
    shape = list(shard.shape)
    for d, axis in enumerate(dims):
        if d == operator.dim:
            continue
        if axis in sizes and sizes[axis] != shape[d]:
            raise RuntimeContractError(
                f"rank {rank}: `{operator.tensor}` has {shape[d]} along {axis}, sizes says {sizes[axis]}"
            )
    extent = sizes.get(operator.axis, shape[operator.dim] * world)
    if not isinstance(extent, int) or extent < 0:
        raise UsageError(f"the size of {operator.axis} must be a non-negative integer, not {extent!r}")
    low, high = shard_interval(extent, world, rank)
    if high - low != shape[operator.dim]:
        raise RuntimeContractError(
            f"rank {rank} of {world}: the shard of `{operator.tensor}` has {shape[operator.dim]} along {operator.axis}, "
            f"its piece of {extent} is {high - low}",
            help="shards follow torch.chunk along the axis; pass sizes= with the global extent",
        )
    shape[operator.dim] = extent
    return tuple(shape)


class Call(HostCall):
    """A call on a rank of a group."""

    def __init__(
        self, operator: Operator, arguments: dict[str, Any], *, group: Any, sizes: dict[str, int] | None, out: Any
    ) -> None:
        super().__init__(operator, dict(arguments))
        self.runtime: Runtime = runtime_of(group)
        self.sizes = sizes
        self.out = out
        self.instance: Instance | None = None

    def run(self) -> Any:
        operator, runtime = self.operator, self.runtime
        if operator.world is not None and operator.world != runtime.world:
            raise RuntimeContractError(
                f"this module was compiled for {operator.world} ranks, the group has {runtime.world}",
                help="compile without --world, or for this one",
            )
        shard = self.arguments[operator.tensor]
        if not isinstance(shard, torch.Tensor):
            raise UsageError(f"`{operator.tensor}` must be a tensor, not {type(shard).__name__}")
        shape = global_shape(operator, shard, self.sizes, runtime.world, runtime.rank)
        self.shard = shard
        self.instance = instance_for(operator, runtime, shape, shard)
        self.arguments[operator.tensor] = stand_in(self.instance.buffer, operator.tensor, self.here)
        try:
            with self.instance.opening():
                result = unwrap(self.run_body())
            return self._result(result)
        finally:
            # The stand-in knows this call and this call the stand-in: a ring that would keep every tensor of the
            # call alive until the garbage collector comes.
            self.arguments.clear()
            self.bound = None

    def execute(self, bound: Bound, grid: tuple[int, int, int]) -> None:
        assert self.instance is not None
        if self.out is not None:
            self._substitute_out(bound)
        launch.launch(self.operator, self.instance, self.shard, bound, grid)

    def _output_param(self) -> str:
        if len(self.operator.outputs) != 1:
            raise UsageError("out= needs a host entry with one result")
        (name,) = self.operator.outputs
        return self.operator.params[name]

    def _substitute_out(self, bound: Bound) -> None:
        param = self._output_param()
        value = bound.arguments[param]
        target = getattr(value, "base", value)
        self.replaced = target
        out = self.out
        if (out.shape, out.dtype, out.stride()) != (target.shape, target.dtype, target.stride()):
            raise RuntimeContractError(
                f"out has shape {tuple(out.shape)}, strides {out.stride()}, {out.dtype}; the result has "
                f"{tuple(target.shape)}, {target.stride()}, {target.dtype}"
            )
        if value is target:
            bound.arguments[param] = out
        else:
            value.base = out

    def _result(self, result: Any) -> Any:
        if self.out is None:
            return result
        if isinstance(result, torch.Tensor) and result.data_ptr() == self.replaced.data_ptr():
            return self.out.view(result.shape) if result.shape != self.out.shape else self.out
        raise RuntimeContractError("out= needs a host function that returns the tensor its kernel writes")
