"""The timers of a group's devices on one clock, and the moment when all ranks may begin.

    rank 0   s0 raise -> | polls ............ | t0 | s1 raise -> ...
    rank 1        s0 raise -> | polls ....... | t0 | s1 raise -> ...

A kernel of one program goes through rounds of raising a signal of every rank and waiting for every rank's, and writes down its
timer before (s) and behind (t). No rank is behind a round before every rank has raised for it, so between any two ranks

    max (s of one - t of the other) <= difference of the timers <= min (t of one - s of the other)

holds whoever came last: both ends are bounds, not guesses. Their middle is taken, and half of what lies between them, with the
step of both timers, is what is not known. The end of the last round is the moment that a recorded call begins at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..memory.symmetric import Symmetric
from ..protocol import Runtime
from .timer_kernels import meet_kernel, stamp_kernel

ROUNDS = 32
_READS = 2048


@dataclass(frozen=True)
class Clock:
    """What one rank's rounds wrote: ``s`` and ``t`` of each, in counts of its own timer; ``step`` of the timer."""

    raised: tuple[int, ...]
    met: tuple[int, ...]
    step: int


@dataclass(frozen=True)
class Aligned:
    """A rank's timer against that of rank 0.

    ``zero``: the moment on this rank's timer at which the first of all ranks was behind the rounds. ``exactly``: counts within
    which that is known.
    """

    zero: float
    exactly: float


class Meeting:
    """Rounds of all ranks of a group, and stamps. Made and given back on all ranks at once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._box = Symmetric(runtime, (1,), torch.int64, signals=runtime.world, zero=True)
        self._first = 1
        self._times = [runtime.table([0] * (2 * ROUNDS), bits=64) for _ in range(2)]
        self._stamps = [runtime.table([0, 0], bits=64) for _ in range(2)]
        self._launch(stamp_kernel, times=self._stamps[0], reads=_READS)
        self.meet(0)
        runtime.synchronize()
        self.step = int(self._stamps[0].tolist()[1])

    def meet(self, which: int) -> None:
        """Enqueues rounds on the caller's stream, the first or the second of a recorded call."""
        times = self._times[which]
        rank, world = self._runtime.rank, self._runtime.world
        self._launch(
            meet_kernel, h=self._box.handle, times=times, rank=rank, first=self._first, world=world, rounds=ROUNDS
        )
        self._first += ROUNDS

    def stamp(self) -> None:
        """Enqueues a stamp."""
        self._launch(stamp_kernel, times=self._stamps[1], reads=0)

    def _launch(self, kernel: Any, **arguments: Any) -> None:
        self._runtime.launch(kernel, (1, 1, 1), (), {**arguments, "num_warps": 1}, self._runtime.main_stream())

    def clock(self, which: int) -> Clock:
        """What the rounds wrote; the device must be done with them.

        Raises:
            DeadlineError: a rank did not come.
        """
        self._box.check()
        words = self._times[which].tolist()
        return Clock(tuple(words[::2]), tuple(words[1::2]), self.step)

    def stamped(self) -> int:
        """The stamp; the device must be done with it."""
        return int(self._stamps[1].tolist()[0])

    def release(self) -> None:
        """Gives the memory back; collective."""
        self._box.release()


def aligned(clocks: Sequence[Clock]) -> tuple[Aligned, ...]:
    """Every rank's timer against rank 0's, from one set of rounds of all."""
    base = clocks[0]
    offsets, known = [0.0], [0.0]
    for other in clocks[1:]:
        low = max(s - t for s, t in zip(other.raised, base.met, strict=True)) - other.step - base.step
        high = min(t - s for t, s in zip(other.met, base.raised, strict=True)) + other.step + base.step
        offsets.append((low + high) / 2)
        known.append((high - low) / 2)
    zero = min(clock.met[-1] - offset for clock, offset in zip(clocks, offsets, strict=True))
    return tuple(Aligned(zero + offset, exactly) for offset, exactly in zip(offsets, known, strict=True))
