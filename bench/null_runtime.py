"""A runtime that enqueues nothing, on tensors of the CPU: what is left of a call is the host's own work.

It stands where `overlap.runtime.cuda.runtime` stands, below the protocol. Not in it, and so not in numbers measured with it:
calls of the driver, addresses put into argument lists, events, and the question whether a graph is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_NOT_CAPTURED = nullcontext(False)


class NullRuntime:
    """One rank of ``world``, whose peers are itself."""

    sm_count = 132
    launches_early = True
    blocking = False
    one_queue = False
    device = torch.device("cpu")
    pes: tuple[int, ...] = ()

    def __init__(self, world: int, rank: int = 0) -> None:
        self.world = world
        self.rank = rank
        self.nodes = (0,) * world
        self.linked: dict[str, Any] = {}

    def symmetric(self, shape: Sequence[int], dtype: torch.dtype, *, zero: bool = False) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def peer(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        return tensor

    def table(self, values: Sequence[int], *, bits: int = 32, into: torch.Tensor | None = None) -> torch.Tensor:
        made = torch.tensor(list(values), dtype=torch.int32 if bits == 32 else torch.int64)
        return made if into is None else into.copy_(made)

    def agree(self, what: str, value: Any, *, seconds: float | None = None) -> list[Any]:
        return [value] * self.world

    def main_stream(self) -> int:
        return 0

    def forks(self, lanes: Sequence[int]) -> list[int]:
        return [1 + lane for lane in lanes]

    def behind(self, stream: int, other: int) -> None:
        """Nothing was enqueued."""

    def join(self, stream: int) -> None:
        """Nothing was enqueued."""

    def capturing(self) -> bool:
        return False

    def in_order(self, key: Any, main: int) -> AbstractContextManager[bool]:
        return _NOT_CAPTURED

    def holder(self, word: torch.Tensor, value: int) -> Callable[[int], None]:
        return _nothing

    def copier(self, dst: torch.Tensor, src: torch.Tensor, place: Any = None) -> Callable[..., None]:
        return _nothing

    def chained(self, enqueues: Sequence[Callable[[int], None]]) -> Callable[[int], None]:
        return _nothing

    def settled(self, enqueue: Callable[[int], None]) -> Callable[[int], None]:
        return enqueue

    def recorded(self, key: Any, steps: Callable[[Any], None]) -> None:
        """Calls go by their steps."""

    def warm(self, kernel: Any, grid: Any, kwargs: dict[str, Any], **options: Any) -> Callable[..., None]:
        return _nothing

    def resident(self, kernel: Any, grid: Any, kwargs: dict[str, Any]) -> int:
        return self.sm_count

    def launch(self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], stream: int) -> None:
        """Nothing runs."""

    def watch(self, state: torch.Tensor, *, packets: bool = False) -> Callable[[], None]:
        return lambda: None

    def synchronize(self) -> None:
        """Nothing was enqueued."""

    def release(self) -> None:
        """The tensors go by themselves."""


class NullGroup:
    """A group that carries a `NullRuntime`, as simulated groups carry theirs."""

    def __init__(self, world: int) -> None:
        self.overlap_runtime = NullRuntime(world)

    def rank(self) -> int:
        return self.overlap_runtime.rank

    def size(self) -> int:
        return self.overlap_runtime.world


def _nothing(*_: Any, **__: Any) -> None:
    """Stands for what would enqueue."""
