"""`LowLatency`: collectives of small tensors in one launch each, over symmetric memory.

    a rank gets   < low_latency_blocks_from_bytes in a step    words that carry their own mark (`words`)
                  < low_latency_below_bytes in all             dense blocks, a flag behind each (`blocks`)
                  else                                         left to the library

    call e      every rank: into the slots of all others, side e % 2 | waits at its own until all has come
    call e + 1  the other side

Two sides are enough, and nobody tells anybody that a slot is free. Every rank hears of every other in every call, empty pieces
included, which go as one line or block. So a rank that has ended call e - 1 has heard of each rank in that call, each of which
had ended call e - 2 by then, on its own stream: its slots of call e - 2, the side of call e, had been read. With one side a rank
could overwrite in call e what another still looks at in call e - 1. Words and blocks have slots and calls of their own.

The epoch is in device memory, a word for each program that may run, so graphs replay with new ones. Flags hold all of it; words
bear its low half but for two values, and once in 2^31 calls a side's unused lines are cleared, so that none is taken for one of
2^32 calls later.

All sums are made in fp32 (fp64 of fp64), in the order of the ranks, and rounded once: the same bits in every run, and of an
all-reduce on every rank, whatever carries them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from overlap import settings
from overlap.chunkplan.region import shard_interval
from overlap.errors import DeadlineError
from overlap.language.packets import DATA_BYTES

from ..protocol import IN_FLIGHT, Runtime
from ..repeat.places import Carried
from .blocks import Blocks
from .boxes import pieces, whole
from .limits import below, blocks_from, in_two_steps
from .memory import SlotMemory
from .transport import SUMMED, UNITS, Form, Transport, make_room
from .words import Words

ALIGNED = 16
"""Bytes to which an address's alignment matters to kernels."""
IN_PLACE, OTHERWISE = 1, 2
"""How a result shares memory with its summand: it is the summand, or it is not."""


