"""Where the host time of calls goes: to each function of the driver, to launches through Triton's launcher, and to the rest.

Functions of libcuda are timed where Python finds them, so what they are called with is converted by ctypes inside their time. Two
looks at the clock are in each, some 0.2 us. What is called from C (`overlap.runtime.native`) is
timed there.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from overlap.runtime.cuda import bound_launch, driver
from overlap.runtime.native.build import native

FUNCTIONS = (
    "cuEventRecord",
    "cuGraphLaunch",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
)
LAUNCHES = "kernels by Triton's launcher"


class DriverParts:
    """Times calls of the driver, from now on. Made ahead of the first of them, since who calls often keeps the function."""

    def __init__(self) -> None:
        self._spent: dict[str, list[float]] = defaultdict(list)
        self._native, cuda = native(), driver.libcuda()
        for name in FUNCTIONS:
            setattr(cuda, name, self._timed(name, getattr(cuda, name)))
        by_address: Any = bound_launch._ByAddress
        by_address.__call__ = self._timed(LAUNCHES, by_address.__call__)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self._spent[name].append(time.perf_counter() - begin)

        return timed

    def of(self, call: Callable[[], Any], calls: int, ready: Callable[[], None]) -> Iterator[str]:
        """Lines: how often a call calls each function, and the medians of what that and all else take together, in us.

        Args:
            ready: is waited for ahead of each call.
        """
        whole, parts = [], defaultdict(list)
        count: dict[str, int] = {}
        for _ in range(calls):
            ready()
            self._spent.clear()
            self._native.times()
            begin = time.perf_counter()
            call()
            whole.append(time.perf_counter() - begin)
            rest = whole[-1]
            for name, nanoseconds in self._native.times().items():
                if nanoseconds:
                    self._spent[f"{name}, from C"].append(1e-9 * nanoseconds)
            for name, times in self._spent.items():
                count[name] = len(times)
                parts[name].append(sum(times))
                rest -= parts[name][-1]
            parts["Python"].append(rest)
        yield f"      {_us(whole):8.1f}  a call"
        for name, times in sorted(parts.items(), key=lambda item: -sum(item[1])):
            often = f"{count[name]} x " if name in count else ""
            yield f"      {_us(times):8.1f}  {often}{name}"


def _us(times: list[float]) -> float:
    return 1e6 * sorted(times)[len(times) // 2]
