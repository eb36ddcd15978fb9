"""How much of what ranks hold a launch stages, for the event model: each byte is read and written once.

pulled, or staged ahead of its copies    all that a rank holds
pushed out of the caller's tensor        | what its own tiles read | what is sent otherwise |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from overlap.chunkplan.plan import CommPlan, OpId
from overlap.chunkplan.region import bounding

from .givens import reads_held


def held_bytes(plan: CommPlan, width: Mapping[str, float], tensors: Collection[str]) -> float:
    """Bytes of ``tensors`` on the rank that holds most. ``width``: bytes of an element, by tensor."""
    return max(sum(c.box.size * width[c.tensor] for c in chunks if c.tensor in tensors) for chunks in plan.before)


def read_bytes(
    plan: CommPlan, width: Mapping[str, float], tensors: Collection[str], staged: Iterable[OpId] = ()
) -> float:
    """As `held_bytes`, of what a rank's own tiles read and the operations ``staged`` send of what their ranks hold."""
    found = [0.0] * plan.world
    seen = [
        {name: bounding(chunk.box for chunk in chunks if chunk.tensor == name) for name in tensors}
        for chunks in plan.after
    ]
    for rank, chunks in enumerate(plan.before):
        for chunk in chunks:
            window = seen[rank].get(chunk.tensor)
            if window is not None:
                found[rank] += chunk.box.intersect(window).size * width[chunk.tensor]
    for op_id in staged:
        src, rank = plan.op(op_id).src, op_id[0]
        window = seen[rank].get(src.tensor)
        if src.tensor in tensors and reads_held(plan, op_id) and not (window is not None and window.contains(src.box)):
            found[rank] += src.box.size * width[src.tensor]
    return max(found)
