"""`CudaRuntime`: the protocol on GPUs of one host, with side streams and peer copies by the copy engine.

    main    entry kernel | GEMM ............................... | wait_event(side)
    side    wait_event(main) | cuMemcpy chunk | cuMemcpy epoch -> flag | ... | record_event

Every copy is a driver call between two devices: a copy inside one device would run as a kernel and starve
behind a grid that fills the multiprocessors.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from overlap.errors import RuntimeContractError

from .copies import plan_copy
from .providers import Provider, choose_provider


class CudaRuntime:
    """One rank's runtime on a torch process group. Made once a group by `runtime_for_group`."""

    def __init__(self, group: Any, provider: Provider | None = None) -> None:
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.world: int = dist.get_world_size(group)
        self._device = torch.device("cuda", torch.cuda.current_device())
        self.provider = provider or choose_provider(group, self._device)
        self._allocations: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}
        self._lanes: dict[int, torch.cuda.Stream] = {}
        self._previous: dict[int, torch.cuda.Event] = {}
        self._sms = torch.cuda.get_device_properties(self._device).multi_processor_count

    @property
    def sm_count(self) -> int:
        return self._sms

    @property
    def device(self) -> torch.device:
        return self._device

    def symmetric(self, shape: Sequence[int], dtype: torch.dtype, *, zero: bool = False) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeContractError(
                "the first call of a shape allocates, which a CUDA graph cannot capture",
                help="call once with this shape before capturing",
            )
        numel = 1
        for size in shape:
            numel *= size
        local, peers = self.provider.allocate(max(1, numel), dtype)
        if zero:
            local.zero_()
        torch.cuda.synchronize(self._device)
        self.agree("symmetric allocation", (tuple(shape), str(dtype)))
        views = [p[:numel].view(tuple(shape)) for p in peers]
        self._allocations[local.untyped_storage().data_ptr()] = (views[self.rank], views)
        return views[self.rank]

    def peer(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        if rank == self.rank:
            return tensor
        base, views = self._allocations[tensor.untyped_storage().data_ptr()]
        offset = tensor.storage_offset() - base.storage_offset()
        other = views[rank]
        return other.as_strided(tensor.shape, tensor.stride(), other.storage_offset() + offset)

    def table(self, values: Sequence[int], *, bits: int = 32) -> torch.Tensor:
        dtype = torch.int32 if bits == 32 else torch.int64
        return torch.tensor(list(values), dtype=dtype, device=self._device)

    def agree(self, what: str, value: Any) -> list[Any]:
        told: list[Any] = [None] * self.world
        dist.all_gather_object(told, value, group=self.group)
        return told

    def main_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def fork(self, lane: int) -> torch.cuda.Stream:
        if lane not in self._lanes:
            self._lanes[lane] = torch.cuda.Stream(self._device, priority=-1)
        side = self._lanes[lane]
        side.wait_stream(self.main_stream())
        return side

    def join(self, stream: torch.cuda.Stream) -> None:
        self.main_stream().wait_stream(stream)

    def order_behind_previous(self, key: Any) -> None:
        event = self._previous.get(id(key))
        if event is not None and not torch.cuda.is_current_stream_capturing():
            self.main_stream().wait_event(event)

    def record_call(self, key: Any) -> None:
        if torch.cuda.is_current_stream_capturing():
            return
        event = self._previous.get(id(key))
        if event is None:
            event = self._previous[id(key)] = torch.cuda.Event()
            weakref.finalize(key, self._previous.pop, id(key), None)
        event.record(self.main_stream())

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: torch.cuda.Stream) -> None:
        from cuda.bindings import driver

        for piece in plan_copy(dst, src):
            if piece.rows == 1:
                (error,) = driver.cuMemcpyDtoDAsync(piece.dst, piece.src, piece.width, stream.cuda_stream)
            else:
                request = driver.CUDA_MEMCPY2D()
                request.srcMemoryType = request.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
                request.srcDevice, request.dstDevice = piece.src, piece.dst
                request.srcPitch, request.dstPitch = piece.src_pitch, piece.dst_pitch
                request.WidthInBytes, request.Height = piece.width, piece.rows
                (error,) = driver.cuMemcpy2DAsync(request, stream.cuda_stream)
            if error != driver.CUresult.CUDA_SUCCESS:
                raise RuntimeContractError(f"rank {self.rank}: a peer copy of {piece} failed: {error}")

    def launch(
        self, kernel: Any, grid: tuple[int, int, int], args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any
    ) -> None:
        with torch.cuda.stream(stream):
            kernel[grid](*args, **kwargs)


_RUNTIMES: dict[int, CudaRuntime] = {}


def runtime_for_group(group: Any) -> CudaRuntime:
    """The runtime of a torch process group (None: the default group), made on first use, collectively."""
    if not dist.is_initialized():
        raise RuntimeContractError(
            "no process group", help="call torch.distributed.init_process_group first, or simulate with `overlap simulate`"
        )
    group = group if group is not None else dist.group.WORLD
    if id(group) not in _RUNTIMES:
        _RUNTIMES[id(group)] = CudaRuntime(group)
    return _RUNTIMES[id(group)]
