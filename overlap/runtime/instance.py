"""`Instance`: the symmetric memory of one operator, group and global shape, with its plan and tables.

    buffer   the gathered tensor, symmetric: the own chunk is staged into its place, peers' chunks arrive in theirs
    state    int64 words: epoch, counter, spin limit, fault, ready[world], done[world], flags  (schedule/table.py)
"""

from __future__ import annotations

from typing import Any

import torch

from overlap.backends import backend
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.plan import CommPlan, OpId, TensorSpec
from overlap.chunkplan.region import shard_interval
from overlap.chunkplan.verify import verify_plan
from overlap.errors import RuntimeContractError
from overlap.schedule.model import AxisTiles, RankSchedule, TensorRead
from overlap.schedule.runs import schedule_rank
from overlap.schedule.steps import Step, launch_steps
from overlap.schedule.sync import assign_slots
from overlap.schedule.table import state_words, to_words

from .hosteval import on_host
from .operator import Operator
from .protocol import Runtime
from .resolve import Bound


class Instance:
    """Buffers, plan and tables of one operator on one group for one global shape. Made by `instance_for`, on all ranks at once."""

    def __init__(self, operator: Operator, runtime: Runtime, shape: tuple[int, ...], dtype: Any, order: tuple[int, ...]) -> None:
        self.operator = operator
        self.runtime = runtime
        self.shape = shape
        how = backend(operator.realization.backend)
        self.ordered = how.ordered
        self.plan: CommPlan = build_plan(
            operator.plan,
            world=runtime.world,
            tensor=TensorSpec(operator.tensor, shape),
            dim=operator.dim,
            split=operator.realization.split,
            direction=how.default_direction,
            path=f"<plan of {operator.name}>",
        )
        verify_plan(self.plan)
        world = runtime.world
        self.slots: tuple[dict[OpId, int], ...] = tuple(assign_slots(self.plan, r) for r in range(world))
        memory = runtime.symmetric([shape[d] for d in order], dtype)
        self.buffer = memory.permute([order.index(d) for d in range(len(shape))])
        self.memory = memory
        self.order = order
        flags = max((len(s) for s in self.slots), default=0)
        self.state = runtime.symmetric([state_words(world, flags)], torch.int64, zero=True)
        self.peers = runtime.table([runtime.peer(self.state, p).data_ptr() for p in range(world)], bits=64)
        self.steps: tuple[Step, ...] = launch_steps(self.plan, runtime.rank)
        self.own = shard_interval(shape[operator.dim], world, runtime.rank)
        self._tables: dict[Any, tuple[RankSchedule, Any]] = {}

    def at(self, rank: int) -> torch.Tensor:
        """The gathered tensor in ``rank``'s memory, in the user's dimension order."""
        memory = self.runtime.peer(self.memory, rank)
        return memory.permute([self.order.index(d) for d in range(len(self.shape))])

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
        mapping = on_host(operator.tile_map)
        constants = {name: _plain(bound.arguments[name]) for name in mapping.__kwdefaults__ or _keyword_only(mapping)}
        key = (tuple(axes), tuple(sorted(constants.items())))
        if key not in self._tables:
            reads = tuple(TensorRead(r.tensor, r.axes, r.wraps) for r in operator.reads)

            def tile_map(tile: int, counts: tuple[int, ...]) -> tuple[int, ...]:
                return tuple(mapping(tile, *counts, **constants))

            schedule = schedule_rank(
                self.plan, reads, tuple(axes), self.runtime.rank, ordered=self.ordered, tile_map=tile_map
            )
            self._tables[key] = (schedule, self.runtime.table(to_words(schedule)))
        return self._tables[key]


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
    """
    clear = order is not None or (shard.numel() > 0 and all(n > 1 for n in shard.shape))
    order = order or tuple(sorted(range(shard.dim()), key=lambda d: (-shard.stride(d), d)))
    cache = _instances(runtime)
    key = (id(operator), shape, shard.dtype, order)
    if key not in cache:
        facts = (clear, order, shape, str(shard.dtype), operator.plan, operator.realization, operator.on)
        told = runtime.agree(f"first call of {operator.name}", facts)
        for rank, theirs in enumerate(told):
            if theirs[2:] != facts[2:]:
                raise RuntimeContractError(
                    f"rank {runtime.rank} and rank {rank} call `{operator.name}` differently: "
                    + "; ".join(f"{a} against {b}" for a, b in zip(facts[2:], theirs[2:], strict=True) if a != b)
                )
        agreed = next((t[1] for t in told if t[0]), tuple(range(shard.dim())))
        cache[key] = Instance(operator, runtime, shape, shard.dtype, agreed)
    return cache[key]


def _instances(runtime: Runtime) -> dict[Any, Instance]:
    cache = getattr(runtime, "overlap_instances", None)
    if cache is None:
        cache = runtime.overlap_instances = {}  # type: ignore[attr-defined]
    return cache
