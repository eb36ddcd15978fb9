"""`Instance`: one operator on one group for one global shape: its plan, its tables, and views of the workspace's memory.

buffer   the gathered tensor: the own chunk is staged into its place, peers' chunks arrive in theirs
state    int64 words: epoch, counter, spin limit, fault, ready[world], done[world], flags  (schedule/table.py)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from overlap import settings
from overlap.backends import backend
from overlap.chunkplan.plan import CommPlan, OpId
from overlap.chunkplan.region import shard_interval
from overlap.chunkplan.verify import verify_plan
from overlap.errors import RuntimeContractError
from overlap.schedule.model import AxisTiles, RankSchedule, TensorRead
from overlap.schedule.runs import schedule_rank
from overlap.schedule.steps import Entry, Step, launch_steps
from overlap.schedule.sync import assign_slots
from overlap.schedule.table import to_words

from .hosteval import on_host
from .meeting import first_difference
from .operator import Operator
from .protocol import Runtime
from .resolve import Bound
from .workspace import Memory, plan_for, workspace_of


class Instance:
    """Plan and tables of one operator on one group for one global shape. Made by `instance_for`, on all ranks at once.

    Args:
        order: dimensions of the gathered buffer in memory order, outermost first.
    """

    def __init__(
        self, operator: Operator, runtime: Runtime, shape: tuple[int, ...], dtype: Any, order: tuple[int, ...]
    ) -> None:
        self.operator = operator
        self.runtime = runtime
        self.shape = shape
        self.order = order
        self.ordered = backend(operator.realization.backend).ordered
        self.plan: CommPlan = plan_for(operator, runtime.world, shape)
        verify_plan(self.plan)
        self.slots: tuple[dict[OpId, int], ...] = tuple(assign_slots(self.plan, r) for r in range(runtime.world))
        self.steps: tuple[Step, ...] = launch_steps(self.plan, runtime.rank)
        self.entry = next(step for step in self.steps if isinstance(step, Entry))
        self.own = shard_interval(shape[operator.dim], runtime.world, runtime.rank)
        self.flags = max((len(s) for s in self.slots), default=0)
        self.workspace = workspace_of(operator, runtime, dtype)
        self.number = self.workspace.add(self)
        self.met = False
        self.warmed: set[Any] = set()
        """Variants of the kernel that have been compiled."""
        self._meetings = 0
        self._tables: dict[Any, tuple[RankSchedule, Any]] = {}
        self._bind(self.workspace.fit(shape, self.flags))

    def _bind(self, memory: Memory) -> None:
        self.memory = memory
        self.state = memory.state
        self.peers = memory.peers
        self.buffer = self.at(self.runtime.rank)
        self.prepared: dict[Any, Any] = {}
        """What `launch` made ready for this memory, by step."""

    def refresh(self) -> None:
        """Takes up the workspace's present memory, which another shape may have made grow."""
        memory = self.workspace.memory
        if memory is not None and memory is not self.memory:
            self._bind(memory)

    def at(self, rank: int) -> torch.Tensor:
        """The gathered tensor in ``rank``'s memory, in the user's dimension order."""
        data = self.runtime.peer(self.memory.data, rank)
        dense = data[: math.prod(self.shape)].view([self.shape[d] for d in self.order])
        return dense.permute([self.order.index(d) for d in range(len(self.shape))])

    def table(self, bound: Bound) -> tuple[RankSchedule, Any]:
        """The schedule of this rank and its device table, for the block sizes and sizes of a launch; cached by them."""
        operator = self.operator
        axes = []
        for axis in operator.axes:
            extent, block = int(bound.arguments[axis.extent]), int(bound.arguments[axis.block])
            axes.append(AxisTiles(axis.name, extent, block))
            if axis.name == operator.axis and extent != self.shape[operator.dim]:
                raise RuntimeContractError(
                    f"the launch passes {axis.extent}={extent}, the gathered `{operator.tensor}` has "
                    f"{self.shape[operator.dim]} along {axis.name}"
                )
        constants = {name: _plain(bound.arguments[name]) for name in _keyword_only(operator.tile_map)}
        key = (tuple(axes), tuple(sorted(constants.items())))
        if key not in self._tables:
            reads = tuple(TensorRead(r.tensor, r.axes, r.wraps) for r in operator.reads)
            mapping = on_host(operator.tile_map)

            def tile_map(tile: int, counts: tuple[int, ...]) -> tuple[int, ...]:
                return tuple(mapping(tile, *counts, **constants))

            schedule = schedule_rank(
                self.plan, reads, tuple(axes), self.runtime.rank, ordered=self.ordered, tile_map=tile_map
            )
            self._tables[key] = (schedule, self.workspace.table(to_words(schedule)))
        return self._tables[key]

    def meet(self, prepare: Callable[[], None]) -> None:
        """Once an instance, behind `prepare`: all ranks have compiled what they are about to launch.

        The deadline of a launch counts from here, so that a peer that compiles for long is waited for.

        Raises:
            RuntimeContractError: another rank could not compile, or raised before it came here.
            DeadlineError: another rank took longer than the setting ``compile_deadline_s``.
        """
        if self.met:
            return
        prepare()
        self._meetings += 1
        self.runtime.agree(self._compiled(), None, seconds=settings.get("compile_deadline_s"))
        self.met = True

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Around a call: if it raises before the ranks have met over a first launch, they are told instead of left waiting."""
        before = self._meetings
        try:
            yield
        except Exception as error:
            if not self.met and self._meetings == before:
                self.runtime.agree(self._compiled(), error)
            raise

    def _compiled(self) -> str:
        return f"the first launch of `{self.operator.name}` on {self.shape}"


def _keyword_only(function: Any) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def instance_for(
    operator: Operator,
    runtime: Runtime,
    shape: tuple[int, ...],
    shard: torch.Tensor,
    order: tuple[int, ...] | None = None,
) -> Instance:
    """The instance for a call; the first call of a shape makes it, collectively.

    The gathered buffer has its dimensions in memory ``order``, outermost first. Without one it keeps the shards'
    (a transposed shard gives a transposed buffer), and ranks whose shard is too small to show an order follow the
    lowest rank whose shard shows one.

    Raises:
        RuntimeContractError: ranks that call with another shape, dtype or plan; the first difference is named.
        DeadlineError: a rank does not come; or an earlier launch of the operator waited in vain.
    """
    workspace_of(operator, runtime, shard.dtype).check()
    if order is None and shard.numel() > 0 and all(n > 1 for n in shard.shape):
        order = tuple(sorted(range(shard.dim()), key=lambda d: (-shard.stride(d), d)))
    cache = _instances(runtime)
    key = (id(operator), shape, shard.dtype, order)
    instance = cache.get(key)
    if instance is None:
        facts = {
            "shape": shape,
            "dtype": str(shard.dtype),
            "plan": operator.plan,
            "plan hash": hashlib.sha256(operator.plan.encode()).hexdigest()[:16],
            "realization": repr(operator.realization),
            "communicated": operator.on,
        }
        told = runtime.agree(f"the first call of `{operator.name}`", (order, facts))
        for rank, (_, theirs) in enumerate(told):
            difference = first_difference(facts, theirs)
            if difference:
                raise RuntimeContractError(
                    f"rank {runtime.rank} and rank {rank} call `{operator.name}` differently: {difference}"
                )
        agreed = next((t for t, _ in told if t is not None), tuple(range(shard.dim())))
        instance = cache[key] = Instance(operator, runtime, shape, shard.dtype, agreed)
    else:
        cache[key] = cache.pop(key)
        instance.refresh()
    return instance


def _instances(runtime: Runtime) -> dict[Any, Instance]:
    """The runtime's instances, the one called last at the end."""
    cache = getattr(runtime, "overlap_instances", None)
    if cache is None:
        cache = runtime.overlap_instances = {}  # type: ignore[attr-defined]
    return cache
