"""Collectives of a communication library: bytes and seconds, the serial alternative to every plan.

all_gather, reduce_scatter     (n - 1) / n of the tensor leaves and enters every rank
all_reduce                     twice that
all_to_all                     (n - 1) / n of the rank's part
"""

from __future__ import annotations

from collections.abc import Sequence

from overlap.chunkplan.plan import Collective

from .machine import Machine


def collective_bytes(kind: str, ranks: int, size: float) -> float:
    """Bytes that each of ``ranks`` ranks sends, and receives, of a tensor (all_to_all: of a rank's part) of ``size`` bytes."""
    return size * (ranks - 1) / ranks * (2 if kind == "all_reduce" else 1)


def library_seconds(kind: str, ranks: Sequence[int], size: float, machine: Machine) -> float:
    """How long a library takes; ``size`` as in `collective_bytes`.

    Across nodes a ring has a lane through the port of each rank of a node, so that a node's ports carry what one link inside
    the node carries; an all-to-all sends what goes to other nodes through the rank's own port.
    """
    if len(ranks) <= 1 or not size:
        return 0.0
    sent = collective_bytes(kind, len(ranks), size)
    inside = machine.library
    nodes = {rank // machine.node for rank in ranks}
    between = machine.library_between
    if len(nodes) == 1 or between is None:
        return inside.latency_s + sent / inside.bytes_per_s
    beside = len(ranks) / len(nodes)
    if kind == "all_to_all":
        far = sent * (len(ranks) - beside) / (len(ranks) - 1)
        return between.latency_s + max(far / between.bytes_per_s, (sent - far) / inside.bytes_per_s)
    return between.latency_s + sent / min(inside.bytes_per_s, beside * between.bytes_per_s)


def collective_seconds(op: Collective, machine: Machine, itemsize: float) -> float:
    """How long a collective of a plan takes once all its ranks have come to it."""
    whole = op.src if op.kind == "reduce_scatter" else op.dst
    return library_seconds(op.kind, op.ranks, whole.box.size * itemsize, machine)