class Ready:
    """A launch for calls that differ in where their tensors lie alone, and not in whether they share memory.

    Args:
        calls: of the group.
        memory: that of ``transport`` now.
        received: bytes that a rank gets in a step, of which a call has ``steps``.
        src, out: the tensors of the call that it was made for, which are not kept.
    """

    __slots__ = ("_calls", "_enqueue", "_ends", "_runtime", "_shared", "memory", "received", "steps", "transport")

    def __init__(
        self,
        calls: LowLatency,
        enqueue: Callable[..., None],
        transport: Transport,
        memory: SlotMemory,
        received: int,
        steps: int,
        src: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        self._calls = calls
        self._runtime = calls.runtime
        self._enqueue = enqueue
        self.transport = transport
        self.memory = memory
        self.received = received
        self.steps = steps
        addresses = src.data_ptr(), out.data_ptr()
        self._ends = addresses[0] % ALIGNED, addresses[1] % ALIGNED
        self._shared = addresses[0] == addresses[1]

    def __call__(self, src: torch.Tensor, out: torch.Tensor) -> bool:
        """One more call, with tensors of the same layouts and under the same settings, which are one, or share no memory.

        False, and nothing was enqueued: the slots are others by now, or tensors are aligned otherwise, or are one otherwise.

        Raises:
            DeadlineError: an earlier call waited in vain.
        """
        memory, addresses = self.memory, [src.data_ptr(), out.data_ptr()]
        begin, end = addresses
        if (
            memory is not self.transport.memory
            or (begin % ALIGNED, end % ALIGNED) != self._ends
            or (begin == end) is not self._shared
        ):
            return False
        self._calls.check()
        runtime = self._runtime
        main = runtime.main_stream()
        with runtime.in_order(IN_FLIGHT, main) as capturing:
            if capturing:
                memory.captured = True
            self._enqueue(main, Carried((src, out), addresses))
        return True


class LowLatency:
    """The small collectives of a group on this rank. Obtained with `low_latency_of`.

    Every method says by what it went: ``words`` or ``blocks``. It gives an empty text, having done nothing, where a collective of
    the library must do: the message is too long (the setting ``low_latency_below_bytes``), nothing is added in its dtype, or a
    graph is being captured and this is the first call of its shape, which is collective. Ranks call alike, so all are given the
    same answer.

    Raises (every method):
        DeadlineError: an earlier call waited in vain.
        RuntimeContractError: ranks that call differently, found at a first call.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.words, self.blocks = Words(runtime), Blocks(runtime)
        self.latest: Ready | None = None
        """What the call that was made last went by, for those like it; None where tensors were copied on the way."""
        self._ready: dict[Any, Ready] = {}
        self._error: DeadlineError | None = None

    def all_reduce(self, summand: torch.Tensor, out: torch.Tensor) -> str:
        """The sum of all ranks' ``summand`` into ``out``, of its shape.

        Every rank sends all of it to every other; of larger ones a part to each, and then the sum of its own part to all. That
        takes a copy where ``out`` shares memory with ``summand``, unless it is ``summand`` and goes in one step or by blocks.
        """
        size = summand.numel() * summand.element_size()
        two_steps = summand.dtype == out.dtype and in_two_steps(size, self.runtime.world)
        shared = _shared(summand, size, out)
        key: Any = ("all_reduce", two_steps, *_layout(summand), *_layout(out), shared)
        if found := self._again(key, summand, out):
            return found
        piece = self._part(size) if two_steps else size
        by_words = self._transport(self._received(piece), 1 + two_steps) is self.words
        if shared and (shared != IN_PLACE or (two_steps and by_words)):
            # A program would store results over what another one has not sent yet.
            key, summand = None, summand.clone(memory_format=torch.contiguous_format)
        if summand.dtype not in SUMMED or not out.is_floating_point():
            return ""
        facts: tuple[Any, ...] = ("all_reduce", tuple(summand.shape), str(summand.dtype), str(out.dtype))
        if two_steps:
            facts = (*facts, "two steps")
            return self._call(key, facts, piece, 2, summand, out, lambda by, src, to: by.two_steps(src, to))
        boxes = whole(tuple(summand.shape))
        return self._call(key, facts, piece, 1, summand, out, lambda by, src, to: by.sum(src, boxes, to, piece))

    def reduce_scatter(self, summand: torch.Tensor, dim: int, out: torch.Tensor) -> str:
        """This rank's piece along ``dim`` of the sum of all ranks' ``summand``, into ``out``."""
        key = ("reduce_scatter", dim, *_layout(summand), *_layout(out))
        if found := self._again(key, summand, out):
            return found
        if summand.dtype not in SUMMED or not out.is_floating_point():
            return ""
        boxes = pieces(tuple(summand.shape), dim, self.runtime.world)
        facts = ("reduce_scatter", tuple(summand.shape), dim, str(summand.dtype), str(out.dtype))
        piece = boxes.longest() * summand.element_size()
        return self._call(key, facts, piece, 1, summand, out, lambda by, src, to: by.sum(src, boxes, to, piece))

    def all_gather(self, shard: torch.Tensor, dim: int, out: torch.Tensor) -> str:
        """The tensor of which every rank has its piece along ``dim``, into ``out``."""
        key = ("all_gather", dim, *_layout(shard), *_layout(out))
        if found := self._again(key, shard, out):
            return found
        if not _moved(shard, out):
            return ""
        boxes, to = whole(tuple(shard.shape)), pieces(tuple(out.shape), dim, self.runtime.world)
        facts = ("all_gather", tuple(out.shape), dim, str(shard.dtype))
        piece = to.longest() * shard.element_size()
        return self._call(
            key, facts, piece, 1, shard, out, lambda by, src, dst: by.exchange(src, boxes, dst, to, piece)
        )

    def all_to_all(self, held: torch.Tensor, from_dim: int, to_dim: int, out: torch.Tensor) -> str:
        """A tensor of which every rank holds its piece along ``from_dim``, as this rank's piece along ``to_dim``."""
        key = ("all_to_all", from_dim, to_dim, *_layout(held), *_layout(out))
        if found := self._again(key, held, out):
            return found
        if not _moved(held, out):
            return ""
        world = self.runtime.world
        shape = list(out.shape)
        shape[to_dim] = held.shape[to_dim]
        piece = held.element_size() * math.prod(
            shard_interval(n, world, 0)[1] if dim in (from_dim, to_dim) else n for dim, n in enumerate(shape)
        )
        boxes, to = pieces(tuple(held.shape), to_dim, world), pieces(tuple(out.shape), from_dim, world)
        facts = ("all_to_all", tuple(shape), from_dim, to_dim, str(held.dtype))
        return self._call(key, facts, piece, 1, held, out, lambda by, src, dst: by.exchange(src, boxes, dst, to, piece))

    def copies_in_place(self, size: int) -> bool:
        """Whether an all-reduce of ``size`` bytes would copy a summand that shares memory with the result."""
        if not in_two_steps(size, self.runtime.world):
            return False
        return self._transport(self._received(self._part(size)), 2) is self.words

    def check(self) -> None:
        """Raises DeadlineError if a call waited in vain; costs no synchronisation."""
        if self._error is None:
            for memory in (self.words.memory, self.blocks.memory, *self.words.kept, *self.blocks.kept):
                record = memory.fault() if memory is not None else None
                if memory is not None and record is not None:
                    sender = memory.sender(record.flag, self.runtime.world, self.runtime.rank)
                    self._error = DeadlineError(
                        f"rank {self.runtime.rank}: a low-latency collective waited {settings.get('deadline_s'):g} s for rank "
                        f"{sender} to send (call {record.wanted}); its result is not valid, and neither is any after it",
                        help="a peer has ended, has raised, or calls in another order; overlap.release(group) on all ranks "
                        "starts anew",
                    )
                    break
        if self._error is not None:
            raise DeadlineError(self._error.message, help=self._error.help)

    def clear(self) -> None:
        """Lets go of the memory; no rank may use it any more."""
        self._error = self.latest = None
        self.words.clear()
        self.blocks.clear()
        self._ready.clear()

    def _part(self, size: int) -> int:
        """Bytes that a rank gets of each other one in each of two steps."""
        return -(-size // (DATA_BYTES * self.runtime.world)) * DATA_BYTES

    def _received(self, piece: int) -> int:
        """Bytes that a rank gets in a step, of which the longest pieces are of ``piece`` bytes."""
        return piece * (self.runtime.world - 1)

    def _transport(self, received: int, steps: int) -> Transport | None:
        """What a call goes by of so many steps, in each of which a rank gets ``received`` bytes; None: too long."""
        if steps * received >= below():
            return None
        return self.words if received < blocks_from() else self.blocks

    def _again(self, key: Any, src: torch.Tensor, out: torch.Tensor) -> str:
        """Makes a call that is like an earlier one but for where its tensors lie, if there was one."""
        ready = self._ready.get(key)
        if ready is None:
            return ""
        if self._transport(ready.received, ready.steps) is not ready.transport or not ready(src, out):
            return ""
        self.latest = ready
        return ready.transport.name

    def _call(
        self,
        known_as: Any,
        facts: tuple[Any, ...],
        piece: int,
        steps: int,
        src: torch.Tensor,
        out: torch.Tensor,
        form_of: Callable[[Transport, torch.Tensor, torch.Tensor], Form],
    ) -> str:
        """One launch.

        Args:
            known_as: under which later calls find it, if tensors are dense: they are the caller's own.
            facts: of the call, the same on every rank.
            piece: bytes of the longest piece that any rank sends to another, of which there are ``steps``.
            form_of: the call as a transport carries it out, of dense tensors.
        """
        runtime = self.runtime
        self.check()
        received = self._received(piece)
        transport = self._transport(received, steps)
        if transport is None:
            return ""
        dense = src.is_contiguous() and out.is_contiguous()
        src = src.contiguous()
        place = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype, device=out.device)
        form = form_of(transport, src, place)
        main = runtime.main_stream()
        with runtime.in_order(IN_FLIGHT, main) as capturing:
            enqueue = transport.enqueue(facts, form, src, place, capturing)
            if enqueue is None:
                return ""
            self.latest = None
            if dense and known_as is not None and transport.memory is not None:
                make_room(self._ready)
                self.latest = Ready(self, enqueue, transport, transport.memory, received, steps, src, out)
                self._ready[known_as] = self.latest
            enqueue(main, Carried((src, place)))
        if place is not out:
            out.copy_(place)
        return transport.name


def _moved(src: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether elements can be moved as they are."""
    return src.dtype == out.dtype and src.element_size() in UNITS


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a launch depends on of a tensor."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.data_ptr() % ALIGNED


def _shared(summand: torch.Tensor, size: int, out: torch.Tensor) -> int:
    """How a dense summand of ``size`` bytes and a dense result share memory: 0, not at all; `IN_PLACE`; or otherwise."""
    first, other = summand.data_ptr(), out.data_ptr()
    if first == other:
        return IN_PLACE if summand.dtype == out.dtype else OTHERWISE
    return OTHERWISE if first < other + out.nbytes and other < first + size else 0


def low_latency_of(runtime: Runtime) -> LowLatency:
    """A runtime's low-latency collectives."""
    found: LowLatency | None = getattr(runtime, "overlap_low_latency", None)
    if found is None:
        found = runtime.overlap_low_latency = LowLatency(runtime)  # type: ignore[attr-defined]
    return found
