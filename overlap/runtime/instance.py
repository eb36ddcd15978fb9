"""`Instance`: one operator on one group for global shapes: its plan on that group, and its kernel's tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from overlap import settings
from overlap.backends.carriers import moves_strided
from overlap.backends.ways import machine_of
from overlap.chunkplan.collectives.direct import handed_over
from overlap.chunkplan.order import happens_before
from overlap.chunkplan.plan import Chunk, CommPlan, OpId
from overlap.chunkplan.verify import verify_contributions, verify_plan
from overlap.errors import RuntimeContractError, ScheduleError, UnsupportedError
from overlap.schedule import tile_sums
from overlap.schedule.early import can_be_early, in_rounds
from overlap.schedule.interleave import levels, moves_ahead
from overlap.schedule.machine import Machine, machine_for
from overlap.schedule.model import AxisTiles, Counter, RankSchedule, TensorRead, TensorWrite
from overlap.schedule.pieces import Piece
from overlap.schedule.pushes import pushes
from overlap.schedule.runs import schedule_rank
from overlap.schedule.steps import Kernel, Step, launch_steps, with_library
from overlap.schedule.strided import narrow_by
from overlap.schedule.table import to_words
from overlap.schedule.verify_steps import verify_steps
from overlap.schedule.words import word_steps

from .bound_plan import BoundPlan
from .calls.resolve import Bound
from .group.reach import check_reach, through_network
from .launch.elsewhere import stored_by
from .memory.need import Need, counters_of, need_of
from .memory.part import Given, Part
from .operator import Operator
from .protocol import Runtime
from .tables.hosteval import on_host
from .tables.inline_words import InlineWords, Receiver
from .tables.slots import Slots, slots_of
from .tables.tile_sums import summand_records
from .workspace import Memory, plan_for, plans_for, workspace_of


@dataclass(frozen=True, eq=False)
class LaunchTable:
    """The schedule of this rank for the block sizes and sizes of a launch, and its device table.

    ``counters``: by the operation that a counter holds back. ``slots``: where tiles are stored, if in other ranks' memory.
    ``receivers``: by run, who is sent its tiles in words, if anybody is. ``finished``: by run, the piece of the
    result that its tiles add up, and ``records`` the table of what they add, if they do.
    """

    schedule: RankSchedule
    words: Any
    tiles: int
    counters: dict[OpId, Counter]
    slots: Slots | None = None
    receivers: tuple[tuple[Receiver, ...], ...] | None = None
    finished: tuple[Piece | None, ...] | None = None
    records: Any = None

    @cached_property
    def chunks(self) -> dict[Chunk, Counter]:
        """The counters by what they count."""
        return {counter.chunk: counter for counter in self.schedule.counters}


class Instance(BoundPlan):
    """Plan and tables of one operator on one group for global shapes. Made by `instance_for`, on all ranks at once.

    Args:
        given: what calls bring of each communicated tensor, their orders settled.
        sum_sms: multiprocessors that the kernel leaves free for sums, where they can be made while it runs.
        store_sums: sums are stored where they are sent to by the launch that makes them.
    """

    parts: dict[str, Part]
    """By the tensor's name, in the order of the operator's ``comms``."""
    known_as: Any
    """Its key among the runtime's instances."""

    def __init__(
        self,
        operator: Operator,
        runtime: Runtime,
        given: Sequence[Given],
        sum_sms: int = 0,
        store_sums: bool = False,
    ) -> None:
        self.operator = operator
        plan = _narrowed(operator, plan_for(operator, runtime.world, [g.shape for g in given]), given)
        produced = [comm.tensor for comm in operator.comms if comm.produced]
        self.sum_sms = sum_sms
        plan, self.early = _in_rounds(operator, plan, produced) if self.sum_sms else (plan, False)
        verify_plan(plan)
        check_reach(plan, runtime, operator.carriers.backend_of)
        self.ordered = operator.carriers.ordered(plan)
        self.stored, self.moved = operator.carried(plan)
        """The operations of all ranks that kernels store, as far as tiles make what they send, and that they move."""
        self.direct = _handed_over(operator, runtime, given)
        """By tensor, the plan whose collectives a library carries out."""
        for comm in operator.comms:
            if comm.reduces and comm.tensor not in self.direct:
                verify_contributions(plan, comm.tensor)
        happens, carriers = happens_before(plan), operator.carriers
        slotted = () if carriers.words else self.stored
        parts = {
            comm.tensor: Part(comm, plan, runtime, g, happens, slotted, comm.tensor in self.direct, carriers.words)
            for comm, g in zip(operator.comms, given, strict=True)
        }
        self.part: Part = parts[operator.tensor]
        self.shape = self.part.shape
        self._writes = tuple(TensorWrite(w.tensor, w.axes) for w in operator.writes)
        self._schedules: dict[Any, RankSchedule] = {}
        self.words: InlineWords | None = None
        """What the kernel sends and adds up in words, if it does."""
        self.sums_store: frozenset[OpId] = frozenset()
        """Operations of all ranks that sums carry out."""
        if store_sums and not (carriers.words or self.direct):
            self.sums_store = stored_by(operator, plan, runtime, parts)
        steps: tuple[Step, ...]
        if carriers.words:
            steps = word_steps(plan, runtime.rank, produced)
            self.words = InlineWords(plan, self.part, runtime.rank)
        else:
            steps = launch_steps(
                plan,
                runtime.rank,
                produced=produced,
                stores=self.stored,
                moves=self.moved,
                early=self.early,
                sums_store=self.sums_store,
            )
            steps = with_library(steps, self.direct, produced)
        if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" and 0 < len(self.moved) < sum(map(len, plan.ops)):
            _refuse_blocking(plan, operator, produced, self)
        shapes = [part.shape for part in parts.values()]
        super().__init__(
            plan,
            runtime,
            parts,
            steps,
            need_of(plan, produced, [part.size for part in parts.values()], self.stored, self.moved, early=self.early)
            if self.words is None
            else Need(tuple(part.size for part in parts.values()), 0, 0, self.words.words),
            workspace_of(operator, runtime, tuple(g.dtype for g in given)),
            shapes[0] if len(shapes) == 1 else tuple(shapes),
        )

    def _bind(self, memory: Memory) -> None:
        super()._bind(memory)
        self._tables: dict[Any, LaunchTable] = {}

    def _tables_made(self) -> list[Any]:
        return [*super()._tables_made(), self._tables]

    def by_network(self, op_id: OpId) -> bool:
        """Whether NVSHMEM carries an operation of this rank: its backend does, and does not reach the other rank by pointer."""
        carrier, other = self.operator.carriers.backend_of(self.plan.op(op_id)), self._other(op_id)
        return other is not None and carrier.far and through_network(self.runtime, other)

    def sender(self, address: int) -> tuple[str, Any] | None:
        if self.words is None or self.memory.words is None:
            return None
        found = self.words.sender(address - self.memory.words.data_ptr(), self.memory.room.words, self.plan)
        return None if found is None else (found[0], self.plan.where(found[1]) if found[1] is not None else None)

    @property
    def title(self) -> str:
        return f"`{self.operator.name}` on {self.shape}"

    @property
    def made(self) -> Part:
        """The (first) tensor that the kernel makes."""
        return next(part for part in self.parts.values() if part.made)

    @cached_property
    def first_move_counter(self) -> int:
        """Of this rank's counters, those that count the parts of moves begin here: one for each operation of its list."""
        produced = [part.comm.tensor for part in self.parts.values() if part.made]
        return counters_of(self.plan, self.runtime.rank, produced, self.stored, early=self.early)

    def moves_ahead(self, schedule: RankSchedule) -> tuple[int, ...]:
        """By run, how many moves a program makes its parts of before it waits; () where others make them, or nobody."""
        if not (self.operator.moves and self.operator.mover.inline):
            return ()
        moves = next((step.moves for step in self.steps if isinstance(step, Kernel)), ())
        return moves_ahead(schedule, moves, self._levels)

    @cached_property
    def _levels(self) -> dict[OpId, int]:
        return levels(happens_before(self.plan))

    @property
    def buffer(self) -> torch.Tensor:
        """What the kernel of this rank gets for the first communicated tensor, in the user's dimension order."""
        return self.part.tensor

    def table(self, bound: Bound, finish: bool = False) -> LaunchTable:
        """The schedule of this rank and its device table, for the block sizes and sizes of a launch; cached by them.

        Args:
            finish: tiles of the rank's own part add what comes of it, where they can.

        Raises:
            RuntimeContractError: an extent that the launch passes is not that of a communicated tensor.
        """
        operator = self.operator
        arguments = bound.arguments
        sizes = tuple(axis.sizes(arguments) for axis in operator.axes)
        constants = {name: _plain(arguments[name]) for name in _keyword_only(operator.tile_map)}
        key = (sizes, tuple(sorted(constants.items())), finish)
        found = self._tables.get(key)
        if found is None:
            schedule = self._schedules.get(key)
            if schedule is None:
                schedule = self._schedules[key] = self._schedule(sizes, constants, finish)
            pushed, slots, receivers = None, None, None
            if self.operator.carriers.storing:
                writes = [w for w in self._writes if w.tensor == self.made.comm.tensor]
                pushed = pushes(schedule, self.plan, writes, self.made.window, self.stored)
                if self.words is None:
                    slots = slots_of(self, pushed)
                else:
                    receivers = self.words.receivers(pushed)
            finished = tile_sums.finished(self.plan, schedule, self._writes, self.made.window) if finish else None
            records, begins = (None, None) if finished is None else summand_records(self, finished)
            ahead = self.moves_ahead(schedule)
            sent = None if receivers is None else [len(several) for several in receivers]
            words = self.workspace.table(to_words(schedule, self.memory.room.flags, pushed, ahead, sent, begins))
            counters = {op: counter for counter in schedule.counters for op in counter.ops}
            tiles = sum(run.tiles for run in schedule.runs)
            found = LaunchTable(schedule, words, tiles, counters, slots, receivers, finished, records)
            self._tables[key] = found
        return found

    def _schedule(self, sizes: tuple[tuple[int, int], ...], constants: dict[str, Any], finish: bool) -> RankSchedule:
        operator = self.operator
        axes = []
        for axis, (extent, block) in zip(operator.axes, sizes, strict=True):
            axes.append(AxisTiles(axis.name, extent, block))
            for part in self.parts.values():
                for d, name in enumerate(part.comm.dims):
                    if name == axis.name and extent != part.window.shape[d]:
                        what = "makes" if part.comm.produced else "sees"
                        raise RuntimeContractError(
                            f"the launch passes {axis.extent}={extent}; of `{part.comm.tensor}` the kernel {what} "
                            f"{part.window.shape[d]} along {axis.name}"
                        )
        mapping = on_host(operator.tile_map)

        def tile_map(tile: int, counts: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(mapping(tile, *counts, **constants))

        return schedule_rank(
            self.plan,
            tuple(TensorRead(r.tensor, r.axes, r.wraps) for r in operator.reads),
            tuple(axes),
            self.runtime.rank,
            writes=self._writes,
            windows={name: part.window for name, part in self.parts.items()},
            ordered=self.ordered,
            tile_map=tile_map,
            machine=self.machine,
            itemsize=self.itemsize,
            early=self.early,
            finish=finish,
        )

    @cached_property
    def machine(self) -> Machine:
        """Whose times decide in which order chunks are used; the same on every rank."""
        operator = self.operator
        machine = machine_for(self.runtime.world, self.plan.mesh, operator.realization.machine)
        produced = [comm.tensor for comm in operator.comms if comm.produced]
        return machine_of(machine, self.plan, operator.carriers, produced, operator.realization.comm_sms)

    @property
    def itemsize(self) -> dict[str, float]:
        """Bytes of an element of each communicated tensor."""
        return {name: part.dtype.itemsize for name, part in self.parts.items()}


def _narrowed(operator: Operator, plan: CommPlan, given: Sequence[Given]) -> CommPlan:
    """The plan with small strided chunks by the realization's backend for them, if it has one."""
    how = operator.realization
    for comm, each in zip(operator.comms, given, strict=True):
        if how.strided and moves_strided(how.backend, how.strided, comm.produced):
            order = each.order or tuple(range(len(each.shape)))
            limit, size = settings.get("strided_row_bytes"), each.dtype.itemsize
            plan = narrow_by(
                plan, comm.tensor, how.strided, order=order, itemsize=size, limit=limit, produced=comm.produced
            )
    return plan


def _in_rounds(operator: Operator, plan: CommPlan, produced: Sequence[str]) -> tuple[CommPlan, bool]:
    """The plan in the order that serves sums beside the kernel, and whether there are any."""
    rounds = in_rounds(plan, produced)
    early = can_be_early(rounds, produced, operator.carried(rounds)[0])
    return (rounds, True) if early else (plan, False)


def _handed_over(operator: Operator, runtime: Runtime, given: Sequence[Given]) -> dict[str, CommPlan]:
    """By tensor, the plans of collectives.

    Raises:
        PlanError: one does not keep its promise.
    """
    found = {}
    for comm, plan in zip(operator.comms, plans_for(operator, runtime.world, [g.shape for g in given]), strict=True):
        if not handed_over(plan):
            continue
        verify_plan(plan)
        if comm.reduces:
            verify_contributions(plan, comm.tensor)
        found[comm.tensor] = plan
    return found


def _refuse_blocking(plan: CommPlan, operator: Operator, produced: Sequence[str], instance: Instance) -> None:
    """Refuses a launch with copies that wait for a move of the kernel which waits for them, on hosts that wait for kernels.

    Raises:
        UnsupportedError: with the chain of waits.
    """
    stored, moved = instance.stored, instance.moved
    steps = [launch_steps(plan, rank, produced=produced, stores=stored, moves=moved) for rank in range(plan.world)]
    try:
        verify_steps(steps, plan, produced, blocking=True)
    except ScheduleError as error:
        raise UnsupportedError(
            f"CUDA_LAUNCH_BLOCKING=1 and `{operator.name}`: {error.message}",
            where=plan.where(),
            help="unset it, or let operations that depend on each other be carried out by one backend",
        ) from None


def _keyword_only(function: Any) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
