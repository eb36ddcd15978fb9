"""`Workspace`: the symmetric memory of one operator on one group, shared by all shapes it is called with.

    Workspace (operator, group, dtypes)
        memory   data: `capacity` elements of each communicated tensor (memory/layout.py)
                 state: epoch, counter, limit, fault, ready[world], done[world], flags, counters
        kept     older, smaller memory that a captured graph still uses
    Instance (shape) = plan + tables + views of the memory

Shapes share one epoch: every launch raises every flag it waits for, and one launch of a workspace is in flight at a
time. A shape that fits allocates nothing. One that does not makes new memory on all ranks at once, outside graph
capture; graphs captured before keep the old memory, with its own epoch and flags, and stay right.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from overlap import settings
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.collectives.direct import settled
from overlap.chunkplan.merge import merge_plans
from overlap.chunkplan.order import happens_before
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.errors import OverlapError, RuntimeContractError, UsageError
from overlap.schedule.cut import cut_along
from overlap.schedule.table import state_words
from overlap.schedule.words import slots

from .faults.faults import FaultRecord, deadline_error
from .group.reach import far
from .launch.beside import asked_sums
from .memory.need import Need, need_of
from .memory.part import part_layout
from .memory.symmetric import check_symmetric, release_symmetric
from .of_group import runtime_of
from .packets.low_latency import low_latency_of
from .protocol import Runtime
from .tables.inline_words import words_for

if TYPE_CHECKING:
    from .bound_plan import BoundPlan
    from .operator import Operator

TABLE_WORDS = 1 << 16
"""int32 words that a reserved workspace sets aside for the tables of shapes to come, a few hundred of them."""
TABLE_ALIGNMENT = 64
LEAST_FLAGS = 64
"""Flags made at least, 32 bytes each: another shape rarely needs more."""
LEAST_COUNTERS = 32
"""The same of counters, where there are any."""


class Owner(Protocol):
    """Whose workspace it is: an operator, or what moves tensors without one."""

    @property
    def name(self) -> str: ...


class Memory:
    """Symmetric memory as every rank of a group has it. Made on all ranks at once.

    Args:
        runtime: this rank's.
        need: what it must hold.
        dtypes: of the communicated tensors.
    """

    def __init__(self, runtime: Runtime, need: Need, dtypes: tuple[torch.dtype, ...]) -> None:
        self.runtime = runtime
        self.room = need
        self.data: tuple[torch.Tensor, ...] = tuple(
            runtime.symmetric([elements], dtype) for elements, dtype in zip(need.elements, dtypes, strict=True)
        )
        words = state_words(runtime.world, need.flags, need.counters)
        self.state: torch.Tensor = runtime.symmetric([words], torch.int64, zero=True)
        self.addresses = [
            ~runtime.pes[p] if far(runtime, p) else runtime.peer(self.state, p).data_ptr() for p in range(runtime.world)
        ]
        """Of every rank's state words; of a far rank's the complement of NVSHMEM's number, which no address is."""
        self.peers = runtime.table(self.addresses, bits=64)
        self.words: torch.Tensor | None = None
        """What kernels send in words, and their epochs."""
        if need.words:
            self.words = runtime.symmetric([need.words], torch.int64, zero=True)
        self.fault = runtime.watch(self.state, packets=bool(need.words))
        self.captured = False
        self.pinned: list[Any] = []
        """What captured graphs read besides, of plans that have moved on to larger memory."""


