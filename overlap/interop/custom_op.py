"""`torch.library` custom operators: what tracers see instead of the operator's insides.

Groups travel by name, the only form a graph can hold. Outside tracing the operator is called directly, which saves the
dispatcher's time on every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def define(
    name: str,
    implementation: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    mutates: tuple[str, ...] = (),
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Registers a custom operator, its fake and, where it has one, its gradient.

    Args:
        name: ``namespace::operator``.
        implementation: annotated with the types that `torch.library.custom_op` reads its schema from.
        fake: the same parameters; gives results of the right shapes without data.
        mutates: parameters that it writes to.
        setup_context, backward: as `torch.library.register_autograd` takes them.
    """
    operator = torch.library.custom_op(name, implementation, mutates_args=mutates)
    operator.register_fake(fake)
    if backward is not None:
        operator.register_autograd(backward, setup_context=setup_context)
    return operator


def traced(group: Any, tensors: Iterable[torch.Tensor | None]) -> bool:
    """Whether a call must go through the dispatcher: a tracer, a mode or a tensor subclass watches, or autograd."""
    present = [t for t in tensors if t is not None]
    if tracing(group, present):
        return True
    if hasattr(group, "overlap_runtime"):
        return False
    return torch.is_grad_enabled() and any(t.requires_grad for t in present)


def tracing(group: Any, tensors: Iterable[torch.Tensor | None]) -> bool:
    """Whether anybody but autograd watches a call."""
    if torch.compiler.is_compiling():
        return True
    if hasattr(group, "overlap_runtime"):
        return False  # simulated ranks, which have no name a graph could hold
    if any(t is not None and type(t) not in (torch.Tensor, torch.nn.Parameter) for t in tensors):
        return True
    return torch._C._len_torch_dispatch_stack() > 0
