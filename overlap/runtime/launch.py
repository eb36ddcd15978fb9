"""Carries out a launch: the protocol's steps (`overlap.schedule.steps`) through a `Runtime`.

Nothing here knows whether ranks are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overlap.chunkplan.plan import P2P, Chunk
from overlap.errors import RuntimeContractError, UnsupportedError
from overlap.schedule import steps as st
from overlap.schedule.table import S_EPOCH, SLOT_WORDS, done_base, flag_base

from .entry import entry_kernel, wait_kernel
from .instance import Instance
from .operator import Operator
from .resolve import Bound

STEP_FILTER: Callable[[int, tuple[st.Step, ...]], tuple[st.Step, ...]] | None = None
"""Tests put a function here that drops a step; the simulator must then find the race."""

ENTRY_BLOCK = 4096
ENTRY_WARPS = 8


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
    """
    runtime = instance.runtime
    schedule, table = instance.table(bound)
    tiles = sum(run.tiles for run in schedule.runs)
    main = runtime.main_stream()
    runtime.order_behind_previous(instance)
    steps = instance.steps if STEP_FILTER is None else STEP_FILTER(runtime.rank, instance.steps)
    lanes: dict[int, Any] = {}
    open_lanes: set[int] = set()
    try:
        for step in steps:
            match step:
                case st.Entry():
                    _entry(instance, shard, step, main)
                case st.Fork(lane):
                    lanes[lane] = runtime.fork(lane)
                    open_lanes.add(lane)
                case st.Await(lane, op, rank):
                    _await(instance, op, rank, lanes[lane])
                case st.Copy(lane, op):
                    _copy(instance, op, lanes[lane])
                case st.Raise(lane, op):
                    _raise(instance, op, lanes[lane])
                case st.Kernel():
                    if tiles:
                        arguments = {**bound.arguments, operator.ours[0]: table, operator.ours[1]: instance.state}
                        runtime.launch(bound.kernel, grid, (), {**arguments, **bound.options}, main)
                case st.Credit(peer, lane):
                    if lane is None and behind is not None:
                        behind()
                        behind = None
                    _credit(instance, peer, main if lane is None else lanes[lane])
                case st.Join(lane):
                    open_lanes.discard(lane)
                    runtime.join(lanes[lane])
        if behind is not None:
            behind()
    except BaseException:
        for lane in sorted(open_lanes):
            runtime.join(lanes[lane])
        raise
    runtime.record_call(instance)


def _word(state: torch.Tensor, slot: int) -> torch.Tensor:
    return state[slot * SLOT_WORDS : slot * SLOT_WORDS + 1]


def _flag(instance: Instance, op_id: tuple[int, int], rank: int) -> torch.Tensor:
    runtime = instance.runtime
    slot = flag_base(runtime.world) + instance.slots[rank][op_id]
    return _word(runtime.peer(instance.state, rank), slot)


def _view(tensor: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    return tensor[tuple(slice(lo, hi) for lo, hi in zip(chunk.box.lo, chunk.box.hi, strict=True))]


def _entry(instance: Instance, shard: torch.Tensor, step: st.Entry, main: Any) -> None:
    runtime = instance.runtime
    low, high = instance.own
    own = instance.buffer.narrow(instance.operator.dim, low, high - low)
    sizes, src_strides, dst_strides = collapse(shard, own)
    numel = shard.numel()
    programs = max(1, min(runtime.sm_count, -(-numel // ENTRY_BLOCK)))
    arguments: dict[str, Any] = {
        "src": shard if numel else instance.buffer,
        "dst": own if numel else instance.buffer,
        "state": instance.state,
        "peers": instance.peers,
        "rank": runtime.rank,
        "world": runtime.world,
        "programs": programs,
        "STAGE": numel > 0,
        "WAIT_DONE": step.wait_done,
        "READY": step.ready,
        "BLOCK": ENTRY_BLOCK,
        "num_warps": ENTRY_WARPS,
    }
    for i in range(4):
        arguments[f"n{i}"], arguments[f"s{i}"], arguments[f"d{i}"] = sizes[i], src_strides[i], dst_strides[i]
    runtime.launch(entry_kernel, (programs, 1, 1), (), arguments, main)


def _await(instance: Instance, op_id: tuple[int, int], rank: int, stream: Any) -> None:
    arguments = {"flag": _flag(instance, op_id, rank), "state": instance.state, "num_warps": 1}
    instance.runtime.launch(wait_kernel, (1, 1, 1), (), arguments, stream)


def _copy(instance: Instance, op_id: tuple[int, int], stream: Any) -> None:
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    if op.src_rank == op.dst_rank:
        raise UnsupportedError("a copy inside one rank would run as a kernel behind the grid", help="read it in place")
    src = _view(instance.at(op.src_rank), op.src)
    dst = _view(instance.at(op.dst_rank), op.dst)
    if src.numel():
        instance.runtime.copy(dst, src, stream)


def _raise(instance: Instance, op_id: tuple[int, int], stream: Any) -> None:
    op = instance.plan.op(op_id)
    assert isinstance(op, P2P)
    epoch = _word(instance.runtime.peer(instance.state, op.src_rank), S_EPOCH)
    instance.runtime.copy(_flag(instance, op_id, op.dst_rank), epoch, stream)


def _credit(instance: Instance, peer: int, stream: Any) -> None:
    runtime = instance.runtime
    done = _word(runtime.peer(instance.state, peer), done_base(runtime.world) + runtime.rank)
    runtime.copy(done, _word(instance.state, S_EPOCH), stream)


def collapse(src: torch.Tensor, dst: torch.Tensor) -> tuple[list[int], list[int], list[int]]:
    """Sizes and strides of an element-wise copy, merged to four dimensions.

    Args:
        src, dst: tensors of one shape.

    Raises:
        RuntimeContractError: more than four dimensions remain after merging neighbours.
    """
    merged: list[tuple[int, int, int]] = []
    order = sorted(range(dst.dim()), key=lambda d: -dst.stride(d))
    for d in order:
        n, s, t = dst.shape[d], src.stride(d), dst.stride(d)
        if n == 1:
            continue
        if merged and merged[-1][1] == n * s and merged[-1][2] == n * t:
            merged[-1] = (merged[-1][0] * n, s, t)
        else:
            merged.append((n, s, t))
    if len(merged) > 4:
        raise RuntimeContractError(
            f"a shard of shape {tuple(src.shape)} and strides {src.stride()} needs {len(merged)} loops to stage",
            help="make it contiguous first",
        )
    merged = [(1, 0, 0)] * (4 - len(merged)) + merged
    return [m[0] for m in merged], [m[1] for m in merged], [m[2] for m in merged]
