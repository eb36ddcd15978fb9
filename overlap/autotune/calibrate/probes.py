"""What is timed. Every probe is collective: all ranks of the group do the same at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
import torch.distributed as dist

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.plan import TensorSpec
from overlap.runtime.cuda.runtime import CudaRuntime
from overlap.runtime.cuda.scratch import scratch
from overlap.runtime.kernels.entry import carry_kernel
from overlap.runtime.transfer.transfer import Transfer, carry_out, transfer_for
from overlap.schedule.far import GET, LANE_WORDS, LIBRARY, PUT, kind_of
from overlap.schedule.machine import PROGRAMS
from overlap.schedule.table import S_EPOCH, SLOT_WORDS

from .clock import Clock
from .copy_kernel import WORDS, copy_piece, copy_words, nothing, piece_of
from .samples import Sample

MIB = 1 << 20
COPIES = tuple(n * MIB for n in (1, 4, 16, 64, 256))
GATHERS = tuple(n * MIB for n in (16, 64, 128, 256))
"""Bytes that a rank receives, before they are divided among the others."""
BY_PROGRAMS = 64 * MIB
LOCAL = 512 * MIB
CHAIN = 20
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SQUARES = (4096, 8192)


class Probes:
    """The probes on one runtime. ``memory``: symmetric, as large as the largest copy."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self.runtime = runtime
        self.clock = Clock(runtime.group, runtime.device)
        self.memory = runtime.symmetric((max(COPIES),), torch.uint8)
        self.local = torch.empty_like(self.memory)
        self.next = runtime.peer(self.memory, (runtime.rank + 1) % runtime.world)

    def copy(self, direction: str, size: int) -> Sample:
        """A copy by copy engine from (``pull``) or to (``push``) the next rank."""
        here, there = self.local[:size], self.next[:size]
        enqueue = self.runtime.copier(here, there) if direction == "pull" else self.runtime.copier(there, here)
        return Sample(size, self.clock.seconds(lambda: enqueue(self.runtime.main_stream())))

    def programs(self, way: str, counts: Iterable[int]) -> Iterator[tuple[int, Sample]]:
        """The same by the number of programs that copy; ``way``: one of `ways`."""
        here, there = self.local[:BY_PROGRAMS].view(torch.int32), self.next[:BY_PROGRAMS].view(torch.int32)
        dst, src = (here, there) if way.startswith("pull") else (there, here)
        piece = self.runtime.table(piece_of(dst.data_ptr(), src.data_ptr(), BY_PROGRAMS), bits=64)
        for count in counts:
            if way.endswith(f"_{LIBRARY}"):
                launch = self.carrying(way, count)
            elif way.endswith("_tma"):
                launch = partial(copy_piece[(count,)], piece, num_warps=8)
            else:
                launch = partial(copy_words[(count,)], dst, src, dst.numel(), WORDS=WORDS, num_warps=8)
            with scratch():
                yield count, Sample(BY_PROGRAMS, self.clock.seconds(launch))

    def carrying(self, way: str, count: int) -> Callable[[], object]:
        """A launch of programs that copy through NVSHMEM, from the first bytes of one rank's memory to the next of the other's.

        Addresses are this rank's own: NVSHMEM finds the same place in the other's.
        """
        runtime, direction = self.runtime, PUT if way.startswith("push") else GET
        first, second = self.memory.data_ptr(), self.memory[BY_PROGRAMS:].data_ptr()
        src, dst = (first, second) if direction == PUT else (second, first)
        kind = kind_of(direction, runtime.pes[(runtime.rank + 1) % runtime.world])
        piece = [kind, src, dst, 1, BY_PROGRAMS, BY_PROGRAMS, BY_PROGRAMS]
        state = torch.zeros((S_EPOCH + 1) * SLOT_WORDS, dtype=torch.int64, device=runtime.device)
        flag = torch.zeros(1, dtype=torch.int64, device=runtime.device)
        words = runtime.table([0, LANE_WORDS + len(piece), flag.data_ptr(), -1, *piece], bits=64)
        enqueue = runtime.warm(
            carry_kernel, (count, 1, 1), {"words": words, "state": state, "num_warps": 8, **runtime.linked}
        )

        def launch(named: torch.Tensor = flag) -> None:  # by its address, in the table
            enqueue(runtime.main_stream())

        return launch

    def ways(self) -> tuple[str, ...]:
        """How programs of this device can copy, of `overlap.schedule.machine.PROGRAMS`; by NVSHMEM in its own memory."""
        able = {"", "tma"} if torch.cuda.get_device_capability(self.runtime.device) >= (9, 0) else {""}
        if self.runtime.provider.name == LIBRARY:
            able.add(LIBRARY)
        return tuple(way for way in PROGRAMS if way.partition("_")[2] in able)

    def library(self, size: int) -> Sample:
        """An all-gather by the group's own library, of which every rank receives ``size`` bytes or a little less."""
        world = self.runtime.world
        shard = torch.empty(size // (world - 1), dtype=torch.uint8, device=self.runtime.device)
        whole = torch.empty(world * shard.numel(), dtype=torch.uint8, device=self.runtime.device)
        call = partial(dist.all_gather_into_tensor, whole, shard, group=self.runtime.group)
        return Sample(shard.numel() * (world - 1), self.clock.seconds(call))

    def memory_rate(self) -> float:
        """Bytes a second, read and written, of a local copy."""
        a, b = (torch.empty(LOCAL, dtype=torch.uint8, device=self.runtime.device) for _ in range(2))
        return 2 * LOCAL / self.clock.seconds(lambda: b.copy_(a))

    def flops(self, dtype: str) -> float:
        """Floating-point operations a second of the fastest square product; fp32 by TF32."""
        best = 0.0
        with _tf32():
            for n in SQUARES:
                best = max(best, 2 * n**3 / self.clock.seconds(self.product(DTYPES[dtype], n)))
        return best

    def product(self, dtype: torch.dtype, n: int) -> Callable[[], object]:
        a, b = (torch.randn(n, n, device=self.runtime.device).to(dtype) for _ in range(2))
        out = torch.empty(n, n, dtype=dtype, device=self.runtime.device)
        return lambda: torch.mm(a, b, out=out)

    def kernel(self) -> float:
        """Seconds from one kernel to the next in a graph."""
        word = torch.zeros(1, dtype=torch.int32, device=self.runtime.device)
        return self.clock.captured(lambda: nothing[(1,)](word), CHAIN)

    def flag(self) -> float:
        """Seconds of a copy of 8 bytes between two ranks behind another."""
        enqueue = self.runtime.copier(self.local[:8], self.next[:8])
        return self.clock.captured(lambda: enqueue(self.runtime.main_stream()), CHAIN)

    def entry(self, flag: float) -> float:
        """Seconds of a launch that moves next to nothing, less its copies and their flags.

        Such copies take what one of 8 bytes does. The latency of a line fitted to large ones is several times as much: on 4 x
        H200 three of those were more than the whole launch.
        """
        world = self.runtime.world
        path, text = find_template("all_gather_1d")
        plan = build_plan(text, world=world, tensor=TensorSpec("a", (world, 64)), dim=0, path=path)
        made: Transfer = transfer_for(plan, self.runtime, (torch.float32,))
        shard = torch.zeros(1, 64, device=self.runtime.device)
        whole = torch.empty(world, 64, device=self.runtime.device)
        spent = self.clock.captured(lambda: carry_out(made, {"a": (shard,)}, {"a": whole}), CHAIN)
        return max(0.0, spent - (world - 1) * 2 * flag)

    def contention(self) -> float:
        """Seconds that a product loses for each second of a copy beside it."""
        size = SQUARES[-1]
        product = self.product(torch.bfloat16, size)
        enqueue = self.runtime.copier(self.local, self.next)
        copy = self.clock.seconds(lambda: enqueue(self.runtime.main_stream()))
        alone = self.clock.seconds(product)
        # As many products as it takes to last longer than the copy.
        repeat = 1 + int(1.5 * copy / alone)

        def products() -> None:
            for _ in range(repeat):
                product()

        def together() -> None:
            enqueue(self.runtime.fork(0))
            products()

        alone = self.clock.seconds(products)
        beside = self.clock.seconds(together)
        self.runtime.synchronize()
        return max(0.0, beside - alone) / copy


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    """fp32 products by TF32 meanwhile."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def program_counts(units: int) -> tuple[int, ...]:
    """How many programs are tried on a device of so many multiprocessors: doubling from 4, and all."""
    counts = [4]
    while counts[-1] * 2 < 0.9 * units:
        counts.append(counts[-1] * 2)
    return (*counts, units) if units > counts[-1] else (units,)
