"""Calls that are graphs, found and made again in C (`overlap.runtime.native`): one call from Python.

    known call   a graph by now | added here, with what it depends on
    later calls  the same head, settings and layouts | results made | enqueued

What differs in anything goes the way of `known_calls`, which sees to it or says what is wrong.

What is compared is what the key of a known call holds, read from tensors as DLPack shows them to C.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from triton import knobs

from overlap import settings
from overlap.errors import RuntimeContractError

from ..instances import called_last
from ..launch import launch as launch_layer
from ..native.build import native
from .making import Making
from .repeat import ReadyLaunch


class Calls(dict[Any, Any]):
    """A group's known calls by key; ``front``: what makes those of them that are graphs, if it has any."""

    def __init__(self) -> None:
        super().__init__()
        self.front: Any = None
        self._none = False

    def clear(self) -> None:
        super().clear()
        self.front = None

    def take(
        self,
        launch: ReadyLaunch,
        head: Any,
        operands: Sequence[torch.Tensor | None],
        outs: Sequence[torch.Tensor],
        grads: bool,
        reach: tuple[int, ...],
        makings: Sequence[Making],
        told: tuple[Any, Any, bool],
    ) -> None:
        """Adds a call that is a graph by now.

        Args:
            launch: what it enqueues.
            head, operands, outs, grads: as `repeated_call` has them.
            reach: bytes of each operand and of each result that the caller gave.
            makings: of the results that a call makes.
            told: who is told of a call, and what.
        """
        runtime: Any = launch.runtime
        fault = getattr(launch.memory.fault, "address", 0)
        if not fault or not launch.settled or self._none:
            return
        if self.front is None:
            self.front = _front(runtime)
            if self.front is None:
                self._none = True
                return
        made = tuple((each.make, each.arguments, each.named, each.kind, each.index) for each in makings)
        kept = launch.workspace, launch.memory, launch.instance, runtime, launch.graph.last
        reference, graph = weakref.ref(launch), launch.graph.recorded
        self.front.add(
            head,
            tuple(operands),
            tuple(outs),
            grads,
            reach,
            made,
            reference,
            graph,
            kept,
            launch.graph.last.handle,
            fault,
            *told,
        )


def _front(runtime: Any) -> Any:
    """None where torch shows C no tensors, or nothing can be built."""
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        return None
    types = torch.Tensor, torch.nn.Parameter
    stream = runtime.raw_stream, runtime.device.index or 0
    asks = called_last, settings.texts, os, knobs.runtime, vars(launch_layer)
    try:
        return native().Front(exchange, *types, torch.is_grad_enabled, *stream, *asks)
    except (RuntimeContractError, TypeError, ValueError):
        return None
