"""`HostCall`: a user's host body with its one launch intercepted, whatever that launch then does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from overlap.errors import AlignmentError, HostEntryError, SourceSpan, UnsupportedError

from ..operator import Operator
from .resolve import Bound, evaluate_grid, resolve
from .standin import unwrap


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
