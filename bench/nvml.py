"""Clocks and power of a GPU while it works, read through the driver's library; nothing is ever set."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

LIBRARY = "libnvidia-ml.so.1"
SM_CLOCK = 1
POWER_CAP = 0x4
"""Among the reasons why clocks are what they are: the board's limit of power."""
EVERY_S = 0.004


class Sample(NamedTuple):
    """At one moment: the multiprocessors' clock, power (an average of the driver's), and whether that limits the clock."""

    mhz: int
    watts: float
    capped: bool


class Nvml:
    """One GPU, by its UUID as torch says it.

    Raises:
        OSError: no library, no such GPU, or the driver does not tell.
    """

    def __init__(self, uuid: str) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._handle = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        self._call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(self._handle))
        self.sample()

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OSError(f"{name} of {LIBRARY} gives {status}")

    def sample(self) -> Sample:
        clock, power, why = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        self._call("nvmlDeviceGetClockInfo", self._handle, SM_CLOCK, ctypes.byref(clock))
        self._call("nvmlDeviceGetPowerUsage", self._handle, ctypes.byref(power))
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle, ctypes.byref(why))
        return Sample(clock.value, power.value / 1e3, bool(why.value & POWER_CAP))


@contextmanager
def sampling(gpu: Any, begin_s: float) -> Iterator[list[Sample]]:
    """Samples of what runs inside, from ``begin_s`` seconds on."""
    found: list[Sample] = []
    done = threading.Event()

    def watch() -> None:
        done.wait(begin_s)
        while not done.is_set():
            found.append(gpu.sample())
            time.sleep(EVERY_S)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def said_of(samples: list[Sample]) -> dict[str, float]:
    """Medians, the lowest clock, and the share of samples in which power limits the clock; nothing of no samples."""
    if not samples:
        return {}
    return {
        "sm_mhz": statistics.median(each.mhz for each in samples),
        "least_mhz": min(each.mhz for each in samples),
        "watts": round(statistics.median(each.watts for each in samples), 1),
        "capped": round(sum(each.capped for each in samples) / len(samples), 2),
        "samples": len(samples),
    }
