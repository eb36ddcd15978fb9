"""`LowLatency`: collectives of small tensors in one launch each, by packets over symmetric memory (`kernels`).

    call e      every rank: lines into the slots of all others, side e % 2 | looks at its own until all have come
    call e + 1  the other side

Two sides are enough, and nobody tells anybody that a slot is free. Every rank hears of every other in every call, empty pieces
included, which go as one line. So a rank that has ended call e - 1 has heard of each rank in that call, each of which had ended
call e - 2 by then, on its own stream: its slots of call e - 2, the side of call e, had been read. With one side a rank could
overwrite in call e what another still looks at in call e - 1.

The epoch is in device memory, a word for each program that may run, so graphs replay with new ones. Words bear its low half but
for two values; once in 2^31 calls a side's unused lines are cleared, so that none is taken for one of 2^32 calls later.

All sums are made in fp32 (fp64 of fp64), in the order of the ranks, and rounded once: the same bits in every run, and of an
all-reduce on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton.language as tl

from overlap import settings
from overlap.chunkplan.region import shard_interval
from overlap.errors import DeadlineError, RuntimeContractError
from overlap.language.packets import DATA_BYTES, MOST_PROGRAMS, SENDERS

from ..group.meeting import RAISED
from ..kernels.stage import as_words
from ..protocol import IN_FLIGHT, Runtime
from ..repeat.places import Carried, Place
from .boxes import Boxes, pieces, scaled, unit_of, whole
from .kernels import exchange_kernel, sum_packets_kernel, two_step_kernel
from .memory import PacketMemory

SUMMED = {
    torch.float16: (tl.float16, tl.float32),
    torch.bfloat16: (tl.bfloat16, tl.float32),
    torch.float32: (tl.float32, tl.float32),
    torch.float64: (tl.float64, tl.float64),
}
"""Dtypes that are added, and what in."""
_UNITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
BLOCK = 256
"""Lines that a program moves at a time, one a thread."""
KEPT = 1024
"""Calls that are found again without a look at more than their tensors' layouts; the oldest go first."""
SAVED_BYTES = 384 << 10
"""Bytes that a second step of an all-reduce must save every rank: about as many as arrive in the time that it takes."""
A_MULTIPROCESSOR = 4
"""Programs of a launch for each multiprocessor, at most: as many as are resident at a time are enough, and soon started."""

LONGEST = 1 << 30
"""Bytes that a rank gets by a call, at most, whatever the setting: kernels number units of a byte and lines by 32 bits."""
IN_PLACE, OTHERWISE = 1, 2
"""How a result shares memory with its summand: it is the summand, or it is not."""


class _Ready(NamedTuple):
    """A launch whose tensors each call brings; ``received``: bytes that a rank gets by it."""

    enqueue: Callable[..., None]
    memory: PacketMemory
    received: int


