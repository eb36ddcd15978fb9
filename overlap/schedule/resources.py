"""What a launch takes on each rank, and whether there is as much: memory, flags, credits, lanes, room beside a grid.

    rank 2: 1,049,088 bytes (a 1,048,576, c 512), 6 flags, 3 credits, 2 lanes, 1 wait kernel at a time

Memory, flags and credits are there before the first launch or the plan is refused; nothing is made in between. A wait
kernel holds a lane until a flag is raised. Where it stands beside a kernel that spins it must become resident all the
same, one for each lane that waits, or neither ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import CommPlan, OpId
from overlap.errors import ScheduleError

from .early import kept_chunks
from .pieces import partial_sources
from .steps import Await, Copy, Credit, Fork, Gather, Hold, Join, Kernel, Raise, Step, Sum, Whole
from .sync import assign_slots
from .table import SENTINEL, SLOT_WORDS, state_words


@dataclass(frozen=True)
class Resources:
    """What a launch takes on one rank.

    Args:
        memory: bytes of symmetric memory by tensor.
        flags, counters, credits: words that are raised here; ``credits`` has one a peer.
        lanes: channels in use.
        waits: by lane, the first operation that it waits for beside a kernel or a sum that spins.
    """

    rank: int
    memory: Mapping[str, int] = field(hash=False)
    flags: int
    counters: int
    credits: int
    lanes: tuple[int, ...]
    waits: Mapping[int, OpId] = field(hash=False)

    @property
    def total(self) -> int:
        """Bytes of symmetric memory: tensors and state words."""
        return sum(self.memory.values()) + self.state

    @property
    def state(self) -> int:
        """Bytes of the rank's epoch, flags, counters and credits."""
        return state_words(self.credits + 1, self.flags, self.counters) * 8

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size:,}" for name, size in self.memory.items())
        said = [f"{self.total:,} bytes ({parts or 'nothing'}, state {self.state:,})", _count(self.flags, "flag")]
        if self.counters:
            said.append(_count(self.counters, "counter"))
        said += [_count(self.credits, "credit"), _count(len(self.lanes), "lane")]
        if self.waits:
            said.append(f"{_count(len(self.waits), 'wait kernel')} at a time")
        return f"rank {self.rank}: {', '.join(said)}"


@dataclass(frozen=True)
class Limits:
    """What a rank has. None: as much as wanted.

    Args:
        memory: bytes of symmetric memory.
        lanes: streams beside the caller's.
        units: multiprocessors, each with room for one wait kernel beside a grid.
    """

    memory: int | None = None
    lanes: int | None = None
    units: int | None = None


def launch_resources(
    plan: CommPlan,
    rank: int,
    steps: Sequence[Step],
    memory: Mapping[str, int],
    produced: Collection[str] = (),
) -> Resources:
    """What ``steps``, those of ``rank``, take.

    Args:
        memory: bytes of symmetric memory that the rank's part of each tensor takes.
        produced: tensors of the plan that a kernel writes.
    """
    lanes = {step.lane for step in steps if isinstance(step, Await | Gather | Hold | Whole | Copy | Raise)}
    counters = len(partial_sources(plan, rank, produced)) if produced else 0
    if any(isinstance(step, Whole) for step in steps):
        counters += len(kept_chunks(plan, rank, produced))
    credits = sum(isinstance(step, Credit) for step in steps)
    flags = len(assign_slots(plan, rank))
    return Resources(rank, dict(memory), flags, counters, credits, tuple(sorted(lanes)), _waits(steps))


def _waits(steps: Sequence[Step]) -> dict[int, OpId]:
    """Lanes whose wait kernels may have to start while a kernel or a sum of the main stream spins."""
    waiting: dict[int, OpId] = {}
    forked: dict[int, int] = {}
    beside: dict[int, OpId] = {}
    last_spin = -1
    for number, step in enumerate(steps):
        if isinstance(step, Fork):
            forked[step.lane] = number
        elif isinstance(step, Join):
            waiting.pop(step.lane, None)
        elif isinstance(step, Await):
            # Nothing that spins waits for what a `Gather` lets go, so one that finds no room only starts later.
            waiting.setdefault(step.lane, step.op)
            if last_spin > forked.get(step.lane, -1):
                beside.setdefault(step.lane, step.op)
        elif isinstance(step, Kernel) or (isinstance(step, Sum) and step.lane is None and _polls(step)):
            last_spin = number
            for lane, op in waiting.items():
                beside.setdefault(lane, op)
    return dict(sorted(beside.items()))


def _polls(step: Sum) -> bool:
    return any(summand is not None for piece in step.pieces for summand in piece.summands)


def verify_resources(found: Sequence[Resources], plan: CommPlan, limits: Limits) -> None:
    """Returns if every rank has what a launch takes of it.

    Args:
        found: of all ranks, in rank order.

    Raises:
        ScheduleError: names the rank, what it lacks, and the tensor or operation that takes it.
    """
    for taken in found:
        rank = taken.rank
        if limits.memory is not None and taken.total > limits.memory:
            parts = ", ".join(f"{name} {size:,}" for name, size in taken.memory.items())
            raise ScheduleError(
                f"plan {plan.name}: rank {rank} takes {taken.total:,} bytes of symmetric memory ({parts or 'nothing'}, "
                f"state {taken.state:,}), and may take {limits.memory:,}",
                where=plan.where(),
                help="raise the limit, or let ranks hold less at a time: fewer relays, smaller shards, more ranks",
            )
        if state_words(plan.world, taken.flags, taken.counters) > SENTINEL:
            raise ScheduleError(
                f"plan {plan.name}: {taken.flags:,} operations land on rank {rank}; tables number the words of "
                f"{SENTINEL // SLOT_WORDS:,} flags at most",
                where=plan.where(),
                help="cut chunks into fewer parts",
            )
        if limits.lanes is not None and len(taken.lanes) > limits.lanes:
            channel = taken.lanes[limits.lanes]
            first = next((rank, i) for i, op in enumerate(plan.ops[rank]) if op.channel == channel)
            raise ScheduleError(
                f"plan {plan.name}: rank {rank} runs {len(taken.lanes)} lanes at a time and has {limits.lanes}: none is "
                f"left for channel {channel}, where {name_op(plan, first)} stands",
                where=plan.where(first),
                help="put operations into fewer channels",
            )
        if limits.units is not None and len(taken.waits) > limits.units:
            lane, op = list(taken.waits.items())[limits.units]
            raise ScheduleError(
                f"plan {plan.name}: rank {rank} has {_count(len(taken.waits), 'wait kernel')} beside a kernel that spins, "
                f"and room for {limits.units}: none is left for lane {lane}, which waits for {name_op(plan, op)}",
                where=plan.where(op),
                help="put operations that wait for others into fewer channels, or leave out what they wait for",
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
