"""`Opening`: the entry kernel's launches with everything bound but the addresses of what they stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from overlap.schedule import steps as st
from overlap.schedule.table import counter_base

from .bound_plan import BoundPlan
from .entry import entry_kernel
from .plan_tensor import Staged
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

    def __init__(self, instance: BoundPlan, step: st.Entry, given: Mapping[str, torch.Tensor]) -> None:
        self._runtime = instance.runtime
        self._instance = instance
        self._step = step
        staged = (_stage(instance, one, given) for part in instance.parts.values() for one in part.staged(given))
        self._stages = [stage for stage in staged if stage.copy.dims]
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


def _stage(instance: BoundPlan, staged: Staged, given: Mapping[str, torch.Tensor]) -> _Stage:
    name, part, to = staged
    if name is None:
        zero, copy = filling(to, instance.workspace.table)
        return _Stage(None, part, copy, to, zero)
    return _Stage(name, part, staging(given[name][part], to), to)