class LowLatency:
    """The small collectives of a group on this rank. Obtained with `low_latency_of`.

    Every method gives False, having done nothing, where a collective of the library must do: the message is too long (the
    setting ``low_latency_below_bytes``), nothing is added in its dtype, or a graph is being captured and this is the first call
    of its shape, which is collective. Ranks call alike, so all are given the same answer.

    Raises (every method):
        DeadlineError: an earlier call waited in vain.
        RuntimeContractError: ranks that call differently, found at a first call.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._memory: PacketMemory | None = None
        self._kept: list[PacketMemory] = []
        self._met: set[Any] = set()
        self._ready: dict[Any, _Ready] = {}
        self._error: DeadlineError | None = None

    @property
    def memory(self) -> object:
        """What calls go through at present: another once it has grown, None before the first and when it was released."""
        return self._memory

    def all_reduce(self, summand: torch.Tensor, out: torch.Tensor) -> bool:
        """The sum of all ranks' ``summand`` into ``out``, of its shape.

        Every rank sends all of it to every other; of larger ones a part to each, and then the sum of its own part to all. That
        takes a copy where ``out`` shares memory with ``summand``, and so does the other way unless ``out`` is ``summand``.
        """
        two_steps = summand.dtype == out.dtype
        size = summand.numel() * summand.element_size()
        two_steps = two_steps and in_two_steps(size, self._runtime.world)
        shared = _shared(summand, size, out)
        key: Any = ("all_reduce", two_steps, *_layout(summand), *_layout(out), shared)
        if self._again(key, summand, out):
            return True
        facts, boxes = ("all_reduce", tuple(summand.shape)), whole(tuple(summand.shape))
        if shared and (two_steps or shared != IN_PLACE):
            # A program would store results over what another one has not sent yet.
            key, summand = None, summand.clone(memory_format=torch.contiguous_format)
        if two_steps:
            return self._sum_in_two_steps(key, facts, summand, out)
        return self._sum(key, facts, summand, boxes, out)

    def reduce_scatter(self, summand: torch.Tensor, dim: int, out: torch.Tensor) -> bool:
        """This rank's piece along ``dim`` of the sum of all ranks' ``summand``, into ``out``."""
        key = ("reduce_scatter", dim, *_layout(summand), *_layout(out))
        if self._again(key, summand, out):
            return True
        boxes = pieces(tuple(summand.shape), dim, self._runtime.world)
        return self._sum(key, ("reduce_scatter", tuple(summand.shape), dim), summand, boxes, out)

    def all_gather(self, shard: torch.Tensor, dim: int, out: torch.Tensor) -> bool:
        """The tensor of which every rank has its piece along ``dim``, into ``out``."""
        key = ("all_gather", dim, *_layout(shard), *_layout(out))
        if self._again(key, shard, out):
            return True
        boxes = pieces(tuple(out.shape), dim, self._runtime.world)
        facts = ("all_gather", tuple(out.shape), dim)
        return self._exchange(key, facts, boxes.longest(), shard, whole(tuple(shard.shape)), out, boxes)

    def all_to_all(self, held: torch.Tensor, from_dim: int, to_dim: int, out: torch.Tensor) -> bool:
        """A tensor of which every rank holds its piece along ``from_dim``, as this rank's piece along ``to_dim``."""
        key = ("all_to_all", from_dim, to_dim, *_layout(held), *_layout(out))
        if self._again(key, held, out):
            return True
        world = self._runtime.world
        shape = list(out.shape)
        shape[to_dim] = held.shape[to_dim]
        longest = math.prod(
            shard_interval(n, world, 0)[1] if dim in (from_dim, to_dim) else n for dim, n in enumerate(shape)
        )
        boxes, to = pieces(tuple(held.shape), to_dim, world), pieces(tuple(out.shape), from_dim, world)
        return self._exchange(key, ("all_to_all", tuple(shape), from_dim, to_dim), longest, held, boxes, out, to)

    def copies_in_place(self, size: int) -> bool:
        """Whether an all-reduce of ``size`` bytes would copy a summand that shares memory with the result."""
        return size < below() and in_two_steps(size, self._runtime.world)

    def check(self) -> None:
        """Raises DeadlineError if a call waited in vain; costs no synchronisation."""
        if self._error is None:
            for memory in (*self._kept, *((self._memory,) if self._memory else ())):
                record = memory.fault()
                if record is not None:
                    sender = memory.sender(record.flag, self._runtime.world, self._runtime.rank)
                    self._error = DeadlineError(
                        f"rank {self._runtime.rank}: a low-latency collective waited {settings.get('deadline_s'):g} s for rank "
                        f"{sender} to send (call {record.wanted}); its result is not valid, and neither is any after it",
                        help="a peer has ended, has raised, or calls in another order; overlap.release(group) on all ranks "
                        "starts anew",
                    )
                    break
        if self._error is not None:
            raise DeadlineError(self._error.message, help=self._error.help)

    def clear(self) -> None:
        """Lets go of the memory; no rank may use it any more."""
        self._memory, self._error = None, None
        self._kept.clear()
        self._met.clear()
        self._ready.clear()

    def _again(self, key: Any, src: torch.Tensor, out: torch.Tensor) -> bool:
        """Makes a call that is like an earlier one but for where its tensors lie, if there was one."""
        ready = self._ready.get(key)
        if ready is None or ready.memory is not self._memory:
            return False
        self.check()
        if ready.received >= below():
            return False
        runtime = self._runtime
        with runtime.in_order(IN_FLIGHT) as capturing:
            ready.memory.captured |= capturing
            ready.enqueue(runtime.main_stream(), Carried((src, out)))
        return True

    def _sum(self, key: Any, facts: tuple[Any, ...], src: torch.Tensor, boxes: Boxes, out: torch.Tensor) -> bool:
        if src.dtype not in SUMMED or not out.is_floating_point():
            return False
        dense = src.is_contiguous() and out.is_contiguous()
        src = src.contiguous()
        place = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype, device=out.device)
        facts = (*facts, str(src.dtype), str(out.dtype))
        unit, to_unit = unit_of(src, boxes), 0
        if src.dtype == out.dtype:
            to_unit = unit_of(place, whole(tuple(place.shape)))
        dtype, accumulator = SUMMED[src.dtype]
        senders = senders_for(self._runtime.world)
        options = {
            "UNIT": unit, "TO_UNIT": to_unit, "FLAT": boxes.rows == 1, "PARTS": not boxes.whole, "SENDERS": senders,
            "DTYPE": dtype, "ACCUMULATOR": accumulator,
        }  # fmt: skip
        numbers = scaled(boxes, src.element_size(), unit)
        work = max(1, self._runtime.world - 1) if not boxes.whole else 1
        done = self._call(key, facts, boxes.longest(), sum_packets_kernel, src, place, options, numbers, work, dense)
        if done and place is not out:
            out.copy_(place)
        return done

    def _sum_in_two_steps(self, key: Any, facts: tuple[Any, ...], src: torch.Tensor, out: torch.Tensor) -> bool:
        if src.dtype not in SUMMED:
            return False
        dense = src.is_contiguous() and out.is_contiguous()
        src = src.contiguous()
        place = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype, device=out.device)
        size = src.numel() * src.element_size()
        unit, to_unit = (unit_of(tensor, whole(tuple(tensor.shape))) for tensor in (src, place))
        total = -(-size // DATA_BYTES)
        chunk = -(-total // self._runtime.world)
        dtype, accumulator = SUMMED[src.dtype]
        options = {
            "UNIT": unit, "TO_UNIT": to_unit, "SENDERS": senders_for(self._runtime.world), "DTYPE": dtype,
            "ACCUMULATOR": accumulator,
        }  # fmt: skip
        numbers = {"chunk": chunk, "total": total, "size": size // unit, "to_size": size // to_unit}
        longest = chunk * DATA_BYTES // src.element_size()
        facts = (*facts, str(src.dtype), str(out.dtype), "two steps")
        work = max(1, self._runtime.world - 1)
        done = self._call(key, facts, longest, two_step_kernel, src, place, options, numbers, work, dense, steps=2)
        if done and place is not out:
            out.copy_(place)
        return done

    def _exchange(
        self,
        key: Any,
        facts: tuple[Any, ...],
        longest: int,
        src: torch.Tensor,
        boxes: Boxes,
        out: torch.Tensor,
        to: Boxes,
    ) -> bool:
        if src.dtype != out.dtype or src.element_size() not in _UNITS:
            return False
        dense = src.is_contiguous() and out.is_contiguous()
        src = src.contiguous()
        place = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype, device=out.device)
        unit, to_unit = unit_of(src, boxes), unit_of(place, to)
        options = {
            "UNIT": unit, "TO_UNIT": to_unit, "FLAT": boxes.rows == 1, "TO_FLAT": to.rows == 1, "PARTS": not boxes.whole,
        }  # fmt: skip
        numbers = scaled(boxes, src.element_size(), unit)
        numbers |= {f"to_{name}": n for name, n in scaled(to, src.element_size(), to_unit).items()}
        facts = (*facts, str(src.dtype))
        work = self._runtime.world
        done = self._call(key, facts, longest, exchange_kernel, src, place, options, numbers, work, dense)
        if done and place is not out:
            out.copy_(place)
        return done

    def _call(
        self,
        known_as: Any,
        facts: tuple[Any, ...],
        longest: int,
        kernel: Any,
        src: torch.Tensor,
        out: torch.Tensor,
        options: dict[str, Any],
        numbers: dict[str, int],
        work: int,
        dense: bool,
        steps: int = 1,
    ) -> bool:
        """One launch.

        Args:
            known_as: under which later calls find it, if ``dense``: its tensors are the caller's own.
            facts: of the call, the same on every rank.
            longest: elements of the longest piece that any rank sends to another.
            work: tiles that are to be moved for each that the longest piece has.
            steps: pieces that a rank gets of each other one.
        """
        runtime = self._runtime
        self.check()
        size = longest * src.element_size()
        received = steps * size * (runtime.world - 1)
        if received >= below():
            return False
        lines = max(1, -(-size // DATA_BYTES))
        with runtime.in_order(IN_FLIGHT) as capturing:
            memory = self._memory
            if capturing and (facts not in self._met or memory is None or memory.capacity < lines):
                return False
            if memory is None or memory.capacity < lines:
                memory = self._grow(lines)
            key = (kernel.__name__, src.dtype, out.dtype, src.data_ptr() % 16, out.data_ptr() % 16, *numbers.values(),
                   *options.values(), src.numel() == 0, out.numel() == 0)  # fmt: skip
            enqueue = memory.launches.get(key)
            if enqueue is None or facts not in self._met:
                enqueue = self._first(facts, memory, key, kernel, src, out, options, numbers, -(-lines // BLOCK) * work)
            if dense and known_as is not None:
                _make_room(self._ready)
                self._ready[known_as] = _Ready(enqueue, memory, received)
            memory.captured |= capturing
            enqueue(runtime.main_stream(), Carried((src, out)))
        return True

    def _grow(self, lines: int) -> PacketMemory:
        """Memory for what the setting lets through, and for ``lines``."""
        runtime = self._runtime
        limit = below()
        capacity = max(lines, -(-limit // max(1, runtime.world - 1) // DATA_BYTES))
        told = runtime.agree("slots of low-latency collectives", capacity)
        for rank, theirs in enumerate(told):
            if theirs != capacity:
                raise RuntimeContractError(
                    f"rank {runtime.rank} makes slots of {capacity} lines for low-latency collectives, rank {rank} of {theirs}",
                    help="set OVERLAP_LOW_LATENCY_BELOW_BYTES to the same on every rank",
                )
        if self._memory is not None and self._memory.captured:
            self._kept.append(self._memory)
        self._memory = PacketMemory(runtime, capacity)
        return self._memory

    def _first(
        self,
        facts: tuple[Any, ...],
        memory: PacketMemory,
        key: Any,
        kernel: Any,
        src: torch.Tensor,
        out: torch.Tensor,
        options: dict[str, Any],
        numbers: dict[str, int],
        tiles: int,
    ) -> Callable[..., None]:
        """A launch made ready; the first of a shape meets the other ranks, so that who compiles for long is waited for."""
        runtime = self._runtime
        what = f"the first low-latency {facts[0]}"
        try:
            enqueue = self._warm(memory, kernel, src, out, options, numbers, tiles)
            _make_room(memory.launches)
            memory.launches[key] = enqueue
        except RAISED as error:
            if facts not in self._met:
                runtime.agree(what, error)
            raise
        if facts not in self._met:
            told = runtime.agree(what, facts, seconds=settings.get("compile_deadline_s"))
            for rank, theirs in enumerate(told):
                if theirs != facts:
                    raise RuntimeContractError(
                        f"ranks call low-latency collectives differently: {facts} on rank {runtime.rank}, {theirs} on rank {rank}"
                    )
            self._met.add(facts)
        return enqueue

    def _warm(
        self,
        memory: PacketMemory,
        kernel: Any,
        src: torch.Tensor,
        out: torch.Tensor,
        options: dict[str, Any],
        numbers: dict[str, int],
        tiles: int,
    ) -> Callable[..., None]:
        runtime = self._runtime
        later: dict[str, Place | None] = {}
        given = {}
        for number, (name, tensor, unit) in enumerate(
            (("src", src, options["UNIT"]), ("out", out, options["TO_UNIT"]))
        ):
            words = _UNITS.get(unit, tensor.dtype)
            if not tensor.numel():
                given[name] = memory.state.view(words)  # nothing is read there, and nothing written
                continue
            given[name] = as_words(tensor, words)
            later[name] = Place(number, 0, tuple(tensor.shape), tuple(tensor.stride()), words)
        arguments = {
            **given, "slots": memory.slots, "peers": memory.peers, "calls": memory.calls, "state": memory.state,
            "rank": runtime.rank, "world": runtime.world, "capacity": memory.capacity, **numbers, **options, "BLOCK": BLOCK,
            "num_warps": BLOCK // 32,
        }  # fmt: skip
        room = runtime.resident(kernel, (1, 1, 1), {**arguments, "programs": 2})
        programs = max(1, min(tiles, room, A_MULTIPROCESSOR * runtime.sm_count, MOST_PROGRAMS))
        return runtime.warm(kernel, (programs, 1, 1), {**arguments, "programs": programs}, later=later)


def _make_room(kept: dict[Any, Any]) -> None:
    if len(kept) >= KEPT:
        del kept[next(iter(kept))]


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a launch depends on of a tensor."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.data_ptr() % 16


def _shared(summand: torch.Tensor, size: int, out: torch.Tensor) -> int:
    """How a dense summand of ``size`` bytes and a dense result share memory: 0, not at all; `IN_PLACE`; or otherwise."""
    first, other = summand.data_ptr(), out.data_ptr()
    if first == other:
        return IN_PLACE if summand.dtype == out.dtype else OTHERWISE
    return OTHERWISE if first < other + out.nbytes and other < first + size else 0


def below() -> int:
    """Messages by which a rank gets fewer bytes go as low-latency words."""
    return min(LONGEST, settings.get("low_latency_below_bytes"))


def senders_for(world: int) -> int:
    """Ranks whose lines are looked at together."""
    return min(SENDERS[-1], 1 << (world - 1).bit_length())


def in_two_steps(size: int, world: int) -> bool:
    """Whether an all-reduce of ``size`` bytes goes in two steps: each rank then gets 2 / world of the bytes."""
    return world > 2 and size * (world - 1) * (world - 2) // world >= SAVED_BYTES


def low_latency_of(runtime: Runtime) -> LowLatency:
    """A runtime's low-latency collectives."""
    found: LowLatency | None = getattr(runtime, "overlap_low_latency", None)
    if found is None:
        found = runtime.overlap_low_latency = LowLatency(runtime)  # type: ignore[attr-defined]
    return found
