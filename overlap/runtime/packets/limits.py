"""From and below which bytes small collectives go by words, and by blocks, and when an all-reduce goes in two steps."""

from __future__ import annotations

from overlap import settings

SAVED_BYTES = 384 << 10
"""Bytes that a second step of an all-reduce must save every rank: about as many as arrive in the time that it takes."""
LONGEST = 1 << 30
"""Bytes that a rank gets by a call, at most, whatever the setting: kernels number units of a byte and lines by 32 bits."""


def below() -> int:
    """Messages by which a rank gets fewer bytes go by one or the other."""
    return min(LONGEST, settings.get("low_latency_below_bytes"))


def blocks_from() -> int:
    """Of those, messages by which a rank gets so many bytes or more in a step go as blocks, the others as words."""
    found: int = settings.get("low_latency_blocks_from_bytes")
    return found


def in_two_steps(size: int, world: int) -> bool:
    """Whether an all-reduce of ``size`` bytes goes in two steps: each rank then gets 2 / world of the bytes."""
    return world > 2 and size * (world - 1) * (world - 2) // world >= SAVED_BYTES
