"""`Workspace`: the symmetric memory of one operator on one group, shared by all shapes it is called with.

    Workspace (operator, group, dtype)
        memory   data: `capacity` elements | state: epoch, counter, limit, fault, ready[world], done[world], flags
        kept     older, smaller memory that a captured graph still uses
    Instance (shape) = plan + tables + views of the memory

Shapes share one epoch: every launch raises every flag it waits for, and one launch of a workspace is in flight at a
time. A shape that fits allocates nothing. One that does not makes new memory on all ranks at once, outside graph
capture; graphs captured before keep the old memory, with its own epoch and flags, and stay right.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from overlap import settings
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.errors import OverlapError, RuntimeContractError, UsageError
from overlap.schedule.sync import assign_slots
from overlap.schedule.table import state_words

from .faults import FaultRecord, deadline_error
from .protocol import Runtime, runtime_of

if TYPE_CHECKING:
    from .instance import Instance
    from .operator import Operator

TABLE_WORDS = 1 << 16
"""int32 words that a reserved workspace sets aside for the tables of shapes to come, a few hundred of them."""
TABLE_ALIGNMENT = 64
LEAST_FLAGS = 64
"""Flags made at least, 32 bytes each: another shape rarely needs more."""


class Memory:
    """Symmetric memory as every rank of a group has it. Made on all ranks at once.

    Args:
        runtime: this rank's.
        capacity: elements of ``dtype`` that the gathered tensor may have.
        flags: flags of one launch.
    """

    def __init__(self, runtime: Runtime, capacity: int, dtype: torch.dtype, flags: int) -> None:
        self.runtime = runtime
        self.capacity = capacity
        self.flags = max(flags, LEAST_FLAGS)
        self.data: torch.Tensor = runtime.symmetric([capacity], dtype)
        self.state: torch.Tensor = runtime.symmetric([state_words(runtime.world, self.flags)], torch.int64, zero=True)
        self.addresses = [runtime.peer(self.state, p).data_ptr() for p in range(runtime.world)]
        self.peers = runtime.table(self.addresses, bits=64)
        self.fault = runtime.watch(self.state)
        self.captured = False


class Workspace:
    """The memory of an operator on a group for one dtype. Obtained with `workspace_of`."""

    def __init__(self, operator: Operator, runtime: Runtime, dtype: torch.dtype) -> None:
        self.operator = operator
        self.runtime = runtime
        self.dtype = dtype
        self.memory: Memory | None = None
        self.kept: list[Memory] = []
        self.reserved = False
        self.instances: list[Instance] = []
        self._tables: torch.Tensor | None = None
        self._used = 0
        self.error: OverlapError | None = None

    def fit(self, shape: tuple[int, ...], flags: int) -> Memory:
        """Memory that holds a gathered tensor of ``shape``; grows on all ranks at once where it must.

        Raises:
            RuntimeContractError: reserved memory is too small.
        """
        elements, memory = math.prod(shape), self.memory
        if memory is not None and elements <= memory.capacity and flags <= memory.flags:
            return memory
        if self.reserved:
            assert memory is not None
            size = self.dtype.itemsize
            raise RuntimeContractError(
                f"`{self.operator.name}` of {shape} needs {elements * size} bytes and {flags} flags; reserved are "
                f"{memory.capacity * size} bytes and {memory.flags} flags",
                help="reserve for the largest sizes that will be called",
            )
        return self._grow(max(elements, memory.capacity if memory else 0), max(flags, memory.flags if memory else 0))

    def _grow(self, capacity: int, flags: int) -> Memory:
        if self.memory is not None and self.memory.captured:
            self.kept.append(self.memory)
        self.memory = Memory(self.runtime, capacity, self.dtype, flags)
        return self.memory

    def reserve(self, shape: tuple[int, ...], flags: int) -> None:
        """Makes memory for calls up to ``shape`` and refuses from now on to make any more."""
        self.fit(shape, flags)
        if self._tables is None:
            self._tables = self.runtime.table([0] * TABLE_WORDS)
        self.reserved = True

    def table(self, words: Sequence[int]) -> Any:
        """Uploads a schedule table, into memory that was set aside for it if there is some left."""
        end = self._used + len(words)
        if self._tables is None or end > TABLE_WORDS:
            return self.runtime.table(words)
        place = self._tables[self._used : end]
        self._used = -(-end // TABLE_ALIGNMENT) * TABLE_ALIGNMENT
        return self.runtime.table(words, into=place)

    def add(self, instance: Instance) -> int:
        """Takes in an instance; its number in fault records."""
        self.instances.append(instance)
        return len(self.instances) - 1

    def poison(self, error: BaseException) -> None:
        """Refuses all later launches: one was enqueued half, so that this rank's flags and its peers' no longer match."""
        if self.error is None:
            self.error = RuntimeContractError(
                f"rank {self.runtime.rank}: an earlier launch of `{self.operator.name}` raised half-way "
                f"({type(error).__name__}: {error})",
                help="overlap.release(group) on all ranks starts anew",
            )

    def check(self) -> None:
        """Raises what an earlier launch left behind, at this and at every later call; costs no synchronisation.

        Raises:
            DeadlineError: a wait of an earlier launch gave up.
            RuntimeContractError: an earlier launch raised half-way.
        """
        if self.error is None:
            for memory in (*self.kept, *((self.memory,) if self.memory else ())):
                record: FaultRecord | None = memory.fault()
                if record is not None:
                    known = record.instance < len(self.instances)
                    instance = self.instances[record.instance] if known else None
                    seconds = settings.get("deadline_s")
                    self.error = deadline_error(self.operator.name, memory, record, instance, seconds)
                    break
        if self.error is not None:
            # A new one each time: a raised exception holds its frames, and they would hold the memory.
            raise type(self.error)(self.error.message, where=self.error.where, help=self.error.help)


def workspaces(runtime: Runtime) -> dict[Any, Workspace]:
    """A runtime's workspaces by (operator's id, dtype)."""
    found = getattr(runtime, "overlap_workspaces", None)
    if found is None:
        found = runtime.overlap_workspaces = {}  # type: ignore[attr-defined]
    return found


def workspace_of(operator: Operator, runtime: Runtime, dtype: torch.dtype) -> Workspace:
    """The workspace of an operator on a runtime, made empty when there is none."""
    known = workspaces(runtime)
    key = (id(operator), dtype)
    if key not in known:
        known[key] = Workspace(operator, runtime, dtype)
    return known[key]


def plan_for(operator: Operator, world: int, shape: tuple[int, ...]) -> CommPlan:
    """The operator's plan for a gathered tensor of ``shape``."""
    from overlap.backends import backend

    return build_plan(
        operator.plan,
        world=world,
        tensor=TensorSpec(operator.tensor, shape),
        dim=operator.dim,
        split=operator.realization.split,
        direction=backend(operator.realization.backend).default_direction,
        path=f"<plan of {operator.name}>",
    )


