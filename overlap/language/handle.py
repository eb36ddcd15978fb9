"""What a kernel finds behind the handle of a symmetric tensor, pure: `overlap.symmetric` writes it, words read it.

    words    this rank's int64 words, symmetric. Slots as in `overlap.schedule.table`, one sector each:
             epoch, counter, spin limit, fault | signal 0 | signal 1 | ...
             Unused words of the first two slots hold: rank, number of ranks, address of the table | number of signals
    table    int64, this rank's own: a guard, then for every rank (distance of its tensor, address of its signal 0)

A distance is counted from this rank's own tensor in lines of `LINE` bytes. A rank that is one too small finds the guard,
which leads nowhere; one too large ends past the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from overlap.schedule.table import S_COUNTER, S_READY, SLOT_WORDS

W_RANK, W_WORLD, W_TABLE = 1, 2, 3
W_SIGNALS = S_COUNTER * SLOT_WORDS + 1
S_SIGNAL = S_READY
"""Slot of signal 0."""

LINE = 128
ALIGNED = 16
"""Elements that every distance is a multiple of, whatever their type: vectors of 16 bytes stay aligned."""
PEER_WORDS = 2
NOWHERE = 1 << 46


def words_for(signals: int) -> int:
    """int64 words behind a handle with so many signals."""
    return (S_SIGNAL + signals) * SLOT_WORDS


def table_words(distances: Sequence[int], signals: Sequence[int]) -> list[int]:
    """The table: each rank's distance in lines, and the address of its signal 0."""
    pairs = zip(distances, signals, strict=True)
    return [NOWHERE, 0, *(word for pair in pairs for word in pair)]
