"""Shared memory that inline assembly declares: it stands ahead of what Triton lays out, which Triton does not know.

| declared | buffers of tiles, by Triton ......... |     together no more than a program has
           ^ a multiple of 1024, as swizzled TMA and wgmma have them
"""

from __future__ import annotations

from collections.abc import Iterator

from .artifact import Artifact
from .rules import Finding

ALIGNMENT = 1024
MOST = {90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
"""Bytes that a program may have, by architecture: those where tiles are swizzled for TMA and wgmma."""


def static_memory(artifact: Artifact) -> Iterator[Finding]:
    """A finding where declared memory moves the kernel's buffers off their alignment, or leaves too little for them."""
    static, asked = artifact.static_bytes, artifact.shared_bytes
    most = MOST.get(int(artifact.target.arch))
    if not static or most is None:
        return
    if static % ALIGNMENT:
        yield Finding(
            "static-shared-memory",
            "error",
            0,
            f"assembly declares {static} bytes of shared memory, no multiple of {ALIGNMENT}: the buffers behind are not aligned",
        )
    if static + asked > most:
        yield Finding(
            "static-shared-memory",
            "error",
            0,
            f"assembly declares {static} bytes of shared memory beside {asked}, and a program has {most}",
        )
