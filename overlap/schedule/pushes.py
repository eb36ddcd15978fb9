"""Tiles stored by their programs where they go: the slots that each run's tiles belong in, and the flags behind them.

    reduce-scatter of c[M, N], M = 136 on 4 ranks, block 32, rank 1
    tile            0        1            2            3            4
    is part of      rank 0   ranks 0, 1   ranks 1, 2   ranks 2, 3   rank 3
    ways            slot     slot, own    own, slot    two slots    slot

Every such operation has a counter of its own, behind those of chunks and also where several send one chunk: the last tile
counted in raises that operation's flag, on the rank where it lands. Tiles that a lane sends as well, of a plan that mixes the
two, are stored in the rank's own partial too and counted into their chunk, which holds the lane.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.region import Box
from overlap.errors import UnsupportedError

from .model import RankSchedule, Run, TensorWrite
from .pieces import Values, partial_sources, pieces
from .sync import assign_slots


@dataclass(frozen=True)
class Tell:
    """A counter that tiles count into, its target, and the rank and flag slot that the last of them tells.

    Target 0 is never come to: the counter holds a lane, and nobody is told.
    """

    counter: int
    target: int
    peer: int
    flag: int


@dataclass(frozen=True)
class Pushes:
    """By run: ``ways``, the operations in whose slots its tiles are stored (None: the rank's own partial), ``tells``, and
    the boxes of the global tensor that its tiles write."""

    ways: tuple[tuple[OpId | None, ...], ...]
    tells: tuple[tuple[Tell, ...], ...]
    boxes: tuple[tuple[Box, ...], ...]


def stored_ops(
    plan: CommPlan,
    rank: int,
    tensor: str,
    values: Values | None = None,
    stored: Collection[OpId] | None = None,
) -> tuple[OpId, ...]:
    """The operations of ``rank`` that its tiles carry out: they send what the kernel makes, and something at all.

    The position of an operation is that of its counter behind the counters of chunks.

    Args:
        stored: those that tiles may carry out; None: all.
    """
    sent = [op for _, ops in partial_sources(plan, rank, [tensor], values) for op in ops]
    return tuple(sorted(op for op in sent if not plan.op(op).src.box.empty and (stored is None or op in stored)))


def pushes(
    schedule: RankSchedule,
    plan: CommPlan,
    writes: Sequence[TensorWrite],
    window: Box,
    stored: Collection[OpId] | None = None,
) -> Pushes:
    """Where the tiles of each run of a schedule are stored.

    Args:
        writes: how tiles write the one tensor that the kernel makes.
        window: what the rank's kernel makes of it.
        stored: the operations that tiles carry out, as far as they can; None: all.

    Raises:
        UnsupportedError: more than one tensor is made, or tiles add to what others have stored (split-K).
    """
    tensors = {write.tensor for write in writes}
    if len(tensors) != 1:
        raise UnsupportedError(
            f"tiles that store {len(tensors)} communicated results into other ranks' memory",
            help="copy_engine carries this out",
        )
    (tensor,) = tensors
    spanned = {axis for write in writes for axis in write.axes if axis is not None}
    for axis in schedule.axes:
        if axis.name not in spanned and axis.count > 1:
            raise UnsupportedError(
                f"the tiles along {axis.name} add to the same elements of {tensor}, which another rank's memory does not "
                "start from",
                help="copy_engine carries this out",
            )
    values = Values(plan)
    first = len(schedule.counters)
    order = {op: first + i for i, op in enumerate(stored_ops(plan, schedule.rank, tensor, values, stored))}
    targets = {op: counter.target for counter in schedule.counters for op in counter.ops}
    by_counter = {counter.slot: [op for op in counter.ops if op in order] for counter in schedule.counters}
    held = {counter.slot for counter in schedule.counters if set(counter.ops) - set(order)}
    sums, result = pieces(plan, schedule.rank, tensor, values)
    staying = [p.chunk.box for p in (*(p for kept in sums.values() for p in kept), *result) if None in p.summands]
    ways: list[tuple[OpId | None, ...]] = []
    tells: list[tuple[Tell, ...]] = []
    written: list[tuple[Box, ...]] = []
    for run in schedule.runs:
        ops = [op for raised in run.raises for op in by_counter[raised.slot]]
        boxes = tuple(_box_of(run, schedule, write, window) for write in writes)
        written.append(boxes)
        holding = [raised.slot for raised in run.raises if raised.slot in held]
        own = bool(holding) or any(box.overlaps(stays) for box in boxes for stays in staying)
        # What neither leaves nor stays is stored once all the same, where it harms nobody.
        ways.append((*ops, None) if own or not ops else tuple(ops))
        holds = tuple(Tell(slot, 0, schedule.rank, 0) for slot in holding)
        tells.append((*(_tell(plan, op, order[op], targets[op]) for op in ops), *holds))
    return Pushes(tuple(ways), tuple(tells), tuple(written))


def _tell(plan: CommPlan, op_id: OpId, counter: int, target: int) -> Tell:
    op = plan.op(op_id)
    assert isinstance(op, P2P)
    return Tell(counter, target, op.dst_rank, assign_slots(plan, op.dst_rank)[op_id])


def _box_of(run: Run, schedule: RankSchedule, write: TensorWrite, window: Box) -> Box:
    """What the tiles of a run write, as a box of the global tensor."""
    lo, hi = list(window.lo), list(window.hi)
    for d, name in enumerate(write.axes):
        for axis, origin, count in zip(schedule.axes, run.origin, run.counts, strict=True):
            if axis.name == name:
                lo[d] = window.lo[d] + origin * axis.block
                hi[d] = min(window.hi[d], window.lo[d] + (origin + count) * axis.block)
    return Box(tuple(lo), tuple(hi))
