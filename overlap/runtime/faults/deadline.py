"""Deadlines on the device: how many polls a second has, and the host memory in which a late wait is recorded.

Kernels have no portable clock, so a deadline is a number of polls. A poll's time is measured once a device, by one
program that polls a word nobody raises; a full grid polls more slowly, so a deadline is never cut short. A look at packets is
another kind of poll, with a time of its own.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from overlap.language.packets import LINE_BYTES
from overlap.schedule.table import S_EPOCH, SLOT_WORDS, state_words

from ..kernels.entry import wait_kernel
from ..packets.kernels import LOOKED_AT, wait_packets_kernel
from .faults import LIMIT_WORD, RECORD_WORD, RECORD_WORDS, FaultRecord

_SAMPLE = 20_000


@cache
def _polls_a_second(device: torch.device, packets: bool) -> float:
    with torch.cuda.device(device):
        record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=device)
        state = torch.zeros(state_words(1, 1), dtype=torch.int64, device=device)
        flag = torch.zeros(LOOKED_AT * LINE_BYTES // 8, dtype=torch.int64, device=device)
        best = float("inf")
        for _ in range(3):
            state.zero_()
            state[S_EPOCH * SLOT_WORDS] = 1
            state[LIMIT_WORD] = _SAMPLE
            state[RECORD_WORD] = record.data_ptr()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            if packets:
                wait_packets_kernel[(1, 1, 1)](lines=flag, state=state, num_warps=1)
            else:
                wait_kernel[(1, 1, 1)](flag=flag, state=state, num_warps=1)
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end))
    return _SAMPLE / (best / 1000)


def spins_for(seconds: float, device: torch.device, *, packets: bool = False) -> int:
    """Polls, or looks at packets, that last about ``seconds`` on ``device``; 0, no limit, for 0 seconds."""
    return max(2, int(seconds * _polls_a_second(device, packets))) if seconds else 0


class Watch:
    """Called, gives the record of a wait on ``state`` that gave up, or None; reads host memory alone.

    Args:
        state: this rank's state words, which no kernel uses yet.
        spins: polls after which a wait gives up; 0: never.
    """

    def __init__(self, state: torch.Tensor, spins: int) -> None:
        self._record = torch.zeros(RECORD_WORDS, dtype=torch.int64, pin_memory=True)
        self.address = self._record.data_ptr()
        """Of the word that is not 0 once a wait has given up."""
        self._written = ctypes.c_int64.from_address(self.address)
        words = torch.tensor([spins, self._record.data_ptr()], dtype=torch.int64)
        state[LIMIT_WORD] = words[0]
        state[RECORD_WORD] = words[1]
        torch.cuda.synchronize(state.device)

    def __call__(self) -> FaultRecord | None:
        if not self._written.value:
            return None
        if not torch.cuda.is_current_stream_capturing():
            # The words of the record were written in no order; the grid that wrote them drains at once.
            torch.cuda.synchronize()
        _, flag, wanted, seen, instance = self._record.tolist()
        return FaultRecord(flag, wanted, seen, instance)
