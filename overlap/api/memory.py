"""Symmetric memory, made ahead and given back: thin over `overlap.runtime.workspace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from overlap.backends.registry import backends
from overlap.runtime import workspace
from overlap.runtime.memory.symmetric import Symmetric
from overlap.runtime.of_group import runtime_of
from overlap.runtime.operator import Operator

from .fallback import impossible
from .groups import resolve_group
from .report import logger


def reserve_operator(
    operator: Operator, group: Any, max_sizes: dict[str, int], dtype: torch.dtype | Mapping[str, torch.dtype]
) -> None:
    """Makes an operator's memory for all calls up to ``max_sizes``; collective.

    Where no fused kernel can run there is nothing to reserve, which is logged.

    Args:
        max_sizes: the largest global extent of every axis of the communicated tensors.
        dtype: of the communicated tensors, or one for each by its name.

    Raises:
        UsageError: an axis without a size.
        RuntimeContractError: ranks that ask for different sizes, or less was reserved before.
    """
    group = resolve_group(group)
    if not hasattr(group, "overlap_runtime"):
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        named = backends.get(operator.realization.backend)
        why = impossible(group, torch.empty(0, device=kind), far=named is not None and named.far)
        if why:
            logger().info("nothing to reserve for %s: %s", operator.name, why)
            return
    workspace.reserve(operator, group, max_sizes, dtype)


def symmetric(
    shape: Sequence[int], dtype: torch.dtype, *, signals: int = 1, zero: bool = False, group: Any = None
) -> Symmetric:
    """A tensor that every rank of a group has, with signals, for kernels of your own; collective.

    A kernel takes its ``tensor`` and its ``handle``; the words of `overlap.language` reach peers through the handle
    (docs/language.md). It lives until all ranks call its ``release()``, or `release` for the group. Never while a graph is
    captured.

    Args:
        shape, dtype: of every rank's tensor.
        signals: int64 words that any rank may raise on any other, 0 at first.
        zero: whether the tensor is cleared before any rank can reach it.
        group: a process group, its name, a mesh, a simulated group; None: the default group.

    Raises:
        UsageError: a shape, dtype or number of signals that cannot be.
        RuntimeContractError: ranks that ask for different tensors, or no memory that peers can reach.
    """
    return Symmetric(runtime_of(resolve_group(group)), shape, dtype, signals=signals, zero=zero)


def release(group: Any = None) -> None:
    """Frees all symmetric memory of a group, for instance while a server sleeps; collective.

    The next call makes new memory. Graphs captured before must not be replayed any more; what `symmetric` made is gone too.
    """
    workspace.release(resolve_group(group))


def check(group: Any = None) -> None:
    """Waits for this rank's launches on a group and raises what any of them left behind.

    Raises:
        DeadlineError: a wait gave up; the message names rank, operation, and the value wanted and seen.
    """
    workspace.check(resolve_group(group))
