"""Copies straight out of the caller's tensor: which operations may be, and which lanes need not wait for the staging.

    main    entry | ---- staging ---- | kernel: own tiles | tiles of what has arrived ...
    lane           \\ copy of the own chunk to a peer | to the next peer | ...

A copy engine reads any memory of its own device, so what a rank pushes of its own shard can leave while the shard is still
being staged for its tiles: what of it they read, so of an exchange one piece. A staged copy is what peers pull, and what other
ways of moving read. Where tiles read it in the caller's tensor as well, and nobody else reads any of it, nothing is staged:

    main    entry | kernel: own tiles | tiles of what has arrived ...
    lane           \\ copy of the own chunk to a peer | to the next peer | ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from overlap.chunkplan.plan import P2P, CommPlan, OpId


def sent_as_given(plan: CommPlan, rank: int, produced: Collection[str] = ()) -> frozenset[OpId]:
    """The operations of ``rank`` that push a part of what its caller holds, and nothing that lands there. None with any pull in
    the plan: peers then wait until all is staged."""
    if any(isinstance(op, P2P) and op.direction == "pull" for _, op in plan.items()):
        return frozenset()
    return frozenset(
        (rank, index)
        for index, op in enumerate(plan.ops[rank])
        if isinstance(op, P2P)
        and op.src_rank == rank != op.dst_rank
        and op.src.tensor not in produced
        and not op.src.box.empty
        and any(held.tensor == op.src.tensor and held.box.contains(op.src.box) for held in plan.before[rank])
        and not any(_lands_in(plan.op(landing), op) for landing in plan.arriving(rank))
    )


def ahead_of_staging(plan: CommPlan, rank: int, copied: Iterable[int], given: Collection[OpId]) -> frozenset[int]:
    """Lanes that read nothing staged: what they copy is ``given``, or has arrived.

    Args:
        copied: operations of the rank that lanes carry out ahead of the kernel.
    """
    copied, own = tuple(copied), plan.ops[rank]
    ahead = {own[i].channel for i in copied if (rank, i) in given}
    ahead -= {own[i].channel for i in copied if (rank, i) not in given and reads_held(plan, (rank, i))}
    if any(own[i].channel not in ahead for i in copied):
        # What is enqueued ahead of others must not wait for them, or a host that waits for kernels would for ever.
        ahead -= {own[i].channel for i in copied if any(_elsewhere(plan, (rank, i), dep) for dep in own[i].depends)}
    return frozenset(ahead)


def needs_no_stage(plan: CommPlan, rank: int, copied: Iterable[int], given: Collection[OpId]) -> bool:
    """Whether every operation, of any rank, that reads what the caller of ``rank`` holds is one that reads it there.

    Args:
        copied, given: as `ahead_of_staging` has them.
    """
    ahead = ahead_of_staging(plan, rank, copied, given)
    return all(
        isinstance(op, P2P)
        and (op.src_rank != rank or not reads_held(plan, op_id) or (op_id in given and op.channel in ahead))
        for op_id, op in plan.items()
    )


def reads_held(plan: CommPlan, op_id: OpId) -> bool:
    """Whether an operation reads any of what the caller of its source holds."""
    op = plan.op(op_id)
    return isinstance(op, P2P) and any(
        held.tensor == op.src.tensor and held.box.overlaps(op.src.box) for held in plan.before[op.src_rank]
    )


def _elsewhere(plan: CommPlan, op_id: OpId, dep: OpId) -> bool:
    """Whether what an operation depends on is none of those ahead of it in its own lane."""
    return dep[0] != op_id[0] or plan.op(dep).channel != plan.op(op_id).channel


def _lands_in(landing: object, op: P2P) -> bool:
    return isinstance(landing, P2P) and landing.dst.tensor == op.src.tensor and landing.dst.box.overlaps(op.src.box)
