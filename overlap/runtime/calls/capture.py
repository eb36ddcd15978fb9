"""Runs a generated module's host body without ranks, to learn the launch it would make."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from overlap.chunkplan.region import shard_interval
from overlap.errors import UsageError

from ..operator import Operator
from ..tables.inline_words import word_arguments
from ..tables.slots import Slots, store_arguments
from .hostcall import HostCall
from .resolve import Bound
from .standin import stand_in


class _Capture(HostCall):
    grid: tuple[int, int, int] = (0, 0, 0)

    def execute(self, bound: Bound, grid: tuple[int, int, int]) -> None:
        self.grid = grid


def capture(
    operator: Operator, sizes: dict[str, int], dtype: Any, *, world: int, device: str, **arguments: Any
) -> tuple[Bound, tuple[int, int, int]]:
    """The launch of ``operator`` for global ``sizes``: bound arguments (ours as int32 / int64 tensors) and grid.

    Raises:
        UsageError: an axis without a size, or a host parameter without a value.
    """
    given: dict[str, Any] = {}
    # Of an axis that an all-to-all shards for the kernel, the host function sees a rank's piece.
    parts = {comm.dims[comm.seen] for comm in operator.comms if comm.seen is not None}
    sizes = {axis: shard_interval(size, world, 0)[1] if axis in parts else size for axis, size in sizes.items()}
    for name, dims in operator.inputs.items():
        missing = [d for d in dims if d not in sizes]
        if missing:
            raise UsageError(f"no size for axis {missing[0]!r} of `{name}`", help="give it in --shape")
        given[name] = torch.empty([sizes[d] for d in dims], dtype=dtype, device=device)
    given.update(arguments)
    for name, parameter in list(inspect.signature(operator.body).parameters.items())[1:]:
        if name not in given:
            if parameter.default is inspect.Parameter.empty:
                raise UsageError(f"the host function's parameter `{name}` has no value here")
            given[name] = parameter.default
    call = _Capture(operator, given)
    for comm in operator.comms:
        if not comm.produced:
            given[comm.tensor] = stand_in(given[comm.tensor], comm.tensor, call.here)
    call.run_body()
    assert call.bound is not None
    table = torch.empty(64, dtype=torch.int32, device=device)
    state = torch.empty(64, dtype=torch.int64, device=device)
    call.bound.arguments.update(
        {operator.ours[0]: table, operator.ours[1]: state, **dict.fromkeys(operator.ours[2:], table)}
    )
    if own := operator.parameter("own"):
        call.bound.arguments[own] = call.bound.arguments[operator.comms[0].param]
    if operator.stores:
        call.bound.arguments.update(store_arguments(operator, Slots(state, ways=1), call.bound.arguments))
    if operator.carriers.words:
        call.bound.arguments.update(word_arguments(operator, state, call.bound))
    if log := operator.parameter("log"):
        call.bound.arguments[log] = state
    if operator.moves:
        call.bound.arguments[operator.moves] = state
    return call.bound, call.grid
