"""What one rank's host enqueues for one launch, as data: the copy-engine protocol step by step.

    main    Entry | Fork | Kernel .......................... | Join | (push: Credit*)
    lane 0         | [Await] Copy Raise | [Await] Copy Raise | (pull: Credit*)

Pull: the owner stages its shard, so peers wait for its `ready`; a puller's `done` credit follows its
copies. Push: the source is the user's own tensor, so no `ready`; the destination's `done` credit
follows its kernel, the last reader. Dropping any step is a race the simulator must find (tests/sim).
"""

from __future__ import annotations

from dataclasses import dataclass

from overlap.chunkplan.plan import CommPlan, OpId, P2P
from overlap.errors import UnsupportedError


@dataclass(frozen=True)
class Entry:
    """The entry kernel: wait for ``done`` credits, stage the own chunk, bump the epoch, exchange ``ready``."""

    wait_done: bool
    ready: bool


@dataclass(frozen=True)
class Fork:
    lane: int


@dataclass(frozen=True)
class Await:
    """A one-warp wait kernel on the lane: the operation ``op`` has landed at ``rank`` (flag slot there)."""

    lane: int
    op: OpId
    rank: int


@dataclass(frozen=True)
class Copy:
    lane: int
    op: OpId


@dataclass(frozen=True)
class Raise:
    """Copies the source's epoch word into the flag of ``op`` at its destination, behind the copy."""

    lane: int
    op: OpId


@dataclass(frozen=True)
class Kernel:
    """The user's kernel, on the main stream."""


@dataclass(frozen=True)
class Credit:
    """Copies this rank's epoch word into ``done[rank]`` at ``peer``; ``lane`` None means the main stream."""

    peer: int
    lane: int | None


@dataclass(frozen=True)
class Join:
    lane: int


Step = Entry | Fork | Await | Copy | Raise | Kernel | Credit | Join


def launch_steps(plan: CommPlan, rank: int, *, kernel_first: bool = False) -> tuple[Step, ...]:
    """The steps of ``rank`` for one launch of ``plan`` by copy engine.

    ``kernel_first`` enqueues the kernel before the copies that feed it, faster where the host is slow, wrong under
    ``CUDA_LAUNCH_BLOCKING=1``.

    Raises:
        UnsupportedError: the plan has an operation that a copy engine cannot do.
    """
    own = plan.ops[rank]
    for op in own:
        if not isinstance(op, P2P) or op.reduce:
            raise UnsupportedError(f"plan {plan.name}: the copy engine moves data, it cannot do {op}")
    world = plan.world
    pulls = any(op.direction == "pull" for ops in plan.ops for op in ops)
    pushes = any(op.direction == "push" for ops in plan.ops for op in ops)
    lanes = sorted({op.channel for op in own})
    peers = [p for p in ((rank + s) % world for s in range(1, world))]

    steps: list[Step] = [Entry(wait_done=world > 1, ready=pulls)]
    steps += [Fork(lane) for lane in lanes]
    if kernel_first:
        steps.append(Kernel())
    for index, op in enumerate(own):
        for dep in op.depends:
            before = plan.op(dep)
            if dep[0] == rank and before.channel == op.channel and dep[1] < index:
                continue
            steps.append(Await(op.channel, dep, before.dst_rank))
        steps += [Copy(op.channel, (rank, index)), Raise(op.channel, (rank, index))]
    if not kernel_first:
        steps.append(Kernel())
    if pulls and not pushes and lanes:
        steps += [Credit(peer, lanes[-1]) for peer in peers] if len(lanes) == 1 else []
    steps += [Join(lane) for lane in lanes]
    if pushes or len(lanes) != 1:
        steps += [Credit(peer, None) for peer in peers]
    return tuple(steps)
