"""Calls of operators that `torch.compile` keeps out of its graphs: those with ``out=``, which are no custom operators.

Without process groups a call is torch's product alone, which tracers may follow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from overlap.runtime.calls.between_graphs import untraced

from .arguments import check_memory, labelled

Function = TypeVar("Function", bound=Callable[..., Any])


def of_no_graph(run: Function) -> Function:
    """Decorates what makes a call, of x, weights, biases and options, which a tracer calls between two graphs.

    A tracer cannot tell what its tensors' memory holds, so only then are they looked at.
    """

    def checked(x: Any, weights: Any, biases: Any, *options: Any) -> Any:
        one = isinstance(weights, torch.Tensor)
        check_memory(None, (), *labelled(x, [weights] if one else weights, [biases] if one else biases))
        return run(x, weights, biases, *options)

    apart = untraced(checked, "calls with out= are made between graphs; without it an operator is a node of the graph")

    @wraps(run)
    def call(*arguments: Any) -> Any:
        return (apart if torch.compiler.is_dynamo_compiling() and dist.is_initialized() else run)(*arguments)

    return call  # type: ignore[return-value]
