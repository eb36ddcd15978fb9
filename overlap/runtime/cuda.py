"""`CudaRuntime`: the protocol on GPUs of one host, with side streams and peer copies by the copy engine.

    main    entry kernel | GEMM ............................... | wait_event(side)
    side    wait_event(main) | cuMemcpy chunk | cuMemcpy epoch -> flag | ... | record_event

Every copy is a driver call between two devices: a copy inside one device would run as a kernel and starve
behind a grid that fills the multiprocessors. Ranks meet through the group's store, never through a collective.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from overlap import settings
from overlap.errors import OverlapError, RuntimeContractError

from .copies import plan_copy
from .deadline import Watch, spins_for
from .kernels import bound_launch, compiled, require_room, resident_blocks
from .meeting import Meetings
from .providers import Provider, choose_provider

_ORDER: dict[Any, torch.cuda.Event] = {}
"""By (device, key): the end of the last call outside captures."""
_CAPTURED: dict[Any, tuple[int, torch.cuda.Event]] = {}
"""By (device, key): the capture that holds the last call recorded in one, and that call's end."""


class CudaRuntime:
    """One rank's runtime on a torch process group. Made once a group by `runtime_for_group`."""

    def __init__(self, group: Any, provider: Provider | None = None) -> None:
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.world: int = dist.get_world_size(group)
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._index: int = torch.cuda.current_device()
        self.sm_count: int = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.meetings = Meetings(dist.distributed_c10d._get_process_group_store(group), self.rank, self.world)
        self._provider = provider
        self._allocations: dict[int, tuple[int, list[torch.Tensor | None]]] = {}
        self._lanes: dict[int, tuple[torch.cuda.Stream, torch.cuda.Event, torch.cuda.Event]] = {}

    @property
    def provider(self) -> Provider:
        """Where symmetric memory comes from; all ranks of a group choose the same."""
        if self._provider is None:
            try:
                made = choose_provider(self.group, self.device)
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
        peers = provider.map(local, self.agree(what, provider.history()))
        mine = local[:numel].view(tuple(shape))
        key = local.untyped_storage().data_ptr()
        others = [None if p == self.rank else peers[p][:numel].view(tuple(shape)) for p in range(self.world)]
        self._allocations[key] = (local.storage_offset(), others)
        weakref.finalize(mine, self._forget, key, local.data_ptr()).atexit = False
        return mine

    def _forget(self, key: int, address: int) -> None:
        self._allocations.pop(key, None)
        if self._provider is not None:
            self._provider.free(address)

    def peer(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """Raises RuntimeContractError when ``tensor`` is not symmetric."""
        if rank == self.rank:
            return tensor
        found = self._allocations.get(tensor.untyped_storage().data_ptr())
        if found is None:
            raise RuntimeContractError(f"peer: a tensor of shape {tuple(tensor.shape)} is not symmetric memory")
        if not 0 <= rank < self.world:
            raise RuntimeContractError(f"peer: rank {rank} in a world of {self.world}")
        start, others = found
        other = others[rank]
        assert other is not None
        return other.as_strided(tensor.shape, tensor.stride(), other.storage_offset() + tensor.storage_offset() - start)

    def table(self, values: Sequence[int], *, bits: int = 32, into: torch.Tensor | None = None) -> torch.Tensor:
        dtype = torch.int32 if bits == 32 else torch.int64
        if into is not None:
            return into.copy_(torch.tensor(list(values), dtype=dtype))
        return torch.tensor(list(values), dtype=dtype, device=self.device)

    def agree(self, what: str, value: Any, *, seconds: float | None = None) -> list[Any]:
        if torch.cuda.is_current_stream_capturing():
            error = RuntimeContractError(
                f"rank {self.rank}: {what} while a CUDA graph is captured: it allocates, compiles and meets the other ranks",
                help="call once with this shape on all ranks before capturing",
            )
            self.meetings.meet(what, error, seconds=0)
            raise error
        return self.meetings.meet(what, value, seconds=settings.get("deadline_s", seconds))

    # streams

    def main_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._index)

    def fork(self, lane: int) -> torch.cuda.Stream:
        if lane not in self._lanes:
            # Ahead of the grid: what a lane launches is waited for.
            side = torch.cuda.Stream(self.device, priority=-1)
            self._lanes[lane] = (side, torch.cuda.Event(), torch.cuda.Event())
        side, forked, _ = self._lanes[lane]
        forked.record(self.main_stream())
        side.wait_event(forked)
        return side

    def join(self, stream: torch.cuda.Stream) -> None:
        joined = next(end for side, _, end in self._lanes.values() if side is stream)
        joined.record(stream)
        self.main_stream().wait_event(joined)

    @contextmanager
    def in_order(self, key: Any) -> Iterator[bool]:
        main = self.main_stream()
        capture = _capture_of(main)
        event = self._last_call(key, capture)
        if event is not None:
            main.wait_event(event)
        yield capture != 0
        if event is None:
            event = torch.cuda.Event()
            if capture:
                _CAPTURED[self.device, key] = (capture, event)
            else:
                _ORDER[self.device, key] = event
        event.record(main)

    def _last_call(self, key: Any, capture: int) -> torch.cuda.Event | None:
        """The end of the last call, inside this capture or (0) outside any: neither may wait for the other."""
        if not capture:
            return _ORDER.get((self.device, key))
        held, event = _CAPTURED.get((self.device, key), (0, None))
        return event if held == capture else None

    def holder(self, word: torch.Tensor, value: int) -> Callable[[torch.cuda.Stream], None]:
        """Raises RuntimeContractError when the driver refuses (at the first use)."""
        from cuda.bindings import driver

        address, success = driver.CUdeviceptr(word.data_ptr()), driver.CUresult.CUDA_SUCCESS
        wait, when = driver.cuStreamWaitValue32, int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)

        def enqueue(stream: torch.cuda.Stream) -> None:
            (error,) = wait(stream.cuda_stream, address, value, when)
            if error != success:
                raise RuntimeContractError(f"rank {self.rank}: a stream cannot wait for a count of tiles: {error}")

        return enqueue

    def copier(self, dst: torch.Tensor, src: torch.Tensor) -> Callable[[torch.cuda.Stream], None]:
        """Raises RuntimeContractError when shapes or dtypes differ."""
        from cuda.bindings import driver

        if dst.shape != src.shape or dst.dtype != src.dtype:
            raise RuntimeContractError(f"copy of {tuple(src.shape)} {src.dtype} to {tuple(dst.shape)} {dst.dtype}")
        success = driver.CUresult.CUDA_SUCCESS
        linear, pitched = driver.cuMemcpyDtoDAsync, driver.cuMemcpy2DAsync
        pieces: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        for piece in plan_copy(dst, src) if src.numel() else ():
            if piece.rows == 1:
                pieces.append((linear, (piece.dst, piece.src, piece.width)))
            else:
                request = driver.CUDA_MEMCPY2D()
                request.srcMemoryType = request.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
                request.srcDevice, request.dstDevice = piece.src, piece.dst
                request.srcPitch, request.dstPitch = piece.src_pitch, piece.dst_pitch
                request.WidthInBytes, request.Height = piece.width, piece.rows
                pieces.append((pitched, (request,)))

        def enqueue(stream: torch.cuda.Stream) -> None:
            handle = stream.cuda_stream
            for call, arguments in pieces:
                (error,) = call(*arguments, handle)
                if error != success:
                    raise RuntimeContractError(f"rank {self.rank}: a peer copy of {tuple(dst.shape)} failed: {error}")

        return enqueue

    # kernels

    def warm(
        self, kernel: Any, grid: Any, kwargs: dict[str, Any], *, leave_room: bool = False, later: Sequence[str] = ()
    ) -> Callable[..., None]:
        made = compiled(kernel, grid, kwargs)
        if leave_room:
            require_room(made, grid, self.device)
        return bound_launch(kernel, made, grid, {name: v for name, v in kwargs.items() if name not in later})

    def resident(self, kernel: Any, grid: Any, kwargs: dict[str, Any]) -> int:
        return self.sm_count * resident_blocks(compiled(kernel, grid, kwargs))

    def launch(
        self, kernel: Any, grid: tuple[int, int, int], args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any
    ) -> None:
        if stream == self.main_stream():
            kernel[grid](*args, **kwargs)
        else:
            with torch.cuda.stream(stream):
                kernel[grid](*args, **kwargs)

    def watch(self, state: torch.Tensor) -> Callable[[], Any]:
        return Watch(state, spins_for(settings.get("deadline_s"), self.device))

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def release(self) -> None:
        if self._provider is not None:
            self._provider.close()


def _capture_of(stream: torch.cuda.Stream) -> int:
    """The id of the capture that a stream takes part in, 0 for none."""
    if not torch.cuda.is_current_stream_capturing():
        return 0
    from cuda.bindings import driver

    return int(driver.cuStreamGetCaptureInfo(stream.cuda_stream)[2])


_RUNTIMES: dict[int, CudaRuntime] = {}


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
        for name in ("overlap_workspaces", "overlap_instances", "overlap_symmetric"):
            getattr(runtime, name, {}).clear()
        runtime._allocations.clear()
    _RUNTIMES.clear()
    _ORDER.clear()
    _CAPTURED.clear()
