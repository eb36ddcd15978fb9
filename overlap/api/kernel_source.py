"""A decorated kernel as it was when it was decorated, and who may call what is made of it."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overlap.annotate.source import SourceUnit
from overlap.errors import UnsupportedError
from overlap.runtime.calls.resolve import python_function


@dataclass(frozen=True)
class KernelSource:
    """A decorated kernel: the object, its source when it was decorated, and what its decorators may name.

    ``decorators``: how many of its innermost decorators belong to the kernel.
    """

    kernel: Any
    unit: SourceUnit
    qualname: str
    decorators: int
    local_names: Mapping[str, Any]

    def function(self) -> types.FunctionType:
        """The plain function under all decorators."""
        return python_function(self.kernel)

    def names(self) -> dict[str, Any]:
        """Everything the kernel's text may name, as the program has it now."""
        function = self.function()
        found = {**self.local_names, **function.__globals__}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        return found


def refuse_tuning(name: str) -> None:
    """Raises UnsupportedError inside an autotuner that has configurations to choose from."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in (
        "run",
        "kernel_call",
        "_tuned",
        "__call__",
        "<lambda>",
        "wrapper",
    ):
        tuner = frame.f_locals.get("self")
        if len(getattr(tuner, "configs", None) or ()) > 1:
            raise UnsupportedError(
                f"autotune above overlap.compile would launch `{name}` a different number of times on every rank",
                help="put @overlap.compile above @triton.autotune; the first configuration then runs",
            )
        frame = frame.f_back  # type: ignore[assignment]
