"""Compiling and loading Triton kernels ahead of their launch, and what they take of a multiprocessor."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from overlap.errors import UnsupportedError

from ..nvshmem.device_code import calls_nvshmem
from ..nvshmem.modules import introduce
from .occupancy import Block, Multiprocessor, room_beside
from .static_memory import answered, declared, make_room

_WAIT = Block(threads=32, registers=64, shared=0)
"""The wait kernel: one warp; its registers are rounded up generously."""


def compiled(kernel: Any, grid: Any, kwargs: dict[str, Any]) -> Any:
    """The compiled kernel that a launch with these arguments would run, loaded onto the device.

    Triton's hooks belong to whoever set them: they are called as in any launch, and none is set here.

    Raises:
        UnsupportedError: a hook of somebody else has taken the compilation over, or the kernel declares more shared memory than
            is left beside its tiles'.
    """
    made = kernel.warmup(grid=grid, **kwargs)
    if made is None:
        raise UnsupportedError(
            f"`triton.knobs.runtime.jit_cache_hook` has taken over the compilation of `{kernel.__name__}`, and gives no kernel",
            help="a hook that only watches returns None or False",
        )
    if hasattr(made, "result"):
        made = made.result()
    made._init_handles()
    make_room(made)
    if calls_nvshmem(kwargs):
        introduce(made)
    return made


def require_room(made: Any, grid: tuple[int, int, int], device: torch.device) -> None:
    """Refuses a grid beside which a wait kernel would not become resident: what it waits for would never be copied.

    Raises:
        UnsupportedError: says what the grid takes.
    """
    block = Block(made.metadata.num_warps * 32, made.n_regs, made.metadata.shared + declared(made))
    resident = resident_blocks(made)
    blocks = grid[0] * grid[1] * grid[2]
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    if blocks < resident * multiprocessors:
        return
    why = room_beside(multiprocessor(device.index), block, resident, _WAIT)
    if why:
        raise UnsupportedError(
            f"the plan forwards chunks, which needs a wait kernel of one warp beside the grid, but {why}",
            help="use fewer stages or smaller blocks, or a plan whose operations depend on no other",
        )


def resident_blocks(made: Any) -> int:
    """Blocks of a compiled kernel that one multiprocessor holds at a time."""
    from cuda.bindings import driver

    threads, shared = made.metadata.num_warps * 32, made.metadata.shared
    return int(answered(*driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(made.function, threads, shared)))


@cache
def multiprocessor(index: int) -> Multiprocessor:
    """What a multiprocessor of CUDA device ``index`` has."""
    from cuda.bindings import driver

    device = answered(*driver.cuDeviceGet(index))
    kinds = driver.CUdevice_attribute

    def read(kind: Any) -> int:
        return int(answered(*driver.cuDeviceGetAttribute(kind, device)))

    return Multiprocessor(
        threads=read(kinds.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
        registers=read(kinds.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
        shared=read(kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        reserved=read(kinds.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
        blocks=read(kinds.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR),
    )
