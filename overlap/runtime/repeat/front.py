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

from ..instance import called_last
from ..launch import launch as launch_layer
from ..native.build import native
from .repeat import ReadyLaunch

_CPU, _CUDA = 1, 2
"""Types of devices as DLPack numbers them."""


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
        layouts: Sequence[tuple[tuple[int, ...], torch.dtype, torch.device]],
        told: tuple[Any, Any, bool],
    ) -> None:
        """Adds a call that is a graph by now.

        Args:
            launch: what it enqueues.
            head, operands, outs, grads: as `repeated_call` has them.
            reach: bytes of each operand and of each result that the caller gave.
            layouts: of the results that a call makes.
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
        makings = tuple(map(_making, layouts))
        kept = launch.workspace, launch.memory, launch.instance, runtime, launch.graph.last
        reference, graph = weakref.ref(launch), launch.graph.recorded
        self.front.add(
            head,
            tuple(operands),
            tuple(outs),
            grads,
            reach,
            makings,
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


def _making(layout: tuple[tuple[int, ...], torch.dtype, torch.device]) -> tuple[Any, tuple[Any, ...], Any, int, int]:
    """What makes a result of a layout: a function, its arguments, its named ones, and its device's type and number."""
    shape, dtype, device = layout
    if device.type == "cuda":
        # What code that Inductor has made allocates with: torch.empty below the dispatcher.
        direct = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
        if direct is not None:
            strides = torch.empty(shape, device="meta").stride()
            return direct, (shape, strides, dtype), None, _CUDA, device.index
    kind = _CUDA if device.type == "cuda" else _CPU
    return torch.empty, (shape,), {"dtype": dtype, "device": device}, kind, device.index or 0
