"""What ways to carry small collectives have in common (`words`, `blocks`): memory that grows, first calls, ready launches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton.language as tl

from overlap import settings
from overlap.errors import RuntimeContractError
from overlap.language.packets import MOST_PROGRAMS, SENDERS

from ..group.meeting import RAISED
from ..kernels.stage import as_words
from ..protocol import Runtime
from ..repeat.places import Place
from .boxes import Boxes
from .memory import SlotMemory

SUMMED = {
    torch.float16: (tl.float16, tl.float32),
    torch.bfloat16: (tl.bfloat16, tl.float32),
    torch.float32: (tl.float32, tl.float32),
    torch.float64: (tl.float64, tl.float64),
}
"""Dtypes that are added, and what in."""
UNITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
"""Integers that stand for so many bytes."""
KEPT = 1024
"""Calls that are found again without a look at more than their tensors' layouts; the oldest go first."""
A_MULTIPROCESSOR = 4
"""Programs of a launch for each multiprocessor, at most: as many as are resident at a time are enough, and soon started."""


class Form(NamedTuple):
    """A collective as a kernel carries it out.

    ``options``, ``numbers``: the kernel's own arguments; ``src``, ``out``: the dtypes that it takes its tensors as; ``piece``:
    bytes of the longest piece that any rank sends to another, and ``steps`` of such pieces; ``work``: blocks of any kind that are
    to be moved for each that the longest piece has; ``threads``: of a program; ``registers``: of a thread, at most (None: as
    many as it takes).
    """

    kernel: Any
    options: dict[str, Any]
    numbers: dict[str, int]
    src: torch.dtype
    out: torch.dtype
    piece: int
    work: int
    threads: int
    steps: int = 1
    registers: int | None = None


