"""`Opening`: the entry kernel's launches with everything bound but the addresses of what they stage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from overlap.chunkplan.plan import OpId
from overlap.schedule import steps as st
from overlap.schedule.table import counter_base

from ..bound_plan import BoundPlan
from ..kernels.entry import entry_kernel
from ..kernels.stage import Staging, as_words, filling, staging
from ..memory.plan_tensor import Staged
from ..repeat.places import Place, within
from .prepared import Enqueue

ENTRY_BLOCK = 4096
ENTRY_WARPS = 8


class _Stage(NamedTuple):
    """One copy: of a ``part`` of the tensor ``name`` (None: of zeros, which stay), into ``to``."""

    name: str | None
    part: tuple[slice, ...]
    copy: Staging
    to: torch.Tensor
    zero: torch.Tensor | None = None


class Opening:
    """All launches of one entry step, and of a stage step, for one layout of what is given.

    Args:
        given: by tensor, what the caller brought to be staged.
        apart: a stage step does that; the entry is a launch of its own, the first.
        from_caller: operations that read what the caller brought, so that nothing is staged for them.
        unstaged: tensors that the kernel reads where the caller has them, and so does whoever sends them.
    """

    def __init__(
        self,
        instance: BoundPlan,
        step: st.Entry,
        given: Mapping[str, torch.Tensor],
        *,
        apart: bool = False,
        from_caller: Collection[OpId] = (),
        unstaged: Collection[str] = (),
    ) -> None:
        self._runtime = instance.runtime
        self._instance = instance
        self._step = step
        self._apart = apart
        parts = [part for name, part in instance.parts.items() if name not in unstaged]
        staged = (_stage(instance, one, given) for part in parts for one in part.staged(given, from_caller))
        copies = [stage for stage in staged if stage.copy.dims]
        self._stages: list[_Stage | None] = [None, *copies] if apart or not copies else [*copies]
        self._grids = [self._grid(stage) for stage in self._stages]
        self._bound: dict[tuple[Place | None, ...], list[Enqueue]] = {}

    def _grid(self, stage: _Stage | None) -> tuple[int, int, int]:
        words = stage.copy.words if stage else 0
        return max(1, min(self._runtime.sm_count, -(-words // ENTRY_BLOCK))), 1, 1

    def _arguments(self, number: int, src: torch.Tensor) -> dict[str, Any]:
        instance, runtime, step = self._instance, self._runtime, self._step
        stage = self._stages[number]
        last = number == (0 if self._apart else len(self._stages) - 1)
        nothing = instance.state
        room = instance.memory.room
        copy = stage.copy if stage else staging(nothing[:0], nothing[:0])
        several = len(set(runtime.nodes)) > 1
        return {
            "src": src,
            "dst": as_words(stage.to, copy.dtype) if stage else nothing,
            "state": instance.state,
            "peers": instance.peers,
            "rank": runtime.rank,
            "world": runtime.world,
            "programs": self._grids[number][0],
            "instance": instance.number,
            "first_counter": counter_base(runtime.world, room.flags),
            "counters": instance.need.counters,
            **copy.arguments(),
            "DIMS": copy.dims,
            "WIDE": copy.words > 2**30,
            "WAIT_DONE": step.wait_done and number == 0,
            "PUBLISH": last,
            "READY": step.ready and last,
            "COUNTERS": step.counters and last,
            "BLOCK": ENTRY_BLOCK,
            "FLAT": copy.flat,
            "ROW": min(copy.row, ENTRY_BLOCK),
            "FAR": several,
            **(runtime.linked if several and step.ready and last else {}),
            "num_warps": ENTRY_WARPS,
        }

    def entry(self, given: Mapping[str, torch.Tensor], places: Mapping[str, Place]) -> Sequence[Enqueue]:
        """The launches of the entry step; see `_launches`."""
        found = self._launches(given, places)
        return found[:1] if self._apart else found

    def stage(self, given: Mapping[str, torch.Tensor], places: Mapping[str, Place]) -> Sequence[Enqueue]:
        """The launches of the stage step; see `_launches`."""
        return self._launches(given, places)[1:] if self._apart else ()

    def _launches(self, given: Mapping[str, torch.Tensor], places: Mapping[str, Place]) -> list[Enqueue]:
        """All launches, each called with the main stream and what a call carries; bound once for given tensors at ``places``.

        Args:
            given: tensors of the layout that this was made for; none of them is kept.
        """
        sources = [self._source(stage, given, places) for stage in self._stages]
        key = tuple(place for _, place in sources)
        found = self._bound.get(key)
        if found is None:
            found = self._bound[key] = []
            for number, (src, place) in enumerate(sources):
                arguments, grid = self._arguments(number, src), self._grids[number]
                later = {} if place is None else {"src": place}
                found.append(self._runtime.warm(entry_kernel, grid, arguments, later=later))
        return found

    def _source(
        self, stage: _Stage | None, given: Mapping[str, torch.Tensor], places: Mapping[str, Place]
    ) -> tuple[torch.Tensor, Place | None]:
        """What a stage copies, and its place in a call; None where it is always the same."""
        if stage is None:
            return self._instance.state, None
        if stage.name is None:
            assert stage.zero is not None
            return stage.zero, None
        tensor = given[stage.name]
        part = tensor[stage.part]
        return as_words(part, stage.copy.dtype), within(places[stage.name], tensor, part, stage.copy.dtype)


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
