"""What a generated kernel lost against its original, both compiled for one target with the same arguments."""

from __future__ import annotations

from collections.abc import Iterable

from . import ttir
from .artifact import Artifact, Facts, facts
from .rules import Finding

WAIT_BYTES = 256
"""Shared memory that the waits may add: Triton hands a polled scalar to the other threads through it."""

_DOTS = ("tt.dot", "tt.dot_scaled", "ttng.warp_group_dot", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled")


def compare(made: Artifact, original: Artifact, nested: int = 0, *, taken: int = 0, beside: int = 0) -> list[Finding]:
    """What the generated kernel lost against the original, compiled for the same target with the same arguments.

    ``nested``: loops that were put around the original's inner loop. ``taken``: bytes of shared memory that programs of the
    launch may take to move chunks; ``beside``: that programs which compute may take for it beside what they had.
    """
    ours, theirs = facts(made), facts(original)
    return [
        *_engines(ours, theirs),
        *_pipeline(ours, theirs, taken, beside),
        *_loops(made, original, nested),
    ]


def _engines(ours: Facts, theirs: Facts) -> Iterable[Finding]:
    for what, mine, other in (
        ("wgmma", ours.wgmma, theirs.wgmma),
        ("matrix", ours.matrix_instructions, theirs.matrix_instructions),
        ("TMA load", ours.tma_loads, theirs.tma_loads),
        ("TMA store", ours.tma_stores, theirs.tma_stores),
        ("cp.async", ours.async_copies, theirs.async_copies),
    ):
        if other and not mine:
            yield Finding("same-engines", "error", 0, f"the original has {other} {what} instructions, this kernel none")
    if theirs.spill_bytes == 0 and ours.spill_bytes:
        yield Finding("no-spills", "warning", 0, f"{ours.spill_bytes} spilled; the original has none")


def _pipeline(ours: Facts, theirs: Facts, taken: int, beside: int) -> Iterable[Finding]:
    mine: dict[tuple[tuple[int, ...], str], int] = {}
    for b in ours.buffers:  # the result's tile may have an operand's shape
        mine[b.shape, b.dtype] = max(b.depth, mine.get((b.shape, b.dtype), 0))
    kept = True
    for buffer in theirs.buffers:
        if buffer.depth == 1:
            continue  # not a pipeline: a result's tile on its way out, which versions of Triton place differently
        depth = mine.get((buffer.shape, buffer.dtype), 0)
        if depth < buffer.depth:
            kept = False
            yield Finding("same-stages", "error", 0, f"{depth} buffers where the original has {buffer}")
    more = ours.shared_bytes - theirs.shared_bytes
    if ours.shared_bytes > WAIT_BYTES + max(theirs.shared_bytes + beside, taken):
        yield Finding("same-shared-memory", "error", 0, f"{ours.shared_bytes} bytes, {more} more than the original")
    elif more < 0 and kept:
        yield Finding(
            "same-shared-memory",
            "note",
            0,
            f"{ours.shared_bytes} bytes, {-more} fewer than the original: the epilogue does not overlap the next tile",
        )


def _loops(made: Artifact, original: Artifact, nested: int) -> Iterable[Finding]:
    mine, theirs = _dot_depth(made) - nested, _dot_depth(original)
    if mine > theirs > 0:
        yield Finding(
            "same-flattening",
            "warning",
            0,
            "the original's tile loop is fused with its inner loop, this kernel's is not",
        )


def _dot_depth(artifact: Artifact) -> int:
    """Nested loops around the deepest matrix product, after Triton's loop passes."""
    function = ttir.parse(artifact.stages["ttgir"])
    return max((sum(a.name == "scf.for" for a in op.ancestors()) for op in function.ops(*_DOTS)), default=0)