class Transport(ABC):
    """One way to carry collectives of a group on this rank."""

    name = ""
    """What it carries collectives by, for reports."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.memory: SlotMemory | None = None
        self.kept: list[SlotMemory] = []
        """Memory that graphs hold, though calls go through larger one by now."""
        self._met: set[Any] = set()

    # what each has of its own

    @abstractmethod
    def exchange(self, src: torch.Tensor, boxes: Boxes, out: torch.Tensor, to: Boxes, piece: int) -> Form:
        """Boxes of ``src`` to every rank, and theirs to boxes of ``out``."""

    @abstractmethod
    def sum(self, src: torch.Tensor, boxes: Boxes, out: torch.Tensor, piece: int) -> Form:
        """The sum of what every rank has for this one in boxes of ``src``, into ``out``."""

    @abstractmethod
    def two_steps(self, src: torch.Tensor, out: torch.Tensor) -> Form:
        """The sum of every rank's ``src`` into ``out``, of its dtype."""

    @abstractmethod
    def _needed(self, form: Form) -> int:
        """Capacity that a call takes."""

    @abstractmethod
    def _tiles(self, form: Form) -> int:
        """Blocks of any kind in the longest piece."""

    @abstractmethod
    def _allowed(self) -> int:
        """Capacity for every call that the settings let through."""

    @abstractmethod
    def _made(self, capacity: int) -> SlotMemory:
        """Memory of that capacity for slots; collective."""

    # what all do

    def enqueue(
        self, facts: tuple[Any, ...], form: Form, src: torch.Tensor, out: torch.Tensor, capturing: bool
    ) -> Callable[..., None] | None:
        """What enqueues a call like this one; None: it is captured, and the first of its shape, which is collective.

        Args:
            facts: of the call, the same on every rank.
            form: of the call.
            src, out: its tensors, dense.
        """
        memory, needed = self.memory, self._needed(form)
        if capturing and (facts not in self._met or memory is None or memory.capacity < needed):
            return None
        if memory is None or memory.capacity < needed:
            memory = self._grow(needed)
        early = settings.get("launch_early") and self._runtime.launches_early
        key = (form.kernel.__name__, early, src.dtype, out.dtype, src.data_ptr() % 16, out.data_ptr() % 16,
               *form.numbers.values(), *form.options.values(), src.numel() == 0, out.numel() == 0)  # fmt: skip
        found = memory.launches.get(key)
        if found is None or facts not in self._met:
            found = self._first(facts, memory, key, form, src, out, early)
        memory.captured |= capturing
        return found

    def clear(self) -> None:
        """Lets go of the memory; no rank may use it any more."""
        self.memory = None
        self.kept.clear()
        self._met.clear()

    def _grow(self, needed: int) -> SlotMemory:
        """Memory for what the settings let through, and for ``needed``."""
        runtime = self._runtime
        capacity = max(needed, self._allowed())
        told = runtime.agree(f"slots of low-latency {self.name}", capacity)
        for rank, theirs in enumerate(told):
            if theirs != capacity:
                raise RuntimeContractError(
                    f"rank {runtime.rank} makes slots of {capacity} for low-latency {self.name}, rank {rank} of {theirs}",
                    help="set OVERLAP_LOW_LATENCY_BELOW_BYTES and OVERLAP_LOW_LATENCY_BLOCKS_FROM_BYTES alike on every rank",
                )
        if self.memory is not None and self.memory.captured:
            self.kept.append(self.memory)
        self.memory = self._made(capacity)
        return self.memory

    def _first(
        self,
        facts: tuple[Any, ...],
        memory: SlotMemory,
        key: Any,
        form: Form,
        src: torch.Tensor,
        out: torch.Tensor,
        early: bool,
    ) -> Callable[..., None]:
        """A launch made ready; the first of a shape meets the other ranks, so that who compiles for long is waited for."""
        runtime = self._runtime
        what = f"the first low-latency {facts[0]}"
        try:
            enqueue = self._warm(memory, form, src, out, early)
            make_room(memory.launches)
            memory.launches[key] = enqueue
        except RAISED as error:
            if facts not in self._met:
                runtime.agree(what, error)
            raise
        if facts not in self._met:
            told = runtime.agree(what, (self.name, facts), seconds=settings.get("compile_deadline_s"))
            for rank, (name, theirs) in enumerate(told):
                if (name, theirs) != (self.name, facts):
                    raise RuntimeContractError(
                        f"ranks call low-latency collectives differently: {facts} by {self.name} on rank {runtime.rank}, "
                        f"{theirs} by {name} on rank {rank}"
                    )
            self._met.add(facts)
        return enqueue

    def _warm(
        self, memory: SlotMemory, form: Form, src: torch.Tensor, out: torch.Tensor, early: bool
    ) -> Callable[..., None]:
        runtime = self._runtime
        later: dict[str, Place | None] = {}
        given = {}
        for number, (name, tensor, words) in enumerate((("src", src, form.src), ("out", out, form.out))):
            if not tensor.numel():
                given[name] = memory.state.view(words)  # nothing is read there, and nothing written
                continue
            given[name] = as_words(tensor, words)
            later[name] = Place(number, 0, tuple(tensor.shape), tuple(tensor.stride()), words)
        arguments = {
            **given, **memory.arguments(), "rank": runtime.rank, "world": runtime.world, **form.numbers, **form.options,
            "num_warps": form.threads // 32,
        }  # fmt: skip
        if form.registers is not None:
            arguments["maxnreg"] = form.registers
        if early:
            arguments |= {"EARLY": True, "launch_pdl": True}
        room = runtime.resident(form.kernel, (1, 1, 1), {**arguments, "programs": 2})
        tiles = self._tiles(form) * form.work
        programs = max(1, min(tiles, room, A_MULTIPROCESSOR * runtime.sm_count, MOST_PROGRAMS))
        return runtime.warm(form.kernel, (programs, 1, 1), {**arguments, "programs": programs}, later=later)


def make_room(kept: dict[Any, Any]) -> None:
    """Lets the oldest go where there are as many as are kept."""
    if len(kept) >= KEPT:
        del kept[next(iter(kept))]


def senders_for(world: int) -> int:
    """Ranks whose lines or blocks are looked at together."""
    return min(SENDERS[-1], 1 << (world - 1).bit_length())
