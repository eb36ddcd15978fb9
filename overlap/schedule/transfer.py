"""Launch steps of a plan on its own, without a kernel: what is held is staged, moved, added up, and given back.

    main    Entry | Fork | ..... Sum (sent on) | Fork .......... Sum (results) | Join | Credit*
    lane 0               | [Await] Copy Raise ...                             /
    lane 1                                            | Copy Raise ...       /

Every tensor is treated alike. What an operation brings lands where it belongs, and may be sent on from there; what it
adds lands in memory of its own until a sum takes it (see `pieces`). Sums also make the results: they wait for the flags
of what the rank ends with, and write it to the caller's memory.

One workspace serves plans of every kind, one behind the other, so a peer's next launch may push into what this one only
read: credits always follow sums and joins. Operations are enqueued in one order that all ranks share and the plan allows,
so hosts may wait for each kernel, and channels may share a lane: a device has few queues, and what waits in one holds up
whatever stands behind it there. A rank whose own lanes need a multiprocessor (a wait kernel, a copy inside the rank)
joins them before its results are added up, whose programs may take them all.
"""

from __future__ import annotations

from overlap.chunkplan.order import name_op
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.errors import UnsupportedError

from .pieces import Piece, Sums, Values, pieces
from .steps import Await, Copy, Credit, Entry, Fork, Join, Step, Sum, carry_out, directions
from .turned import pulled_sums

LANES = 6
"""Lanes of a rank at most: with the caller's stream and one to spare, the queues that CUDA makes by default."""

TensorSums = dict[str, tuple[Sums, tuple[Piece, ...]]]
"""By tensor: the sums that a rank sends on, and its results (`pieces.pieces`)."""


def transfer_sums(plan: CommPlan, rank: int, values: Values) -> TensorSums:
    """What ``rank`` adds up of every tensor, and what it ends with.

    Raises:
        PlanError, UnsupportedError: as `pieces.pieces`.
    """
    return {spec.name: pieces(plan, rank, spec.name, values, in_place=True) for spec in plan.tensors}


def needs_ready(plan: CommPlan) -> bool:
    """Whether a rank must not begin before its peers have staged: they are read from, or what they hold is replaced."""
    return directions(plan)[0] or any(
        op.reduce is None and not op.dst.box.empty and op.dst.box.overlaps(chunk.box)
        for _, op in plan.items()
        if isinstance(op, P2P)
        for chunk in plan.before[op.dst_rank]
        if chunk.tensor == op.dst.tensor
    )


def lanes_of(plan: CommPlan, rank: int, values: Values) -> dict[int, int]:
    """The lane of each channel of a rank: one each, of its number, where there are no more than `LANES` of them."""
    channels = list(dict.fromkeys(plan.op(op_id).channel for op_id in values.order.order if op_id[0] == rank))
    if len(channels) <= LANES:
        return {channel: channel for channel in channels}
    return {channel: number % LANES for number, channel in enumerate(channels)}


def transfer_steps(plan: CommPlan, rank: int, values: Values | None = None) -> tuple[Step, ...]:
    """The steps of ``rank`` for one launch of ``plan`` without a kernel.

    Args:
        values: of this plan, where the caller has them already; their order may be that of a plan with fewer
            dependencies, where this one never ends.

    Raises:
        UnsupportedError: a collective, or a pull of a sum (`turned.push_instead` makes pushes of those).
        PlanError: the plan is cyclic, or a rank sends or ends with what it never had.
    """
    _check(plan)
    values = values or Values(plan)
    for op_id in pulled_sums(plan, values):
        if op_id[0] == rank:
            raise UnsupportedError(
                f"plan {plan.name}, {name_op(plan, op_id)} takes a sum, and only its source knows when that is whole",
                where=plan.where(op_id),
                help="use push: the rank that adds a sum up sends it",
            )
    return _Transfer(plan, rank, values).steps()


class _Transfer:
    def __init__(self, plan: CommPlan, rank: int, values: Values) -> None:
        self._plan = plan
        self._rank = rank
        self._lane = lanes_of(plan, rank, values)
        self._own = [op_id for op_id in values.order.order if op_id[0] == rank]
        self._sums = transfer_sums(plan, rank, values)
        self._group = {op: ops for sums, _ in self._sums.values() for ops in sums for op in ops}
        self._pieces = {ops: kept for sums, _ in self._sums.values() for ops, kept in sums.items()}

    def steps(self) -> tuple[Step, ...]:
        plan, rank = self._plan, self._rank
        first: dict[int, OpId] = {}
        for op_id in self._own:
            first.setdefault(self._lane[plan.op(op_id).channel], op_id)
        lanes = sorted(lane for lane, op_id in first.items() if op_id not in self._group)
        steps: list[Step] = [Entry(plan.world > 1, needs_ready(plan)), *(Fork(lane) for lane in lanes)]
        behind: dict[int, set[OpId]] = {lane: set() for lane in lanes}
        forked = dict.fromkeys(lanes, 0)
        """How many sums stood before each lane's last fork."""
        added: dict[tuple[OpId, ...], int] = {}
        """How many sums stand before a group of operations may send theirs, that sum included."""
        waited: set[OpId] = set()
        for op_id in self._own:
            lane, group = self._lane[plan.op(op_id).channel], self._group.get(op_id)
            if group is not None and group not in added:
                kept = self._pieces[group]
                steps.append(Sum(plan.op(op_id).src.tensor, kept))
                added[group] = len(added) + 1
                waited.update(summand for piece in kept for summand in piece.summands if summand is not None)
            wanted = 0 if group is None else added[group]
            if lane not in forked or wanted > forked[lane]:
                steps.append(Fork(lane))
                forked[lane] = len(added)
                behind.setdefault(lane, set()).update(waited)
            steps += carry_out(plan, op_id, behind, lane=lane)
        joins = [Join(lane) for lane in sorted(forked)]
        results = self._results()
        steps += [*joins, *results] if self._crowded(steps) else [*results, *joins]
        steps += [Credit((rank + step) % plan.world, None) for step in range(1, plan.world)]
        return tuple(steps)

    def _results(self) -> list[Step]:
        found: list[Step] = []
        for tensor, (_, result) in self._sums.items():
            left = tuple(piece for piece in result if not piece.keep)
            if left:
                found.append(Sum(tensor, left))
        return found

    def _crowded(self, steps: list[Step]) -> bool:
        return any(
            isinstance(step, Await) or (isinstance(step, Copy) and _local(self._plan, step.op)) for step in steps
        )


def _local(plan: CommPlan, op_id: OpId) -> bool:
    op = plan.op(op_id)
    return isinstance(op, P2P) and op.src_rank == op.dst_rank


def _check(plan: CommPlan) -> None:
    for op_id, op in plan.items():
        if not isinstance(op, P2P):
            raise UnsupportedError(
                f"plan {plan.name}, {name_op(plan, op_id)}: a copy engine cannot do a collective",
                where=plan.where(op_id),
                help="write it as pushes or pulls of chunks; overlap.transfer hands plans of collectives to a library",
            )
