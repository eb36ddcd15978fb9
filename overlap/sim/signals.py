"""Signals of users' kernels that come to nothing: set over one another, or raised and never waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from overlap.errors import LostSignalFault
from overlap.runtime.memory.symmetric import Symmetric

from .addresses import where_in_kernel
from .fibres import Fibre
from .memory import Buffer
from .regions import RegionNames
from .shadow import Shadow, span

if TYPE_CHECKING:
    from .world import World


def check_not_lost(shadow: Shadow, fibre: Fibre, buffer: Buffer, offsets: np.ndarray) -> None:
    """Looks at int64 words that the running program is about to exchange, at byte ``offsets``.

    Raises:
        LostSignalFault: one is a signal that somebody else has raised, which the program does not know.
    """
    for offset in offsets.tolist():
        granule = offset >> buffer.shift
        before = shadow.unordered_writer(buffer, granule, fibre.agent)
        if before is None or not isinstance(buffer.label, RegionNames) or not buffer.label.signal(granule):
            continue
        where = where_in_kernel(fibre)
        access = shadow.access(fibre.agent, "sets", where, "sys")
        raise LostSignalFault(
            f"lost signal: {access.tell(buffer.element(granule))} while nothing orders it behind: {before.tell('it')}, "
            "whose value is lost",
            where=span(where),
            help='one writer sets a signal; where several raise it, add: ol.notify(h, slot, peer, 1, op="add")',
        )


def unheard(world: World) -> list[str]:
    """Signals that were raised in a run, and that nobody has waited for since."""
    found = []
    for runtime in world.runtimes:
        made: list[Symmetric] = getattr(runtime, "overlap_symmetric", [])
        for one in made:
            buffer = world.memory.of(one.handle)
            assert buffer is not None
            for offset, word in sorted(buffer.words.items()):
                signal = one.signal_at(buffer.start + offset)
                if signal and word.last is not None and not word.heard:
                    found.append(f"{signal} of rank {runtime.rank}, by {word.last[0].name}")
    return found
