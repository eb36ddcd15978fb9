"""Carries out a launch: the protocol's steps (`overlap.schedule.steps`) through a `Runtime`.

Copies are enqueued ahead of the kernel that waits for them. The other way round (`launch_steps(kernel_first=True)`) anything
that makes the host wait for the device in between, such as memory that the garbage collector frees, waits for ever;
and it was no faster (2 H100s, 26 us and 144 us a launch in a graph either way).

Everything that depends on the shape alone (views, copy descriptors, arguments of the small kernels) is made once an
instance; a call binds what its arguments bring and enqueues. Nothing here knows whether ranks are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from overlap.chunkplan.plan import P2P, Chunk
from overlap.errors import UnsupportedError
from overlap.schedule import steps as st
from overlap.schedule.table import S_EPOCH, SLOT_WORDS, done_base, flag_base

from .entry import entry_kernel, wait_kernel
from .instance import Instance
from .operator import Operator
from .resolve import Bound
from .stage import as_words, staging

STEP_FILTER: Callable[[int, tuple[st.Step, ...]], tuple[st.Step, ...]] | None = None
"""Tests put a function here that drops a step; the simulator must then find the race."""

ENTRY_BLOCK = 4096
ENTRY_WARPS = 8
IN_FLIGHT = "overlap"
"""One launch is in flight on a device at a time: two that spin side by side could each hold what the other needs."""

Enqueue = Callable[[Any], None]
"""Enqueues one prepared step on a stream."""


def launch(
    operator: Operator,
    instance: Instance,
    shard: torch.Tensor,
    bound: Bound,
    grid: tuple[int, int, int],
    behind: Callable[[], None] | None = None,
) -> None:
    """Enqueues one launch of ``operator`` on this rank: entry, copies, flags, kernel, credits, join.

    Args:
        shard: this rank's piece of the communicated tensor.
        bound: the intercepted launch; its arguments already name the gathered buffer.
        grid: its grid.
        behind: enqueues more work that reads the gathered buffer, on the main stream behind the kernel and all
            copies, and ahead of the credits that let peers overwrite it.

    Raises:
        RuntimeContractError: the grid does not enumerate the kernel's tiles.
        UnsupportedError: a wait kernel of the plan would not fit beside the grid.
    """
    runtime = instance.runtime
    schedule, table = instance.table(bound)
    tiles = sum(run.tiles for run in schedule.runs)
    arguments = {**bound.arguments, operator.ours[0]: table, operator.ours[1]: instance.state, **bound.options}
    steps = instance.steps if STEP_FILTER is None else STEP_FILTER(runtime.rank, instance.steps)
    entry = _entry(instance, shard, next((s for s in steps if isinstance(s, st.Entry)), instance.entry))
    warm = partial(_warm, instance, entry, bound.kernel if tiles else None, grid, arguments)
    variant = _variant(id(table), arguments)
    if variant not in instance.warmed:
        instance.warmed.add(variant)
        if instance.met:
            warm()
    instance.meet(warm)

    main = runtime.main_stream()
    with runtime.in_order(IN_FLIGHT) as capturing:
        if capturing:
            instance.memory.captured = True
        lanes: dict[int, Any] = {}
        open_lanes: set[int] = set()
        try:
            for step in steps:
                match step:
                    case st.Entry():
                        entry.enqueue(main, shard)
                    case st.Fork(lane):
                        lanes[lane] = runtime.fork(lane)
                        open_lanes.add(lane)
                    case st.Kernel():
                        if tiles:
                            runtime.launch(bound.kernel, grid, (), arguments, main)
                    case st.Join(lane):
                        open_lanes.discard(lane)
                        runtime.join(lanes[lane])
                    case st.Await(lane) | st.Copy(lane) | st.Raise(lane):
                        _prepared(instance, step)(lanes[lane])
                    case st.Credit(_, lane):
                        if lane is None and behind is not None:
                            behind()
                            behind = None
                        _prepared(instance, step)(main if lane is None else lanes[lane])
            if behind is not None:
                behind()
        except BaseException as error:
            instance.workspace.poison(error)
            for lane in sorted(open_lanes):
                runtime.join(lanes[lane])
            raise


def _variant(table: int, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """What Triton compiles a kernel anew for, of a launch that a table belongs to."""
    seen: list[Any] = [table]
    for value in arguments.values():
        if isinstance(value, torch.Tensor):
            seen.append((value.dtype, value.data_ptr() % 16 == 0))
        elif isinstance(value, int) and not isinstance(value, bool):
            seen.append((value == 1, value % 16 == 0))
        else:
            seen.append(value if isinstance(value, (bool, str, type(None))) else type(value))
    return tuple(seen)


def _warm(
    instance: Instance, entry: _Entry, kernel: Any, grid: tuple[int, int, int], arguments: dict[str, Any]
) -> None:
    """Compiles and loads every kernel of a launch: nothing may be loaded while a kernel spins."""
    runtime = instance.runtime
    awaits = [step for step in instance.steps if isinstance(step, st.Await)]
    entry.warm()
    for step in awaits:
        _prepared(instance, step)
    if kernel is not None:
        runtime.warm(kernel, grid, arguments, leave_room=bool(awaits))


def _prepared(instance: Instance, step: st.Await | st.Copy | st.Raise | st.Credit) -> Enqueue:
    """A step made ready, once for the instance's present memory."""
    made: Enqueue | None = instance.prepared.get(step)
    if made is None:
        match step:
            case st.Await(_, op, rank):
                arguments = {"flag": _flag(instance, op, rank), "state": instance.state, "num_warps": 1}
                made = instance.runtime.warm(wait_kernel, (1, 1, 1), arguments)
            case st.Copy(_, op):
                made = _copy(instance, op)
            case st.Raise(_, op):
                made = _raise(instance, op)
            case st.Credit(peer, _):
                made = _credit(instance, peer)
        instance.prepared[step] = made
    return made