def reserve(operator: Operator, group: Any, max_sizes: dict[str, int], dtype: torch.dtype) -> Workspace:
    """Makes the memory for all calls up to ``max_sizes``; afterwards no call of the operator makes any, ever.

    Collective. A later call that needs more is refused with both sizes named. Tables of schedules, a few hundred bytes a
    shape, have a reserve of their own; past some hundreds of shapes they come from torch's allocator.

    Args:
        max_sizes: global extent of every axis of the communicated tensor, the largest that will be called.
        dtype: of the communicated tensor.

    Raises:
        UsageError: an axis without a size, or a size that is none.
        RuntimeContractError: the operator has reserved less before; or a graph is being captured.
    """
    dims = operator.inputs[operator.tensor]
    for axis in dims:
        size = max_sizes.get(axis)
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise UsageError(
                f"reserve needs the largest size of {axis}, got {size!r}",
                help=f"`{operator.tensor}` has the axes {', '.join(dims)}",
            )
    shape = tuple(max_sizes[axis] for axis in dims)
    runtime = runtime_of(group)
    workspace = workspace_of(operator, runtime, dtype)
    plan = plan_for(operator, runtime.world, shape)
    flags = max((len(assign_slots(plan, r)) for r in range(runtime.world)), default=0)
    told = runtime.agree(f"reserve of {operator.name}", (shape, str(dtype)))
    for rank, theirs in enumerate(told):
        if theirs != told[runtime.rank]:
            raise RuntimeContractError(
                f"rank {runtime.rank} reserves {told[runtime.rank]} for `{operator.name}`, rank {rank} {theirs}"
            )
    workspace.reserve(shape, flags)
    return workspace


def release(group: Any = None) -> None:
    """Frees all symmetric memory of a group, on all ranks at once; graphs captured with it may not be replayed any more.

    The next call of an operator makes new memory. Also the way back after a `DeadlineError`, where all ranks live.
    """
    runtime = runtime_of(group)
    runtime.synchronize()
    runtime.agree("release", None)
    for workspace in workspaces(runtime).values():
        workspace.memory = None
        workspace.kept.clear()
        workspace.instances.clear()
    workspaces(runtime).clear()
    getattr(runtime, "overlap_instances", {}).clear()
    gc.collect()
    runtime.release()
    runtime.agree("release: freed", None)


def check(group: Any = None) -> None:
    """Waits for all launches of a group on this rank and raises what any of them left behind.

    Raises:
        DeadlineError: a wait gave up; the message names rank, operation, and the value wanted and seen.
    """
    runtime = runtime_of(group)
    runtime.synchronize()
    for workspace in workspaces(runtime).values():
        workspace.check()
