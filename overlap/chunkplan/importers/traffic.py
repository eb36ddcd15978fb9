"""How much a plan moves over each axis of a mesh."""

from __future__ import annotations

from ..mesh import Mesh
from ..plan import P2P, CommPlan


def axis_elements(plan: CommPlan, mesh: Mesh) -> tuple[int, ...]:
    """Elements moved between ranks, by the outermost mesh axis that they cross. Collectives are not counted.

    On ``2x4``, two nodes of four, entry 0 is what goes between nodes and entry 1 what stays inside them.
    """
    found = [0] * len(mesh.sizes)
    for _, op in plan.items():
        if isinstance(op, P2P) and op.src_rank != op.dst_rank:
            pair = zip(mesh.coordinates(op.src_rank), mesh.coordinates(op.dst_rank), strict=True)
            found[next(axis for axis, (a, b) in enumerate(pair) if a != b)] += op.dst.box.size
    return tuple(found)