def _word(state: torch.Tensor, slot: int) -> torch.Tensor:
    return state[slot * SLOT_WORDS : slot * SLOT_WORDS + 1]


def _flag(instance: Instance, op_id: tuple[int, int], rank: int) -> torch.Tensor:
    runtime = instance.runtime
    slot = flag_base(runtime.world) + instance.slots[rank][op_id]
    return _word(runtime.peer(instance.state, rank), slot)


def _view(tensor: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    return tensor[tuple(slice(lo, hi) for lo, hi in zip(chunk.box.lo, chunk.box.hi, strict=True))]


class _Entry:
    """The entry kernel with everything bound but the shard's address, for one layout of the shard."""

    def __init__(self, instance: Instance, shard: torch.Tensor, step: st.Entry) -> None:
        runtime = instance.runtime
        low, high = instance.own
        own = instance.buffer.narrow(instance.operator.dim, low, high - low)
        self._runtime = runtime
        self._copy = staging(shard, own)
        self._grid = (max(1, min(runtime.sm_count, -(-self._copy.words // ENTRY_BLOCK))), 1, 1)
        self._nothing = instance.buffer
        self._arguments: dict[str, Any] = {
            "src": self._source(shard),
            "dst": as_words(own, self._copy.dtype) if self._copy.dims else instance.buffer,
            "state": instance.state,
            "peers": instance.peers,
            "rank": runtime.rank,
            "world": runtime.world,
            "programs": self._grid[0],
            "instance": instance.number,
            **self._copy.arguments(),
            "DIMS": self._copy.dims,
            "WIDE": self._copy.words > 2**30,
            "WAIT_DONE": step.wait_done,
            "READY": step.ready,
            "BLOCK": ENTRY_BLOCK,
            "num_warps": ENTRY_WARPS,
        }
        self._launch: Callable[..., None] | None = None

    def _source(self, shard: torch.Tensor) -> torch.Tensor:
        return as_words(shard, self._copy.dtype) if self._copy.dims else self._nothing

    def warm(self) -> Callable[..., None]:
        """Compiles and binds it, once; keeps no shard alive."""
        if self._launch is None:
            self._launch = self._runtime.warm(entry_kernel, self._grid, self._arguments, later=("src",))
            self._arguments = {}
        return self._launch

    def enqueue(self, stream: Any, shard: torch.Tensor) -> None:
        self.warm()(stream, src=self._source(shard))


def _entry(instance: Instance, shard: torch.Tensor, step: st.Entry) -> _Entry:
    """The entry kernel for a shard of this layout."""
    key = (step, tuple(shard.stride()), shard.data_ptr() % 16, shard.storage_offset() % 8)
    made = instance.prepared.get(key)
    if made is None:
        made = instance.prepared[key] = _Entry(instance, shard, step)
    return made


def _copy(instance: Instance, op_id: tuple[int, int]) -> Enqueue:
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    if op.src_rank == op.dst_rank:
        raise UnsupportedError("a copy inside one rank would run as a kernel behind the grid", help="read it in place")
    src = _view(instance.at(op.src_rank), op.src)
    dst = _view(instance.at(op.dst_rank), op.dst)
    return instance.runtime.copier(dst, src)


def _raise(instance: Instance, op_id: tuple[int, int]) -> Enqueue:
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    epoch = _word(instance.runtime.peer(instance.state, op.src_rank), S_EPOCH)
    return instance.runtime.copier(_flag(instance, op_id, op.dst_rank), epoch)


def _credit(instance: Instance, peer: int) -> Enqueue:
    runtime = instance.runtime
    done = _word(runtime.peer(instance.state, peer), done_base(runtime.world) + runtime.rank)
    return runtime.copier(done, _word(instance.state, S_EPOCH))
