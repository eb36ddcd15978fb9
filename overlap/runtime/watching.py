"""A program that does nothing but look at a launch's flags, and writes down when each has risen.

    main stream   | meeting | entry | kernel ............ | ...
    side stream             | looks at all flags again and again ... | all have risen

Tiles only say when they looked: a chunk that was there already came at any time before, and chunks of results are waited for by
sums. It takes one warp. Where the grid leaves no room for it, a program of the kernel starts late, so times are distorted, but
nothing hangs: no flag waits for such a program while it waits for flags. Where programs of the grid move chunks between their
tiles that could be, so such launches are not watched.
"""

from __future__ import annotations

from typing import Any

import triton

from overlap.chunkplan.plan import OpId
from overlap.schedule.table import S_EPOCH, SLOT_WORDS, flag_base

from .instance import Instance
from .timer_kernels import watch_kernel

LANE = 1 << 20
"""The side stream: no plan's lanes go that far."""


class Watcher:
    """Watches the next launch of an instance; None of what is here may be captured.

    Args:
        instance: its device must have nothing to do.
    """

    def __init__(self, instance: Instance) -> None:
        runtime = instance.runtime
        self._instance = instance
        slots = instance.slots[runtime.rank]
        self._ops: tuple[OpId, ...] = tuple(slots)
        base = flag_base(runtime.world)
        count = max(1, len(slots))
        self._slots = runtime.table([base + slot for slot in slots.values()] or [0], bits=32)
        self._times = runtime.table([0] * count, bits=64)
        epoch = int(instance.state[S_EPOCH * SLOT_WORDS : S_EPOCH * SLOT_WORDS + 1].tolist()[0])
        self._arguments = {
            "state": instance.state,
            "slots": self._slots,
            "times": self._times,
            "wanted": epoch + 1,
            "count": len(slots),
            "LANES": triton.next_power_of_2(count),
            "num_warps": 1,
        }
        # Nothing may be compiled or loaded while a kernel spins.
        runtime.warm(watch_kernel, (1, 1, 1), self._arguments)
        self._stream: Any = None

    @staticmethod
    def possible(instance: Instance) -> bool:
        """Whether a launch may have such a program beside it, and has flags."""
        operator = instance.operator
        return bool(instance.slots[instance.runtime.rank]) and not (operator.moves and operator.mover.inline)

    def start(self) -> None:
        """Enqueues it beside what the caller's stream gets from now on."""
        runtime = self._instance.runtime
        self._stream = runtime.fork(LANE)
        runtime.launch(watch_kernel, (1, 1, 1), (), self._arguments, self._stream)

    def join(self) -> None:
        """Has the caller's stream wait for it."""
        self._instance.runtime.join(self._stream)

    def times(self) -> dict[OpId, int]:
        """By operation, when its flag was seen; the device must be done. A flag that never rose is left out."""
        return {op: when for op, when in zip(self._ops, self._times.tolist(), strict=False) if when}
