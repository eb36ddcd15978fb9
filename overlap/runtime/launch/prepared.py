"""Steps of a launch made ready once for an instance's memory: each becomes a function that enqueues it on a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from overlap.chunkplan.plan import P2P, OpId
from overlap.schedule import steps as st
from overlap.schedule.far import CARRY_PROGRAMS
from overlap.schedule.model import Counter
from overlap.schedule.table import S_EPOCH, SLOT_WORDS, counter_base, done_base, flag_base

from ..bound_plan import BoundPlan
from ..group.reach import far
from ..instance import LaunchTable
from ..kernels.credits import credits_kernel
from ..kernels.entry import carry_kernel, credit_kernel, gather_kernel, wait_kernel
from ..kernels.reduce import sum_kernel
from ..nvshmem.far_moves import lane_words
from ..protocol import Runtime
from ..repeat.places import Place
from ..tables.sums import addition, check_pieces, sum_table
from ..tracing.recording import marked
from .elsewhere import stored_at

SUM_WARPS = 8
SUM_PROGRAMS = 2
"""Programs of the sum kernel a multiprocessor, at most: enough to read at full speed, and room for others beside it."""
BESIDE_WARPS, BESIDE_PROGRAMS = 4, 1
"""The same of sums beside a kernel: what the largest tiles of our products leave of a multiprocessor's registers holds one such
program (tests/compile/test_sum.py), so that a sum spreads over all of them, and not only over those that are left free. On four
H200s the sum of half of 16 MiB took 175 us on 4 free ones (docs/performance.md, "Sums while the kernel runs")."""
CARRY_WARPS = 4
"""Of programs that carry an operation between nodes: few enough to find room beside a kernel's."""

Enqueue = Callable[..., None]
"""Enqueues one prepared step on a stream; what a call carries (`places.Carried`) comes second where the step reads it."""

LaneStep = st.Await | st.Hold | st.Whole | st.Gather | st.Copy | st.Raise


def lane_step(instance: BoundPlan, table: LaunchTable | None, step: LaneStep | st.Credit) -> Enqueue | None:
    """A step made ready, once for the instance's present memory. None: there is nothing to enqueue."""
    if isinstance(step, st.Hold):
        assert table is not None, "only what tiles make is held"
        return _hold(instance, table, table.counters[step.op])
    if isinstance(step, st.Whole):
        assert table is not None, "only what tiles make is waited for"
        return _hold(instance, table, table.chunks[step.chunk])
    made: Enqueue | None = instance.prepared.get(step)
    if made is None:
        match step:
            case st.Await(_, op, rank):
                arguments = {"flag": flag_word(instance, op, rank), "state": instance.state, "num_warps": 1}
                made = instance.runtime.warm(wait_kernel, (1, 1, 1), arguments)
            case st.Gather(_, ops):
                made = _gather(instance, ops)
            case st.Copy(_, op):
                made = _copy(instance, op)
            case st.Raise(_, op):
                made = _raise(instance, op)
            case st.Credit(peer, _):
                made = _credit(instance, peer)
        instance.prepared[step] = made
    return made


class SumLaunch(NamedTuple):
    """A sum kernel's grid and arguments, for results of one layout; ``out`` is bound to where a call has its own."""

    grid: tuple[int, int, int]
    arguments: dict[str, Any]
    results: bool

    def bound(self, runtime: Runtime, out: torch.Tensor, place: Place | None) -> Enqueue:
        """The launch, called with a stream and what a call carries; ``out``: a result of the layout, which is not kept."""
        later = {"out": place} if self.results else {}
        return runtime.warm(
            sum_kernel, self.grid, {**self.arguments, "out": out} if later else self.arguments, later=later
        )


