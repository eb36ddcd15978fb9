"""At what clock a call ran: cycles and nanoseconds of one multiprocessor, read by a kernel of one program before and behind it.

    stamp | call | stamp          MHz = cycles between / microseconds between, where both ran on one multiprocessor

The driver's own numbers (`nvml`) are averages over milliseconds, so they are of many calls; these are of the call that is timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from common import Contender

from overlap.language.record import timer

WORDS = 4
"""Of a stamp: nanoseconds, cycles, the multiprocessor, and one for alignment."""


@triton.jit
def stamp(words):
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    unit = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(words, timer())
    tl.store(words + 1, cycles)
    tl.store(words + 2, unit.to(tl.int64))


def megahertz(words: list[int]) -> float | None:
    """The clock between two stamps; None where they are of two multiprocessors, whose counters differ."""
    (begin, first, unit, _), (end, last, other, _) = words[:WORDS], words[WORDS:]
    return None if unit != other or end <= begin else 1e3 * (last - first) / (end - begin)


def clock_of(call: Contender, visit: Callable[[Contender], Any], device: torch.device, calls: int) -> dict[str, float]:
    """The clock in the middle of so many calls, MHz, and how many were of one multiprocessor; nothing where none was.

    Args:
        visit: makes one call, and more of them while the host is not ahead; the last one counts.
    """
    words = torch.zeros(2 * WORDS, dtype=torch.int64, device=device)

    def stamped() -> torch.Tensor:
        stamp[(1,)](words[:WORDS], num_warps=1)
        result = call.call()
        stamp[(1,)](words[WORDS:], num_warps=1)
        return result

    contender = Contender(f"{call.name}, stamped", stamped)
    found = []
    for _ in range(calls):
        visit(contender)
        found.append(megahertz(words.tolist()))
    known = [mhz for mhz in found if mhz is not None]
    return {"mhz": round(statistics.median(known)), "of": len(known)} if known else {}
