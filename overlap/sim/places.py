"""What operations do to the chunks that a plan names, checked by the clocks beside what they do to real memory.

An executor may be kinder than the plan: sums that are sent on are kept in memory of their own, what is added has a slot to
itself, and a rank that nobody reads from may be overwritten unseen. Another executor is not. So every operation also
touches the places of its chunks, which are no memory:

    move         reads its source, replaces its destination
    reduction    reads its source, adds to its destination: several may at a time, and who reads there does not see it
    own work     reads what its rank holds of a tensor that is not summed, at any time, and waits for nothing
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.plan import P2P, Chunk, CommPlan, OpId
from overlap.runtime.launch.prepared import lane_step
from overlap.runtime.repeat.places import Carried
from overlap.runtime.transfer.transfer import Transfer
from overlap.schedule.steps import Copy

from .clocks import Agent
from .engine import NOWHERE, Stream
from .memory import BEFORE_ALL, Buffer
from .world import World


class PlanPlaces:
    """The places of one plan in one run."""

    def __init__(self, world: World, plan: CommPlan) -> None:
        self._world = world
        self._plan = plan
        self._reduced = reduced_tensors(plan)
        self._held: dict[tuple[int, str], Buffer] = {}
        """Who reads and who replaces."""
        self._added: dict[tuple[int, str], Buffer] = {}
        """Who adds and who replaces."""
        for rank in range(plan.world):
            own = Agent(f"rank {rank}'s own work", rank, "program")
            for spec in plan.tensors:
                at = (rank, spec.name)
                self._held[at], self._added[at] = self._place(rank, spec.name), self._place(rank, spec.name)
                self._added[at].writer[:] = BEFORE_ALL
            for chunk in plan.before[rank]:
                index = self._index(chunk)
                if len(index):
                    place = self._held[rank, chunk.tensor]
                    place.writer[index] = BEFORE_ALL
                    if chunk.tensor not in self._reduced:
                        world.shadow.read(place, index, world.shadow.access(own, "reads", NOWHERE))

    def watch(self, transfer: Transfer) -> None:
        """Copies of a transfer by this plan, of one rank, touch the places from now on."""
        host = self._world.runtimes[transfer.runtime.rank].host
        for step in transfer.steps:
            if isinstance(step, Copy):
                copy, touch = lane_step(transfer, None, step), self._touch(step.op)
                if copy is None:
                    continue

                def enqueue(
                    stream: Stream,
                    carried: Carried,
                    copy: Callable[..., None] = copy,
                    touch: Callable[[Stream], None] = touch,
                    raises: bool = transfer.by_network(step.op),
                ) -> None:
                    # A kernel that raises its flag itself stands for what came before it.
                    if raises:
                        stream.enqueue(touch, host)
                    copy(stream, carried)
                    if not raises:
                        stream.enqueue(touch, host)

                transfer.prepared[step] = enqueue

    def _touch(self, op_id: OpId) -> Callable[[Stream], None]:
        op = self._plan.op(op_id)
        assert isinstance(op, P2P)
        shadow, told = self._world.shadow, f"(operation {op_id[1]}: {op})"
        source, target = self._index(op.src), self._index(op.dst)
        held, added = self._held[op.dst_rank, op.dst.tensor], self._added[op.dst_rank, op.dst.tensor]

        def touch(stream: Stream) -> None:
            if not len(source):
                return
            reads = shadow.access(stream.agent, f"{told} reads", NOWHERE)
            shadow.read(self._held[op.src_rank, op.src.tensor], source, reads)
            if op.reduce:
                shadow.read(held, target, reads)
                adds = shadow.access(stream.agent, f"{told} adds to", NOWHERE, "sys")
                shadow.atomic(added, target, adds, modifies=True)
            else:
                writes = shadow.access(stream.agent, f"{told} writes", NOWHERE)
                shadow.write(held, target, writes)
                shadow.write(added, target, writes)

        return touch

    def _place(self, rank: int, tensor: str) -> Buffer:
        shape = self._plan.tensor(tensor).shape
        stand_in, place = self._world.memory.allocate(rank, shape, torch.int8)
        place.describe(stand_in, tensor)
        return place

    def _index(self, chunk: Chunk) -> np.ndarray:
        shape = self._plan.tensor(chunk.tensor).shape
        numbers = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        return numbers[tuple(map(slice, chunk.box.lo, chunk.box.hi))].reshape(-1)