def sum_step(instance: BoundPlan, step: st.Sum, out: torch.Tensor, credited: tuple[int, ...] = ()) -> SumLaunch | None:
    """A sum made ready, once for results of the layout of ``out``. None: nothing to add.

    Args:
        credited: peers that pointers reach, whose credits its last program gives, as it raises the flags of what is stored.

    Raises:
        UnsupportedError: a reduction or dtype that is not carried out.
    """
    key = (step, *layout_of(out), credited)
    if key not in instance.prepared:
        instance.prepared[key] = _sum(instance, step, out, credited)
    made: SumLaunch | None = instance.prepared[key]
    return made


def layout_of(out: torch.Tensor) -> tuple[Any, ...]:
    """What the launches that write a result depend on."""
    return out.dtype, out.stride(), out.data_ptr() % 16


def _sum(instance: BoundPlan, step: st.Sum, out: torch.Tensor, credited: tuple[int, ...]) -> SumLaunch | None:
    runtime, part = instance.runtime, instance.parts[step.tensor]
    pieces = [piece for piece in step.pieces if not piece.chunk.box.empty]
    if not pieces:
        return None
    accumulator = check_pieces(pieces, part.dtype)
    slots, strides = instance.slots[runtime.rank], out.stride()
    additions = []
    for piece in pieces:
        stores = stored_at(instance, piece, step.stores, part)
        additions.append(addition(piece, part.layout, slots, runtime.world, part.held, strides, stores))
    # What a sum waits for may be carried by kernels, of this rank and of others: half of the multiprocessors is theirs.
    follows = step.lane is None
    warps, each = (SUM_WARPS, SUM_PROGRAMS) if follows else (BESIDE_WARPS, BESIDE_PROGRAMS)
    table = sum_table(additions, part.dtype.itemsize, warps)
    most = max(1, runtime.sm_count // 2) if instance.networked else each * runtime.sm_count
    programs = max(1, min(most, table.blocks))
    told = _done_addresses(instance, credited)
    told += [_landing_flag(instance, op).data_ptr() for op in step.stores]
    arguments = {
        "data": part.data,
        # A sum that a later operation sends on writes no result, but the kernel takes an address.
        "out": part.data,
        "table": instance.workspace.table(table.values, bits=64),
        "state": instance.state,
        "pieces": table.pieces,
        "programs": programs,
        "peers": instance.workspace.table(told, bits=64) if told else instance.state,
        "credits": len(told),
        "DIMS": table.dims,
        "WIDE": table.words > 2**30,
        "VEC": table.vec,
        "SUMMANDS": 2 if table.widest <= 2 else 4,
        "ACCUMULATOR": accumulator,
        "BLOCK": table.block,
        "CREDITS": bool(told),
        "STORES": bool(step.stores),
        "num_warps": warps,
    }
    return SumLaunch((programs, 1, 1), arguments, any(piece.out for piece in step.pieces))


def _hold(instance: BoundPlan, table: LaunchTable, counter: Counter) -> Enqueue | None:
    """The counter belongs to the schedule, so this is made once for each of an instance's tables."""
    if counter.target == 0:
        return None
    key = (table, counter.slot)
    made: Enqueue | None = instance.prepared.get(key)
    if made is None:
        slot = counter_base(instance.runtime.world, instance.memory.room.flags) + counter.slot
        made = instance.prepared[key] = instance.runtime.holder(_word(instance.state, slot), counter.target)
    return made


def _gather(instance: BoundPlan, ops: Sequence[OpId]) -> Enqueue:
    return instance.runtime.warm(gather_kernel, (1, 1, 1), gather_arguments(instance, ops))


def gather_arguments(instance: BoundPlan, ops: Sequence[OpId]) -> dict[str, Any]:
    """Arguments of the kernel that waits until all of ``ops`` have landed here."""
    runtime = instance.runtime
    slots = instance.slots[runtime.rank]
    words = [(flag_base(runtime.world) + slots[op]) * SLOT_WORDS for op in ops]
    table = instance.workspace.table(words, bits=64)
    return {"words": table, "count": len(words), "state": instance.state, "num_warps": 1}


def _word(state: torch.Tensor, slot: int) -> torch.Tensor:
    return state[slot * SLOT_WORDS : slot * SLOT_WORDS + 1]


def flag_word(instance: BoundPlan, op_id: OpId, rank: int) -> torch.Tensor:
    """The flag that says on ``rank`` that an operation has landed there."""
    runtime = instance.runtime
    slot = flag_base(runtime.world) + instance.slots[rank][op_id]
    return _word(runtime.peer(instance.state, rank), slot)


def _landing_flag(instance: BoundPlan, op_id: OpId) -> torch.Tensor:
    """The flag that an operation raises where it lands."""
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    return flag_word(instance, op_id, op.dst_rank)


def _copy(instance: BoundPlan, op_id: OpId) -> Enqueue:
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    if instance.by_network(op_id):
        return _carry(instance, op_id)
    src = instance.parts[op.src.tensor].source(op_id)
    dst = instance.parts[op.dst.tensor].destination(op_id)
    return marked(instance, op_id, instance.runtime.copier(dst, src))


def _carry(instance: BoundPlan, op_id: OpId) -> Enqueue:
    """An operation through NVSHMEM, by a kernel that raises its flag too."""
    words, parts = lane_words(instance, op_id)
    arguments = {"words": instance.workspace.table(words, bits=64), "state": instance.state, "num_warps": CARRY_WARPS}
    grid = (max(1, min(CARRY_PROGRAMS, parts)), 1, 1)
    return instance.runtime.warm(carry_kernel, grid, {**arguments, **instance.runtime.linked})


def _raise(instance: BoundPlan, op_id: OpId) -> Enqueue | None:
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    if instance.by_network(op_id):
        return None
    epoch = _word(instance.runtime.peer(instance.state, op.src_rank), S_EPOCH)
    return instance.runtime.copier(_landing_flag(instance, op_id), epoch)


def credits_step(instance: BoundPlan, peers: Sequence[int]) -> list[Enqueue]:
    """Credits behind everything else on the main stream, where a kernel finds room: one for all peers that pointers reach.

    On a lane a kernel could starve behind the grid, so credits there are copies.
    """
    runtime = instance.runtime
    near = reached(instance, peers)
    made: Enqueue | None = instance.prepared.get(("credits", near))
    if near and made is None:
        words = _done_words(instance, near)
        arguments = {"words": words, "count": len(near), "state": instance.state, "num_warps": 1}
        made = instance.prepared[("credits", near)] = runtime.warm(credits_kernel, (1, 1, 1), arguments)
    others = [lane_step(instance, None, st.Credit(peer, None)) for peer in peers if peer not in near]
    return [enqueue for enqueue in (made, *others) if enqueue is not None]


def reached(instance: BoundPlan, peers: Sequence[int]) -> tuple[int, ...]:
    """Those of ``peers`` whose memory pointers reach."""
    return tuple(peer for peer in peers if not far(instance.runtime, peer))


def _done_words(instance: BoundPlan, peers: Sequence[int]) -> torch.Tensor:
    """Where the addresses stand of the words by which peers know that this rank is done with what they sent."""
    return instance.workspace.table(_done_addresses(instance, peers), bits=64)


def _done_addresses(instance: BoundPlan, peers: Sequence[int]) -> list[int]:
    return [_done(instance, peer).data_ptr() for peer in peers]


def _done(instance: BoundPlan, peer: int) -> torch.Tensor:
    """The word by which a peer knows that this rank is done with it."""
    runtime = instance.runtime
    return _word(runtime.peer(instance.state, peer), done_base(runtime.world) + runtime.rank)


def _credit(instance: BoundPlan, peer: int) -> Enqueue:
    runtime = instance.runtime
    if far(runtime, peer):
        place = (done_base(runtime.world) + runtime.rank) * SLOT_WORDS
        words = instance.workspace.table([instance.memory.addresses[peer], place], bits=64)
        return runtime.warm(
            credit_kernel, (1, 1, 1), {"state": instance.state, "words": words, "num_warps": 1, **runtime.linked}
        )
    return runtime.copier(_done(instance, peer), _word(instance.state, S_EPOCH))
