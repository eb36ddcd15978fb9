"""`BoundPlan`: a plan on one group: its launch steps, its flags, and views of a workspace's memory.

parts    the communicated tensors: layouts, views (memory/plan_tensor.py)
state    int64 words: epoch, counter, spin limit, fault, ready[world], done[world], flags, counters (schedule/table.py)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from overlap import settings
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.schedule.steps import Entry, Step
from overlap.schedule.sync import assign_slots

from .group.meeting import RAISED
from .group.reach import far
from .memory.need import Need
from .memory.plan_tensor import PlanTensor
from .protocol import Runtime
from .workspace import Memory, Workspace


class BoundPlan(ABC):
    """What a launch of a plan needs on this rank. Made on all ranks at once.

    Args:
        parts: by the tensor's name, in the order of the workspace's dtypes.
        steps: of this rank.
        what: shapes, for the message where memory that was reserved is too small.
    """

    parts: Mapping[str, PlanTensor]

    def __init__(
        self,
        plan: CommPlan,
        runtime: Runtime,
        parts: Mapping[str, PlanTensor],
        steps: Sequence[Step],
        need: Need,
        workspace: Workspace,
        what: object,
    ) -> None:
        self.plan = plan
        self.runtime = runtime
        self.parts = parts
        self.slots: tuple[dict[OpId, int], ...] = tuple(assign_slots(plan, r) for r in range(runtime.world))
        self.steps: tuple[Step, ...] = tuple(steps)
        self.entry = next((step for step in self.steps if isinstance(step, Entry)), None)
        self.need = need
        self.workspace = workspace
        memory = workspace.fit(need, what)
        self.number = workspace.add(self)
        self.met = False
        self.warmed: set[Any] = set()
        """Variants of a launch whose kernels have been compiled."""
        self._meetings = 0
        self.prepared: dict[Any, Any] = {}
        """What `launch` made ready for this memory, by step."""
        self._bind(memory)

    def _bind(self, memory: Memory) -> None:
        self.memory = memory
        self.state = memory.state
        self.peers = memory.peers
        for part, data in zip(self.parts.values(), memory.data, strict=True):
            part.bind(data)
        self.prepared = {}

    def refresh(self) -> None:
        """Takes up the workspace's present memory, which another shape may have made grow.

        A call that is captured goes on in the memory that it knows: what it needs in another could not be made now.
        """
        memory = self.workspace.memory
        if memory is not None and memory is not self.memory and not self.runtime.capturing():
            if self.memory.captured:
                # Graphs go on reading the tables that were made for the memory they know.
                self.memory.pinned += self._tables_made()
            self._bind(memory)

    def _tables_made(self) -> list[Any]:
        """What holds device memory that launches read besides the workspace's."""
        return [self.prepared]

    @property
    @abstractmethod
    def title(self) -> str:
        """What is launched, for the names of meetings."""

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

    def by_network(self, op_id: OpId) -> bool:
        """Whether NVSHMEM carries an operation of this rank: one between nodes."""
        other = self._other(op_id)
        return other is not None and far(self.runtime, other)

    @cached_property
    def networked(self) -> bool:
        """Whether NVSHMEM carries any operation of this rank."""
        return any(
            self.by_network((self.runtime.rank, index)) for index in range(len(self.plan.ops[self.runtime.rank]))
        )

    def _other(self, op_id: OpId) -> int | None:
        """The other rank of an operation of this one; None of a collective."""
        op = self.plan.op(op_id)
        if not isinstance(op, P2P):
            return None
        return op.dst_rank if op.src_rank == self.runtime.rank else op.src_rank

    def sender(self, address: int) -> tuple[str, Any] | None:
        """Of a line of words at ``address`` of this rank's memory, where launches send any: what it is and who sends it, and
        where the plan asks for it."""
        return None

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Around a call: if it raises before the ranks have met over a first launch, they are told instead of left waiting."""
        before = self._meetings
        try:
            yield
        except RAISED as error:
            if not self.met and self._meetings == before:
                self.runtime.agree(self._compiled(), error)
            raise

    def _compiled(self) -> str:
        return f"the first launch of {self.title}"
