"""`CudaRuntime`: the protocol on GPUs of one host, with side streams and peer copies by the copy engine.

    main    entry kernel | GEMM ............................... | wait_event(side)
    side    wait_event(main) | cuMemcpy chunk | cuMemcpy epoch -> flag | ... | record_event

Every copy is a driver call between two devices: a copy inside one device would run as a kernel and starve
behind a grid that fills the multiprocessors. Ranks meet through the group's store, never through a collective.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from overlap import settings
from overlap.chunkplan.plan import CommPlan
from overlap.errors import OverlapError, RuntimeContractError

from ..faults.deadline import Watch, spins_for
from ..group.library import Boxed, call_all
from ..group.meeting import Meetings
from ..group.reach import far, nodes_by, nodes_of, refuse
from ..memory.copies import plan_copy
from ..nvshmem.device_code import calls_nvshmem, link_options, stand_in_options
from ..protocol import NONE_LATER
from ..providers import Provider, choose_provider
from ..repeat.places import Place
from .bound_launch import bound_launch
from .call_graph import CallGraph, Recorder, Recording
from .compiled import compiled, require_room, resident_blocks
from .driver import Calls, CopyOut, Graph, Stream, brings, chain, copy_call, hold_call, length
from .lanes import InOrder, Lanes, capture_of, forget_calls, last_call, own_lane, pool_stream
from .scratch import scratch

GRAPH_FROM = 4
"""Calls of the driver from which on a lane that is launched often becomes a graph."""
NO_GRAPH = (RuntimeContractError, RuntimeError, AttributeError)
"""What a driver raises that records no such work, or has not got the functions."""
_LOG = logging.getLogger("overlap")
_RAW_STREAM: Any = getattr(torch._C, "_cuda_getCurrentRawStream", int)


class CudaRuntime:
    """One rank's runtime on a torch process group. Made once a group by `runtime_for_group`."""

    overlap_last: Any = None
    """The instance that was called last (`instances.called_last`)."""

    def __init__(self, group: Any, provider: Provider | None = None) -> None:
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.world: int = dist.get_world_size(group)
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._index: int = torch.cuda.current_device()
        self.sm_count: int = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.launches_early = torch.version.hip is None and torch.cuda.get_device_capability(self.device) >= (9, 0)
        self.meetings = Meetings(dist.distributed_c10d._get_process_group_store(group), self.rank, self.world)
        self._provider = provider
        self._nodes: tuple[int, ...] | None = None
        self._allocations: dict[int, tuple[int, list[torch.Tensor | None]]] = {}
        self._lanes = Lanes(partial(pool_stream, self.device))
        self._streams: dict[int, Stream] = {}
        self._lane_recorder: Stream | None = None
        self._recorder: Recorder | None = None

    @property
    def blocking(self) -> bool:
        return os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"

    @property
    def one_queue(self) -> bool:
        return os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"

    @property
    def nodes(self) -> tuple[int, ...]:
        """Collective at first use. Raises RuntimeContractError where ranks are told differently."""
        if self._nodes is None:
            ranks = settings.get("node_ranks")
            told = self.agree("the nodes of ranks", (ranks, socket.gethostname()))
            for rank, (theirs, _) in enumerate(told):
                if theirs != ranks:
                    raise RuntimeContractError(
                        f"OVERLAP_NODE_RANKS is {ranks} on rank {self.rank}, {theirs} on rank {rank}",
                        help="set it to the same on every rank",
                    )
            self._nodes = nodes_by([host for _, host in told]) if ranks is None else nodes_of(self.world, ranks)
        return self._nodes

    @property
    def pes(self) -> tuple[int, ...]:
        return tuple(self.provider.pes)

    @property
    def linked(self) -> dict[str, Any]:
        return link_options() if self.pes else stand_in_options()

    @property
    def provider(self) -> Provider:
        """Where symmetric memory comes from; all ranks of a group choose the same."""
        if self._provider is None:
            try:
                made = choose_provider(self.group, self.device, network=len(set(self.nodes)) > 1)
            except OverlapError as error:
                self.agree("a provider of symmetric memory", error)
                raise
            names = self.agree("a provider of symmetric memory", made.name, seconds=settings.get("compile_deadline_s"))
            for rank, name in enumerate(names):
                if name != made.name:
                    raise RuntimeContractError(
                        f"rank {self.rank} takes symmetric memory from {made.name}, rank {rank} from {name}",
                        help="set OVERLAP_PROVIDER to the same on every rank",
                    )
            self._provider = made
        return self._provider

    # memory

    def symmetric(self, shape: Sequence[int], dtype: torch.dtype, *, zero: bool = False) -> torch.Tensor:
        """Raises RuntimeContractError where a rank is out of memory, asks for another shape, or captures a graph."""
        numel = 1
        for size in shape:
            numel *= size
        what = f"symmetric({tuple(shape)}, {dtype})"
        provider = self.provider
        try:
            local = provider.allocate(max(1, numel), dtype)
            if zero:
                local.zero_()
            self.synchronize()
        except torch.OutOfMemoryError as error:
            failed = RuntimeContractError(
                f"rank {self.rank}: no {numel * dtype.itemsize} bytes of symmetric memory left ({provider.name}): {error}",
                help="reserve less, or free memory first; NVSHMEM's heap is sized by NVSHMEM_SYMMETRIC_SIZE",
            )
            self.agree(what, failed)
            raise failed from None
        near = [not far(self, rank) for rank in range(self.world)]
        peers = provider.map(local, self.agree(what, provider.history()), near)
        mine = local[:numel].view(tuple(shape))
        key = local.untyped_storage().data_ptr()
        others = [None if p == self.rank or q is None else q[:numel].view(tuple(shape)) for p, q in enumerate(peers)]
        self._allocations[key] = (local.storage_offset(), others)
        weakref.finalize(mine, self._forget, key, local.data_ptr()).atexit = False
        return mine

    def _forget(self, key: int, address: int) -> None:
        self._allocations.pop(key, None)
        if self._provider is not None:
            self._provider.free(address)

    def peer(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """Raises RuntimeContractError when ``tensor`` is not symmetric, or ``rank`` is on another node."""
        if rank == self.rank:
            return tensor
        found = self._allocations.get(tensor.untyped_storage().data_ptr())
        if found is None:
            raise RuntimeContractError(f"peer: a tensor of shape {tuple(tensor.shape)} is not symmetric memory")
        if not 0 <= rank < self.world:
            raise RuntimeContractError(f"peer: rank {rank} in a world of {self.world}")
        if far(self, rank):
            raise refuse(self, rank)
        start, others = found
        other = others[rank]
        assert other is not None
        return other.as_strided(tensor.shape, tensor.stride(), other.storage_offset() + tensor.storage_offset() - start)

    def table(self, values: Sequence[int], *, bits: int = 32, into: torch.Tensor | None = None) -> torch.Tensor:
        """Raises RuntimeContractError while a graph is captured."""
        if self.capturing():
            raise self._captured("a table of a launch")
        dtype = torch.int32 if bits == 32 else torch.int64
        if into is not None:
            return into.copy_(torch.tensor(list(values), dtype=dtype))
        return torch.tensor(list(values), dtype=dtype, device=self.device)

    def agree(self, what: str, value: Any, *, seconds: float | None = None) -> list[Any]:
        if self.capturing():
            error = self._captured(what)
            self.meetings.meet(what, error, seconds=0)
            raise error
        return self.meetings.meet(what, value, seconds=settings.get("deadline_s", seconds))

    def _captured(self, what: str) -> RuntimeContractError:
        return RuntimeContractError(
            f"rank {self.rank}: {what} while a CUDA graph is captured: it allocates, compiles and meets the other ranks",
            help="call once with this shape on all ranks before capturing",
        )

    # streams

    raw_stream = staticmethod(_RAW_STREAM)
    """The handle of the current stream of a device, by its number."""

    def main_stream(self) -> Stream:
        handle: int = torch._C._cuda_getCurrentRawStream(self._index)
        found = self._streams.get(handle)
        if found is None:
            found = self._streams[handle] = Stream(handle)
        return found

    def collectives(self, plan: CommPlan, source: Boxed, target: Boxed) -> None:
        call_all(plan, self.group, source, target)

    def fork(self, lane: int) -> Stream:
        return self.forks((lane,))[0]

    def forks(self, lanes: Sequence[int]) -> list[Stream]:
        return self._lanes.forks(self.main_stream(), lanes)

    def behind(self, stream: Stream, other: Stream) -> None:
        self._lanes.behind(stream, other)

    def join(self, stream: Stream) -> None:
        self._lanes.join(self.main_stream(), stream)

    def capturing(self) -> bool:
        found: bool = torch.cuda.is_current_stream_capturing()
        return found

    def in_order(self, key: Any, main: Stream) -> AbstractContextManager[bool]:
        return InOrder((self._index, key), main)

    def holder(self, word: torch.Tensor, value: int) -> Callable[[Stream], None]:
        """Raises RuntimeContractError when the driver refuses (at the first use)."""
        what = f"rank {self.rank}: a stream that waits for a count of tiles"
        return Calls([(hold_call(word.data_ptr(), value), what)])

    def mark(self, stream: Stream) -> torch.cuda.Event:
        made = torch.cuda.Event(enable_timing=True)
        made.record(as_torch(stream, self.device))
        return made

    def passed(self, mark: torch.cuda.Event) -> bool:
        found: bool = mark.query()
        return found

    def elapsed(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds * 1e6

    def copier(self, dst: torch.Tensor, src: torch.Tensor, place: Place | None = None) -> Callable[..., None]:
        """Raises RuntimeContractError when shapes or dtypes differ."""
        if dst.shape != src.shape or dst.dtype != src.dtype:
            raise RuntimeContractError(f"copy of {tuple(src.shape)} {src.dtype} to {tuple(dst.shape)} {dst.dtype}")
        what = f"rank {self.rank}: a peer copy of {tuple(dst.shape)}"
        if place is not None:
            (piece,) = plan_copy(dst, src)
            return Calls([(CopyOut(piece, place), what)])
        return Calls([(copy_call(piece), what) for piece in (plan_copy(dst, src) if src.numel() else ())])

    def chained(self, enqueues: Sequence[Callable[..., None]]) -> Callable[..., None]:
        return chain(enqueues)

    def settled(self, enqueue: Callable[..., None]) -> Callable[..., None] | None:
        """As a graph, where that is less work for the host, and nothing of it differs from call to call."""
        if length(enqueue) < GRAPH_FROM or not settings.get("lane_graphs") or brings(enqueue):
            return enqueue
        if self.blocking:
            return enqueue  # the host would wait for the lane, and not only for its kernels
        if capture_of(self.main_stream()):
            return None
        try:
            if self._lane_recorder is None:
                self._lane_recorder = own_lane()
            return Graph(enqueue, self._lane_recorder)
        except NO_GRAPH:
            return enqueue

    def recorded(self, key: Any, steps: Callable[[Recording], None]) -> CallGraph | None:
        """As one graph, where a driver records what is enqueued."""
        if self.blocking:
            return None
        try:
            if self._recorder is None:
                self._recorder = Recorder()
            return self._recorder.record(steps, self.main_stream(), last_call((self._index, key)))
        except NO_GRAPH as error:
            _LOG.info("a call goes by its steps, not as a graph: %s", error)
            return None

    # kernels

    def warm(
        self,
        kernel: Any,
        grid: Any,
        kwargs: dict[str, Any],
        *,
        leave_room: bool = False,
        later: Mapping[str, Place | None] = NONE_LATER,
    ) -> Callable[..., None]:
        made = compiled(kernel, grid, kwargs)
        if leave_room:
            require_room(made, grid, self.device)
        return bound_launch(kernel, made, grid, kwargs, later)

    def resident(self, kernel: Any, grid: Any, kwargs: dict[str, Any]) -> int:
        return self.sm_count * resident_blocks(compiled(kernel, grid, kwargs))

    def launch(
        self, kernel: Any, grid: tuple[int, int, int], args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any
    ) -> None:
        if calls_nvshmem(kwargs) and not args:
            compiled(kernel, grid, kwargs)  # which Triton's launch would compile as well, without a word to NVSHMEM
        with scratch():
            if stream.cuda_stream == self.main_stream().cuda_stream:
                kernel[grid](*args, **kwargs)
            else:
                with torch.cuda.stream(as_torch(stream, self.device)):
                    kernel[grid](*args, **kwargs)

    def watch(self, state: torch.Tensor, *, packets: bool = False) -> Callable[[], Any]:
        return Watch(state, spins_for(settings.get("deadline_s"), self.device, packets=packets))

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def release(self) -> None:
        if self._provider is not None:
            self._provider.close()


_RUNTIMES: dict[int, CudaRuntime] = {}


def known_runtime(group: Any) -> CudaRuntime | None:
    """The runtime of a process group that has one already."""
    found = _RUNTIMES.get(id(group))
    return found if found is not None and found.group is group else None


def runtime_for_group(group: Any) -> CudaRuntime:
    """The runtime of a torch process group (None: the default group), made on first use.

    Raises:
        RuntimeContractError: no process group, no GPU, or this rank does not belong to the group.
    """
    if not dist.is_initialized():
        raise RuntimeContractError(
            "no process group",
            help="call torch.distributed.init_process_group first, or simulate with `overlap simulate`",
        )
    group = group if group is not None else dist.group.WORLD
    found = _RUNTIMES.get(id(group))
    if found is None:
        if not torch.cuda.is_available():
            raise RuntimeContractError("no GPU here", help="`overlap simulate` runs the same module without one")
        if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
            raise RuntimeContractError(
                f"{group!r} is no process group of this rank", help="pass a torch.distributed process group, or None"
            )
        alive = dist.distributed_c10d._world.pg_map
        for key in [key for key, old in _RUNTIMES.items() if old.group not in alive]:
            del _RUNTIMES[key]
        found = _RUNTIMES[id(group)] = CudaRuntime(group)
    return found


@atexit.register
def _leave() -> None:
    """Drops all memory while the CUDA context still stands; without a word, whatever state the ranks are in."""
    import logging

    logging.getLogger("nvshmem").setLevel(logging.CRITICAL + 1)
    for runtime in _RUNTIMES.values():
        for name in (
            "overlap_low_latency",
            "overlap_calls",
            "overlap_workspaces",
            "overlap_instances",
            "overlap_symmetric",
        ):
            getattr(runtime, name, {}).clear()
        runtime.overlap_last = None
        runtime._allocations.clear()
    _RUNTIMES.clear()
    forget_calls()


def as_torch(stream: Stream, device: torch.device) -> torch.cuda.Stream:
    """The stream as torch knows it. Of the handle 0, the default stream, `torch.cuda.ExternalStream` makes a new stream, which
    nothing on the default one is ordered with."""
    if not stream.cuda_stream:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(stream.cuda_stream, device)
