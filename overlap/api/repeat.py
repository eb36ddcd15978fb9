"""Calls that are like an earlier one but for where their tensors lie: of the prebuilt operators, and launches of kernels.

What a call depends on is its key (`overlap.runtime.repeat.known_calls`): of its tensors all but where they lie, its other
arguments, all settings, and what a tuner tries. The first call under a key goes the long way and leaves a launch made ready
(`overlap.runtime.repeat.repeat`); later ones enqueue that.

Nobody is passed over: what tracers, modes, subclasses or autograd watch goes the long way, which tells them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from overlap.runtime.calls.kernel_call import calling_line
from overlap.runtime.repeat.known_calls import PLAIN, Asked, Known, Told, default_group, repeated_call

from .groups import resolve_group
from .tuned import trial

__all__ = ["PLAIN", "Asked", "Known", "repeated", "resolved_unwatched"]


def repeated(
    operator: Any,
    group: Any,
    tensors: Sequence[torch.Tensor | None],
    outs: Sequence[torch.Tensor] | None,
    options: tuple[Any, ...],
    told: Told,
    *,
    grads: bool = False,
) -> list[torch.Tensor] | Asked | None:
    """Makes a call once more where one like it is known, and gives its results.

    Otherwise it must go the long way. None: somebody watches it, or it is none that could be repeated, for whatever reason.

    Args:
        group: as the caller gave it, or resolved.
        tensors: operands; None where one is absent.
        outs: where the first results go.
        options: all other arguments.
        told: as `Known` takes it.
        grads: tensors may require gradients, which a kernel knows nothing of.

    Raises:
        OverlapError: what an earlier launch left behind.
    """
    if torch.compiler.is_compiling():
        return None
    if getattr(group, "overlap_runtime", None) is None:
        group = resolved_unwatched(group)
        if group is None:
            return None
    head = (operator, options, trial())
    return repeated_call(head, group, tensors, outs or (), told, calling_line, grads=grads)


def resolved_unwatched(group: Any) -> Any:
    """What has, or will have, the runtime of a group; None where somebody watches what is dispatched on this thread."""
    if getattr(group, "overlap_runtime", None) is not None:
        return group
    default = default_group()
    if default is None or torch._C._len_torch_dispatch_stack():
        return None
    if group is None:
        return default
    return group if isinstance(group, dist.ProcessGroup) else resolve_group(group)
