"""The backends there are, by name."""

from __future__ import annotations

from overlap.chunkplan.document import close_to
from overlap.errors import UsageError

from .base import Backend
from .copy_engine import COPY_ENGINE
from .ldst_inline import LDST_INLINE
from .ldst_reserved import LDST_RESERVED
from .nvshmem import NVSHMEM
from .tma_inline import TMA_INLINE
from .tma_reserved import TMA_RESERVED
from .words_inline import WORDS_INLINE

backends: dict[str, Backend] = {
    b.name: b for b in (COPY_ENGINE, LDST_INLINE, LDST_RESERVED, TMA_INLINE, TMA_RESERVED, WORDS_INLINE, NVSHMEM)
}


def backend(name: str) -> Backend:
    """The backend called ``name``; of ``collective`` the one that carries out what no library does.

    Raises:
        UsageError: there is none; the nearest is named.
    """
    if name in backends:
        return backends[name]
    if name == "collective":
        return COPY_ENGINE
    if name == "serial":
        raise UsageError(
            "serial is a way to call, not to compile: a collective, and then the kernel as it was",
            help="--backend collective compiles a module with a collective of a library",
        )
    known = (*backends, "collective")
    near = close_to(name, known)
    raise UsageError(
        f"unknown backend {name!r}",
        help=(f"did you mean {near[0]!r}? " if near else "") + "backends: " + ", ".join(known),
    )
