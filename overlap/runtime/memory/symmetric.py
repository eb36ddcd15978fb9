"""`Symmetric`: a tensor that every rank of a group has, with signals, for kernels that users write.

    rank 0   tensor   | words: fault, rank, ranks, table | signal 0 | signal 1 |        kernel(box.tensor, box.handle)
    rank 1   tensor   | words: ...                       | signal 0 | signal 1 |        table: where each rank has its own

What a kernel finds behind the handle is laid out in `overlap.language.handle`, and read by `overlap.language.symm`.
Waits have the deadline that the waits of operators have. Memory that peers may write to cannot go when one rank drops its
name for it, so the runtime keeps it until all ranks give it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from overlap import settings
from overlap.errors import DeadlineError, RuntimeContractError, UsageError
from overlap.language import handle as layout
from overlap.schedule.table import SLOT_WORDS

from ..protocol import Runtime


class Symmetric:
    """The same tensor on every rank of a group. Made on all ranks at once, by `overlap.symmetric`.

    Args:
        runtime: this rank's.
        shape, dtype: of every rank's tensor.
        signals: int64 words that any rank may raise on any other, 0 at first.
        zero: whether the tensor is cleared before any rank can reach it.

    Raises:
        UsageError: a shape, dtype or number of signals that cannot be.
        RuntimeContractError: ranks that ask for different tensors.
    """

    def __init__(
        self, runtime: Runtime, shape: Sequence[int], dtype: torch.dtype, *, signals: int = 1, zero: bool = False
    ) -> None:
        _check(shape, dtype, signals)
        self._runtime = runtime
        self.shape = tuple(shape)
        self.dtype = dtype
        self.signals = signals
        self._tensor: torch.Tensor | None = runtime.symmetric(list(shape), dtype, zero=zero)
        words: torch.Tensor = runtime.symmetric([layout.words_for(signals)], torch.int64, zero=True)
        self._words: torch.Tensor | None = words
        self._addresses = [runtime.peer(words, p).data_ptr() for p in range(runtime.world)]
        first = layout.S_SIGNAL * SLOT_WORDS * words.element_size()
        table = layout.table_words(_distances(runtime, self._tensor), [base + first for base in self._addresses])
        self._table = runtime.table(table, bits=64)
        place = [runtime.rank, runtime.world, self._table.data_ptr()]
        words[layout.W_RANK : layout.W_TABLE + 1] = runtime.table(place, bits=64)
        words[layout.W_SIGNALS : layout.W_SIGNALS + 1] = runtime.table([signals], bits=64)
        self._fault = runtime.watch(words)
        runtime.synchronize()
        _made_on(runtime).append(self)

    def __repr__(self) -> str:
        return f"Symmetric({self.shape}, {self.dtype}, signals={self.signals}, rank {self.rank} of {self.world})"

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return self._runtime.rank

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self._runtime.world

    @property
    def tensor(self) -> torch.Tensor:
        """This rank's tensor. Raises RuntimeContractError once the group's memory was released."""
        return self._kept(self._tensor)

    @property
    def handle(self) -> torch.Tensor:
        """What kernels take as ``h``. Raises RuntimeContractError once the group's memory was released."""
        return self._kept(self._words)

    def peer(self, rank: int) -> torch.Tensor:
        """Another rank's tensor, to look at once all ranks are done.

        Raises:
            UsageError: no such rank.
            RuntimeContractError: the group's memory was released.
        """
        if not isinstance(rank, int) or not 0 <= rank < self.world:
            raise UsageError(f"no rank {rank!r} in a group of {self.world}", help=f"ranks are 0 to {self.world - 1}")
        return self._runtime.peer(self.tensor, rank)

    def _kept(self, tensor: torch.Tensor | None) -> torch.Tensor:
        if tensor is None:
            raise RuntimeContractError(
                f"the memory of {self!r} was released", help="make it anew after overlap.release, on all ranks"
            )
        return tensor

    def check(self) -> None:
        """Raises what a wait that gave up left behind; device work must have ended.

        Raises:
            DeadlineError: names rank, signal, and the value wanted and seen.
        """
        record = self._fault()
        if record is None:
            return
        raise DeadlineError(
            f"rank {self.rank} waited {settings.get('deadline_s'):g} s for {self.signal_at(record.flag)} of "
            f"{self!r}: wanted {record.wanted}, seen {record.seen}; what was computed since is not valid",
            help="a peer has not raised it, or has ended; overlap.release(group) on all ranks and a new overlap.symmetric "
            "start anew",
        )

    def words_at(self, address: int) -> bool:
        """Whether this rank's words begin at ``address``."""
        return self._addresses[self.rank] == address

    def signal_at(self, address: int) -> str:
        """In words, the signal whose word is at ``address`` of any rank; empty where there is none."""
        for rank, base in enumerate(self._addresses):
            slot = (address - base) // (8 * SLOT_WORDS) - layout.S_SIGNAL
            if 0 <= slot < self.signals:
                return f"signal {slot}" + (f" of rank {rank}" if rank != self.rank else "")
        return ""

    def release(self) -> None:
        """Gives the memory back, once all work on this rank's device is done; collective, never while a graph is captured."""
        if self._tensor is None:
            return
        self._runtime.synchronize()
        self._runtime.agree(f"release of {self.shape}, {self.dtype}", None)
        _made_on(self._runtime).remove(self)
        self.forget()

    def forget(self) -> None:
        """Lets go of the memory; no rank may use it any more."""
        self._tensor = self._words = None


def _check(shape: Sequence[int], dtype: Any, signals: Any) -> None:
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise UsageError(f"a shape is a sequence of sizes, not {shape!r}", help="overlap.symmetric((4, 1024), ...)")
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise UsageError(f"a size is an integer of at least 0, not {size!r}")
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"dtype is a torch.dtype, not {dtype!r}", help="dtype=torch.float32")
    if dtype.is_complex or dtype.itemsize > layout.LINE // layout.ALIGNED:
        raise UsageError(
            f"kernels have no pointers to {dtype}", help="take its real type, with one more dimension of 2"
        )
    if not isinstance(signals, int) or isinstance(signals, bool) or signals < 0:
        raise UsageError(f"signals is a number of at least 0, not {signals!r}")


def _distances(runtime: Runtime, tensor: torch.Tensor) -> list[int]:
    """Lines from this rank's tensor to every rank's."""
    found = []
    for peer in range(runtime.world):
        distance = runtime.peer(tensor, peer).data_ptr() - tensor.data_ptr()
        if distance % layout.LINE:
            raise RuntimeContractError(
                f"the memory of rank {peer} begins at another place in a line of {layout.LINE} bytes than that of rank "
                f"{runtime.rank}",
                help="OVERLAP_PROVIDER chooses another provider of symmetric memory",
            )
        found.append(distance // layout.LINE)
    return found


def _made_on(runtime: Any) -> list[Symmetric]:
    """All that a runtime holds."""
    found: list[Symmetric] | None = getattr(runtime, "overlap_symmetric", None)
    if found is None:
        found = runtime.overlap_symmetric = []
    return found


def check_symmetric(runtime: Runtime) -> None:
    """`Symmetric.check` of all that a runtime holds."""
    for made in _made_on(runtime):
        made.check()


def release_symmetric(runtime: Runtime) -> None:
    """Lets go of all symmetric tensors of a runtime."""
    for made in _made_on(runtime):
        made.forget()
    _made_on(runtime).clear()
