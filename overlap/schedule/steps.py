"""What one rank's host enqueues for one launch, as data: the copy-engine protocol step by step.

    pull    main    Entry | Fork | Kernel ............................. | Join |
            lane 0               | [Await] Copy Raise ... | Credit*     /
    push    main    Entry | Fork | Kernel ............................. | Join | Credit*
            lane 0               | [Await] Copy Raise ...               /

What each step orders, for launch n on rank r:

* ``Entry`` waits until every peer's `done` credit is n-1: only then may r stage its shard (a peer may still pull
  from it) and its lanes push (a peer's kernel may still read what they overwrite). Pulls read a staged shard of
  this launch, so with any pull in the plan entries also exchange `ready`; a push reads the rank's own memory.
* ``Await`` holds a lane until the flag of an operation that the next copy depends on has been raised, wherever that
  landed: at r (to forward a chunk), at the peer that r pulls from (a relay), or at the peer that r pushes to. What
  the same lane did before needs none.
* ``Raise`` stands behind its copy on the same lane.
* ``Credit`` tells a peer that r has read all it will read in this launch. With pulls alone r's kernel reads memory that
  only r writes, so credits follow the last copy (on the lane if there is one lane, else behind the joins). With any
  push a peer writes what r's kernel and lanes read, so credits follow kernel and joins.

Dropping any step is a race the simulator must find (tests/sim); `verify_steps` finds it without running.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.errors import PlanError, UnsupportedError


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
        PlanError: an operation stands in the list of a rank that does not carry it out.
    """
    _check_copies_only(plan)
    own = plan.ops[rank]
    pulls, pushes = directions(plan)
    lanes = sorted({op.channel for op in own})
    peers = [(rank + step) % plan.world for step in range(1, plan.world)]

    steps: list[Step] = [Entry(wait_done=plan.world > 1, ready=pulls)]
    steps += [Fork(lane) for lane in lanes]
    if kernel_first:
        steps.append(Kernel())
    behind: dict[int, set[OpId]] = {lane: set() for lane in lanes}
    for index, op in enumerate(own):
        lane = op.channel
        for dep in op.depends:
            if dep not in behind[lane]:
                steps.append(Await(lane, dep, _copied(plan, dep).dst_rank))
                behind[lane].add(dep)
        steps += [Copy(lane, (rank, index)), Raise(lane, (rank, index))]
        behind[lane].add((rank, index))
    if not kernel_first:
        steps.append(Kernel())
    on_lane = len(lanes) == 1 and not pushes
    if on_lane:
        steps += [Credit(peer, lanes[0]) for peer in peers]
    steps += [Join(lane) for lane in lanes]
    if not on_lane:
        steps += [Credit(peer, None) for peer in peers]
    return tuple(steps)


def directions(plan: CommPlan) -> tuple[bool, bool]:
    """Whether any rank of the plan pulls, and whether any pushes."""
    found = {op.direction for ops in plan.ops for op in ops if isinstance(op, P2P)}
    return "pull" in found, "push" in found


def _copied(plan: CommPlan, op_id: OpId) -> P2P:
    op = plan.op(op_id)
    assert isinstance(op, P2P)
    return op


def _check_copies_only(plan: CommPlan) -> None:
    for op_id, op in plan.items():
        said, where = f"plan {plan.name}, {name_op(plan, op_id)}", plan.where(op_id)
        if not isinstance(op, P2P):
            raise UnsupportedError(
                f"{said}: a copy engine cannot do a collective ({op.kind})",
                where=where,
                help="write it as pushes or pulls of chunks",
            )
        if op.reduce:
            raise UnsupportedError(f"{said}: a copy engine moves data, it cannot reduce ({op.reduce})", where=where)
        if op.src_rank == op.dst_rank:
            raise UnsupportedError(
                f"{said}: a copy inside a rank runs as a kernel, which starves behind a grid that waits for it",
                where=where,
                help="let the kernel read that chunk where it is",
            )
        if op_id[0] != op.owner:
            raise PlanError(
                f"{said} stands in the list of rank {op_id[0]}, not of rank {op.owner}",
                where=where,
                help="a pull stands in the list of its destination, a push in that of its source",
            )
