"""What no graph of `torch.compile` holds: calls that are made between two graphs, as they are, and that say so where one
graph is asked for.

They look for launches made ready, meet other ranks, load modules, write where they are told to: a tracer that followed them
would fail somewhere inside, or keep what holds for one call alone.

Who asks `torch.compiler.is_compiling` here would ask too much: exporters that run a program as it is set it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch._compile import _disable_dynamo

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function, why: str) -> Function:
    """The function for tracers, which call it between two graphs.

    `torch.compiler.disable` does the same, but loads the tracer at once, which takes longer than all the rest of an import.

    Args:
        why: what no graph holds, for whoever asks for one graph.
    """
    apart: Any = _disable_dynamo(function)
    apart._torchdynamo_disable, apart._torchdynamo_disable_msg = True, why
    return apart  # type: ignore[no-any-return]


def between_graphs(why: str) -> Callable[[Function], Function]:
    """Decorates a function that a tracer calls as `untraced` says."""

    def decorate(function: Function) -> Function:
        apart = untraced(function, why)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (apart if torch.compiler.is_dynamo_compiling() else function)(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate
