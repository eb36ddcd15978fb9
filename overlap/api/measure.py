"""Exposed communication, measured: the fused launch's time less that of the same kernel on data already gathered."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from overlap.errors import UsageError

WARM_UP = 3


def median_ms(run: Callable[[], object], iterations: int) -> float:
    """Median time of ``run`` on the current stream, in milliseconds.

    Raises:
        UsageError: there is no CUDA device to time on, or nothing to run.
    """
    if iterations < 1:
        raise UsageError(f"iterations={iterations}", help="iterations is 1 or more")
    if not torch.cuda.is_available():
        raise UsageError("exposed time is measured on CUDA devices", help="measure on GPUs; last_plan has a prediction")
    for _ in range(WARM_UP):
        run()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(iterations)]
    for start, end in marks:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in marks)


def exposed_ms(fused: Callable[[], object], alone: Callable[[], object], iterations: int) -> float:
    """How much longer ``fused`` takes than ``alone``, the computation on data that is there; not below zero."""
    with_communication = median_ms(fused, iterations)
    return max(0.0, with_communication - median_ms(alone, iterations))
