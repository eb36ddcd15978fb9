"""`Opening`: the entry kernel's launches with everything bound but the addresses of what they stage.

gather            shard -> its place in the window
all-to-all input  shard -> source, for peers    | what the rank keeps of it -> window
output, added to  what the caller's tensor holds -> partial (zeros elsewhere)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from overlap.schedule import steps as st
from overlap.schedule.table import counter_base

from .entry import entry_kernel
from .instance import Instance
from .part import Part
from .stage import Staging, as_words, filling, staging

ENTRY_BLOCK = 4096
ENTRY_WARPS = 8


class _Stage(NamedTuple):
    """One copy: of a ``part`` of the tensor ``name`` (None: of zeros, which stay), into ``to``."""

    name: str | None
    part: tuple[slice, ...]
    copy: Staging
    to: torch.Tensor
    zero: torch.Tensor | None = None

    def source(self, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self.name is None:
            assert self.zero is not None
            return self.zero
        return as_words(given[self.name][self.part], self.copy.dtype)


class Opening:
    """All launches of one entry step, for one layout of what is given.

    Args:
        given: by tensor, what the caller brought to be staged.
    """

    def __init__(self, instance: Instance, step: st.Entry, given: Mapping[str, torch.Tensor]) -> None:
        self._runtime = instance.runtime
        self._instance = instance
        self._step = step
        self._stages = [
            stage
            for part in instance.parts.values()
            if part.comm.tensor in given
            for stage in _stages(instance, part, given[part.comm.tensor])
            if stage.copy.dims
        ]
        self._first = [self._bound(i, given) for i in range(max(1, len(self._stages)))]
        self._launches: list[Callable[..., None]] = []

    def _bound(self, number: int, given: Mapping[str, torch.Tensor]) -> tuple[tuple[int, int, int], dict[str, Any]]:
        instance, runtime, step = self._instance, self._runtime, self._step
        stage = self._stages[number] if self._stages else None
        last = number >= len(self._stages) - 1
        words = stage.copy.words if stage else 0
        grid = (max(1, min(runtime.sm_count, -(-words // ENTRY_BLOCK))), 1, 1)
        nothing = instance.state
        room = instance.memory.room
        copy = stage.copy if stage else staging(nothing[:0], nothing[:0])
        arguments: dict[str, Any] = {
            "src": stage.source(given) if stage else nothing,
            "dst": as_words(stage.to, copy.dtype) if stage else nothing,
            "state": instance.state,
            "peers": instance.peers,
            "rank": runtime.rank,
            "world": runtime.world,
            "programs": grid[0],
            "instance": instance.number,
            "first_counter": counter_base(runtime.world, room.flags),
            "counters": instance.need.counters,
            **copy.arguments(),
            "DIMS": copy.dims,
            "WIDE": words > 2**30,
            "WAIT_DONE": step.wait_done and number == 0,
            "PUBLISH": last,
            "READY": step.ready and last,
            "COUNTERS": step.counters and last,
            "BLOCK": ENTRY_BLOCK,
            "num_warps": ENTRY_WARPS,
        }
        return grid, arguments

    def warm(self) -> list[Callable[..., None]]:
        """Compiles and binds them, once; keeps nothing alive that the caller gave."""
        if not self._launches:
            self._launches = [
                self._runtime.warm(entry_kernel, grid, arguments, later=("src",)) for grid, arguments in self._first
            ]
            self._first = []
        return self._launches

    def enqueue(self, stream: Any, given: Mapping[str, torch.Tensor]) -> None:
        """The launches, on the main stream. ``given`` has the layout that this was made for."""
        launches = self.warm()
        if not self._stages:
            launches[0](stream, src=self._instance.state)
        for launch, stage in zip(launches, self._stages, strict=False):
            launch(stream, src=stage.source(given))


def layout_key(given: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """What an `Opening` depends on of the tensors it is given."""
    return tuple(
        (name, tuple(t.stride()), t.data_ptr() % 16, t.storage_offset() % 8, tuple(t.shape))
        for name, t in given.items()
    )


def _stages(instance: Instance, part: Part, tensor: torch.Tensor) -> list[_Stage]:
    layout, comm = part.layout, part.comm
    everything = (slice(None),) * tensor.dim()
    if not comm.produced:
        found = []
        if layout.source is not None:
            source = part.view(layout.source, box=part.held)
            found.append(_Stage(comm.tensor, everything, staging(tensor, source), source))
        both = part.held.intersect(part.window)
        inside = tuple(slice(a - o, b - o) for a, b, o in zip(both.lo, both.hi, part.held.lo, strict=True))
        place = part.view(layout.window, box=both)
        found.append(_Stage(comm.tensor, inside, staging(tensor[inside], place), place))
        return found
    if tuple(tensor.shape) == part.window.shape:
        return [_Stage(comm.tensor, everything, staging(tensor, part.tensor), part.tensor)]
    # The caller's shard is what the sum starts from; every other part of the partial starts from nothing.
    zero, copy = filling(part.tensor, instance.workspace.table)
    both = part.held.intersect(part.window)
    place = part.view(layout.window, box=both)
    inside = tuple(slice(a - o, b - o) for a, b, o in zip(both.lo, both.hi, part.held.lo, strict=True))
    return [
        _Stage(None, everything, copy, part.tensor, zero),
        _Stage(comm.tensor, inside, staging(tensor[inside], place), place),
    ]