class Workspace:
    """The memory of an operator on a group for one dtype a communicated tensor. Obtained with `workspace_of`."""

    def __init__(self, operator: Owner, runtime: Runtime, dtypes: tuple[torch.dtype, ...]) -> None:
        self.operator = operator
        self.runtime = runtime
        self.dtypes = dtypes
        self.memory: Memory | None = None
        self.kept: list[Memory] = []
        self.reserved = False
        self.instances: list[BoundPlan | None] = []
        self._tables: torch.Tensor | None = None
        self._used = 0
        self.error: OverlapError | None = None

    def fit(self, need: Need, what: object) -> Memory:
        """Memory that holds ``need``; grows on all ranks at once where it must.

        Args:
            what: shapes, for the message.

        Raises:
            RuntimeContractError: reserved memory is too small.
        """
        memory = self.memory
        if memory is not None and need.within(memory.room):
            return memory
        if self.reserved:
            assert memory is not None
            raise RuntimeContractError(
                f"`{self.operator.name}` of {what} needs {need.text(self.dtypes)}; reserved are "
                f"{memory.room.text(self.dtypes)}",
                help="reserve for the largest sizes that will be called",
            )
        least = Need(need.elements, LEAST_FLAGS, LEAST_COUNTERS if need.counters else 0)
        return self._grow(need.joined(least) if memory is None else need.joined(least).joined(memory.room))

    def capture(self, memory: Memory) -> None:
        """Keeps memory of its own, present or earlier, for the replays of a graph that is being captured."""
        memory.captured = True
        if memory is not self.memory and not any(memory is each for each in self.kept):
            self.kept.append(memory)

    def _grow(self, need: Need) -> Memory:
        if self.memory is not None and self.memory.captured:
            self.kept.append(self.memory)
        self.memory = Memory(self.runtime, need, self.dtypes)
        return self.memory

    def reserve(self, need: Need, what: object) -> None:
        """Makes memory for calls up to ``need`` and refuses from now on to make any more."""
        self.fit(need, what)
        if self._tables is None:
            self._tables = self.runtime.table([0] * TABLE_WORDS)
        self.reserved = True

    def table(self, values: Sequence[int], *, bits: int = 32) -> Any:
        """Uploads a table, into memory that was set aside for it if there is some left."""
        width = bits // 32
        end = self._used + len(values) * width
        if self._tables is None or end > TABLE_WORDS:
            return self.runtime.table(values, bits=bits)
        place = self._tables[self._used : end]
        self._used = -(-end // TABLE_ALIGNMENT) * TABLE_ALIGNMENT
        return self.runtime.table(values, bits=bits, into=place if width == 1 else place.view(torch.int64))

    def add(self, instance: BoundPlan) -> int:
        """Takes in an instance; its number in fault records."""
        self.instances.append(instance)
        return len(self.instances) - 1

    def forget(self, instance: BoundPlan) -> None:
        """Lets go of an instance that no call will use again; one whose memory a captured graph uses is kept for replays."""
        if not instance.memory.captured:
            self.instances[instance.number] = None

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
    """A runtime's workspaces by (operator's id, dtypes)."""
    found = getattr(runtime, "overlap_workspaces", None)
    if found is None:
        found = runtime.overlap_workspaces = {}  # type: ignore[attr-defined]
    return found


def workspace_of(operator: Owner, runtime: Runtime, dtypes: tuple[torch.dtype, ...]) -> Workspace:
    """The workspace of an operator on a runtime, made empty when there is none."""
    known = workspaces(runtime)
    key = (id(operator), dtypes)
    found = known.get(key)
    if found is None:
        found = known[key] = Workspace(operator, runtime, dtypes)
    return found


def plan_for(operator: Operator, world: int, shapes: Sequence[tuple[int, ...]]) -> CommPlan:
    """The operator's plan for communicated tensors of these global shapes, as its launches see it."""
    plans = plans_for(operator, world, shapes)
    return merge_plans([settled(plan, produced=c.produced) for c, plan in zip(operator.comms, plans, strict=True)])


def plans_for(operator: Operator, world: int, shapes: Sequence[tuple[int, ...]]) -> list[CommPlan]:
    """The plan of each communicated tensor, in the order of ``comms``."""
    from overlap.backends import backend

    facts = backend(operator.realization.backend)
    return [
        build_plan(
            comm.plan,
            world=world,
            tensor=TensorSpec(comm.tensor, shape),
            dim=comm.dim,
            to_dim=comm.to_dim,
            split=operator.realization.split,
            split_dim=cut_along(comm.tensor, comm.dim, comm.cut_dim, () if comm.produced else operator.reads),
            direction="push" if comm.produced else facts.default_direction,
            path=f"<plan of {operator.name}>",
        )
        for comm, shape in zip(operator.comms, shapes, strict=True)
    ]


def reserve(
    operator: Operator, group: Any, max_sizes: dict[str, int], dtype: torch.dtype | Mapping[str, torch.dtype]
) -> Workspace:
    """Makes the memory for all calls up to ``max_sizes``; afterwards no call of the operator makes any, ever.

    Collective. A later call that needs more is refused with both sizes named. Tables of schedules, a few hundred bytes a
    shape, have a reserve of their own; past some hundreds of shapes they come from torch's allocator.

    Args:
        max_sizes: global extent of every axis of the communicated tensors, the largest that will be called.
        dtype: of the communicated tensors, or one for each by its name. Of a result: what the kernel writes.

    Raises:
        UsageError: an axis without a size, a size that is none, or a tensor without a dtype.
        RuntimeContractError: the operator has reserved less before; or a graph is being captured.
    """
    comms = operator.comms
    for comm in comms:
        for axis in comm.dims:
            size = max_sizes.get(axis)
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise UsageError(
                    f"reserve needs the largest size of {axis}, got {size!r}",
                    help=f"`{comm.tensor}` has the axes {', '.join(comm.dims)}",
                )
        if isinstance(dtype, Mapping) and comm.tensor not in dtype:
            raise UsageError(f"reserve needs the dtype of `{comm.tensor}`", help="give one, or one a tensor by name")
    dtypes = tuple(dtype[comm.tensor] if isinstance(dtype, Mapping) else dtype for comm in comms)
    shapes = tuple(tuple(max_sizes[axis] for axis in comm.dims) for comm in comms)
    runtime = runtime_of(group)
    workspace = workspace_of(operator, runtime, dtypes)
    plan = plan_for(operator, runtime.world, shapes)
    told = runtime.agree(f"reserve of {operator.name}", (shapes, tuple(map(str, dtypes))))
    for rank, theirs in enumerate(told):
        if theirs != told[runtime.rank]:
            raise RuntimeContractError(
                f"rank {runtime.rank} reserves {told[runtime.rank]} for `{operator.name}`, rank {rank} {theirs}"
            )
    happens = happens_before(plan)
    stored, moved = operator.carried(plan)
    if operator.realization.strided:
        # Which chunks are narrow differs from call to call: room for all of them.
        every = frozenset(op_id for op_id, _ in plan.items())
        stored, moved = (every if operator.stores else stored), (every if operator.moves else moved)
    sends = operator.carriers.words
    sizes = [
        max(
            part_layout(plan, comm, r, tuple(range(len(shape))), happens, stored, sends).size
            for r in range(runtime.world)
        )
        for comm, shape in zip(comms, shapes, strict=True)
    ]
    what = shapes[0] if len(shapes) == 1 else shapes
    produced = [c.tensor for c in comms if c.produced]
    need = need_of(plan, produced, sizes, stored, moved, early=asked_sums(operator) != 0)
    if sends:
        # Rows of another length may be such that a line holds one element.
        most = max(sum(slot.box.size for slot in slots(plan, r, produced[0])) for r in range(runtime.world))
        need = Need(tuple(sizes), 0, 0, words_for(runtime.world + most))
    workspace.reserve(need, what)
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
    for known in ("overlap_low_latency", "overlap_calls", "overlap_instances", "overlap_tuned", "overlap_settled"):
        getattr(runtime, known, {}).clear()
    runtime.overlap_last = None  # type: ignore[attr-defined]
    release_symmetric(runtime)
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
    low_latency_of(runtime).check()
    check_symmetric(runtime)
