"""`Need`: what the launches of one shape take of symmetric memory, counted before any is made."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from overlap.chunkplan.order import HappensBefore, happens_before
from overlap.chunkplan.plan import CommPlan, OpId
from overlap.schedule.early import kept_chunks
from overlap.schedule.pieces import Values, partial_sources
from overlap.schedule.sync import assign_slots


class Need(NamedTuple):
    """What a shape takes of memory: elements of each communicated tensor, flags and counters of a launch, int64 words of what
    kernels send in words (`tables.inline_words`)."""

    elements: tuple[int, ...]
    flags: int
    counters: int
    words: int = 0

    def within(self, room: Need) -> bool:
        """Whether ``room`` holds it."""
        return (
            all(a <= b for a, b in zip(self.elements, room.elements, strict=True))
            and self.flags <= room.flags
            and self.counters <= room.counters
            and self.words <= room.words
        )

    def joined(self, other: Need) -> Need:
        """What holds either."""
        elements = tuple(map(max, self.elements, other.elements))
        counts = zip(self[1:], other[1:], strict=True)
        return Need(elements, *(max(pair) for pair in counts))

    def text(self, dtypes: tuple[torch.dtype, ...]) -> str:
        """In bytes, for messages."""
        total = sum(n * dtype.itemsize for n, dtype in zip(self.elements, dtypes, strict=True)) + 8 * self.words
        counters = f" and {self.counters} counters" if self.counters else ""
        return f"{total} bytes, {self.flags} flags{counters}" if counters else f"{total} bytes and {self.flags} flags"


def need_of(
    plan: CommPlan,
    produced: Sequence[str],
    sizes: Sequence[int],
    stored: Collection[OpId] = (),
    moved: Collection[OpId] = (),
    *,
    early: bool = False,
) -> Need:
    """What a plan takes of memory, with ``sizes`` elements of each communicated tensor; the same on every rank.

    Counters are those of chunks, then one for each operation whose tiles are ``stored`` where they go, then one for each in
    the list of the rank, where programs of kernels have ``moved`` some. With ``early`` sums what ranks keep is counted too.
    """
    ranks = range(plan.world)
    flags = max((len(assign_slots(plan, r)) for r in ranks), default=0)
    happens = happens_before(plan) if produced else None
    counters = max((counters_of(plan, rank, produced, stored, happens, early=early) for rank in ranks), default=0)
    counters += max((len(ops) for ops in plan.ops), default=0) if moved else 0
    return Need(tuple(sizes), flags, counters)


def counters_of(
    plan: CommPlan,
    rank: int,
    produced: Sequence[str],
    stored: Collection[OpId],
    happens: HappensBefore | None = None,
    *,
    early: bool = False,
) -> int:
    """How many counters tiles of a rank count into: one for each chunk that is sent, with ``early`` sums one for each that is
    kept, and one for each ``stored`` operation."""
    sources = partial_sources(plan, rank, produced, happens) if produced else ()
    kept = kept_chunks(plan, rank, produced, Values(plan, happens)) if early else ()
    return len(sources) + len(kept) + sum(op in stored for _, ops in sources for op in ops)
