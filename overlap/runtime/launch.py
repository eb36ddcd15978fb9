"""Carries out a launch: the protocol's steps (`overlap.schedule.steps`) through a `Runtime`.

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
    entry = _entry(instance, shard, next((s for s in steps if isinstance(s, st.Entry)), _entry_step(instance)))
    warm = partial(_warm, instance, entry, bound.kernel if tiles else None, grid, arguments)
    variant = _variant(id(table), arguments)
    if variant not in instance.warmed:
        instance.warmed.add(variant)
        if instance.met:
            warm()
    instance.meet(warm)

    main = runtime.main_stream()
    if runtime.order_behind_previous(IN_FLIGHT):
        instance.memory.captured = True
    lanes: dict[int, Any] = {}
    open_lanes: set[int] = set()
    try:
        for step in steps:
            match step:
                case st.Entry():
                    runtime.launch(entry_kernel, (entry["programs"], 1, 1), (), entry, main)
                case st.Fork(lane):
                    lanes[lane] = runtime.fork(lane)
                    open_lanes.add(lane)
                case st.Kernel():
                    if tiles:
                        runtime.launch(bound.kernel, grid, (), arguments, main)
                case st.Join(lane):
                    open_lanes.discard(lane)
                    runtime.join(lanes[lane])
                case st.Credit(_, None):
                    if behind is not None:
                        behind()
                        behind = None
                    _prepared(instance, step)(main)
                case _:
                    _prepared(instance, step)(lanes[step.lane])
        if behind is not None:
            behind()
    except BaseException as error:
        instance.workspace.poison(error)
        for lane in sorted(open_lanes):
            runtime.join(lanes[lane])
        raise
    runtime.record_call(IN_FLIGHT)


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
    instance: Instance, entry: dict[str, Any], kernel: Any, grid: tuple[int, int, int], arguments: dict[str, Any]
) -> None:
    """Compiles and loads every kernel of a launch: nothing may be loaded while a kernel spins."""
    runtime = instance.runtime
    awaits = [step for step in instance.steps if isinstance(step, st.Await)]
    runtime.warm(entry_kernel, (entry["programs"], 1, 1), entry)
    if awaits:
        runtime.warm(wait_kernel, (1, 1, 1), _await_arguments(instance, awaits[0]))
    if kernel is not None:
        runtime.warm(kernel, grid, arguments, leave_room=bool(awaits))


def _prepared(instance: Instance, step: Any) -> Enqueue:
    made = instance.prepared.get(step)
    if made is None:
        match step:
            case st.Await():
                arguments = _await_arguments(instance, step)

                def made(stream: Any) -> None:
                    instance.runtime.launch(wait_kernel, (1, 1, 1), (), arguments, stream)

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


def _entry_step(instance: Instance) -> st.Entry:
    (step,) = [s for s in instance.steps if isinstance(s, st.Entry)]
    return step


def _entry(instance: Instance, shard: torch.Tensor, step: st.Entry) -> dict[str, Any]:
    """Arguments of the entry kernel; what depends on the shard's layout alone is made once."""
    key = (step, tuple(shard.stride()), shard.data_ptr() % 8, shard.storage_offset() % 8)
    made = instance.prepared.get(key)
    if made is None:
        runtime = instance.runtime
        low, high = instance.own
        own = instance.buffer.narrow(instance.operator.dim, low, high - low)
        copy = staging(shard, own)
        constants: dict[str, Any] = {
            "dst": as_words(own, copy.dtype) if copy.dims else instance.buffer,
            "state": instance.state,
            "peers": instance.peers,
            "rank": runtime.rank,
            "world": runtime.world,
            "programs": max(1, min(runtime.sm_count, -(-copy.words // ENTRY_BLOCK))),
            "instance": instance.number,
            **copy.arguments(),
            "DIMS": copy.dims,
            "WIDE": copy.words > 2**30,
            "WAIT_DONE": step.wait_done,
            "READY": step.ready,
            "BLOCK": ENTRY_BLOCK,
            "num_warps": ENTRY_WARPS,
        }
        made = instance.prepared[key] = (copy, constants)
    copy, constants = made
    return {"src": as_words(shard, copy.dtype) if copy.dims else instance.buffer, **constants}


def _await_arguments(instance: Instance, step: st.Await) -> dict[str, Any]:
    return {"flag": _flag(instance, step.op, step.rank), "state": instance.state, "num_warps": 1}


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
