"""Plans carried out on numbers, and the rule of DTensor's redistribute, both by numpy and by other ways than the compiler's.

Placements are text here, ``S(0)``, ``R`` or ``P`` an axis; the ranks' tensors lie in arrays with one leading dimension a
mesh axis. Parts are small integers in float64, so that sums are exact in any order.
"""

from __future__ import annotations

import random

import networkx as nx
import numpy as np

from overlap.chunkplan.plan import Chunk, CommPlan, OpId

from .oracle import graph_of


def cut(extent: int, parts: int, part: int) -> tuple[int, int]:
    """The rule of torch.chunk, by its definition: pieces of ceil(extent / parts), one after the other."""
    step = -(-extent // parts) or 1
    starts = list(range(0, extent, step))
    return (starts[part], min(starts[part] + step, extent)) if part < len(starts) else (extent, extent)


def held(sizes: tuple[int, ...], shape: tuple[int, ...], placements: list[str], at: tuple[int, ...]):
    """The bounds of what a rank holds, cut axis by axis."""
    bounds = [(0, size) for size in shape]
    for size, placement, coordinate in zip(sizes, placements, at, strict=True):
        if placement[0] == "S":
            dim = int(placement[2:-1])
            low, high = bounds[dim]
            first, last = cut(high - low, size, coordinate)
            bounds[dim] = (low + first, low + last)
    return tuple(low for low, _ in bounds), tuple(high for _, high in bounds)


def parts_in(sizes: tuple[int, ...], shape: tuple[int, ...], placements: list[str], seed: int) -> np.ndarray:
    """A full-size tensor for each rank (leading dimensions ``sizes``): replicas are equal, parts are not."""
    dice = np.random.default_rng(seed)
    leading = tuple(n if placement == "P" else 1 for n, placement in zip(sizes, placements, strict=True))
    return np.broadcast_to(dice.integers(-99, 99, (*leading, *shape)).astype(float), (*sizes, *shape))


def local_part(sizes: tuple[int, ...], start: np.ndarray, old: list[str], new: list[str], at: tuple[int, ...]):
    """What redistribute leaves on a rank, and its bounds: parts summed along the axes that are no longer partial."""
    value = start
    for axis, (before, after) in enumerate(zip(old, new, strict=True)):
        if before == "P" and after != "P":
            value = value.sum(axis=axis, keepdims=True).repeat(sizes[axis], axis=axis)
    low, high = held(sizes, start.shape[len(sizes) :], new, at)
    return value[at][tuple(map(slice, low, high))], (low, high)


def execute(plan: CommPlan, start: dict[str, np.ndarray], seed: int) -> list[dict[str, np.ndarray]]:
    """Carries a plan out in a random order that it allows, and gives what each rank promises to end with.

    A reader sees the rank's own value and, one after the other, the arrivals that it is ordered behind.
    """
    graph = graph_of(plan)
    behind = {node: nx.ancestors(graph, node) for node in graph}
    arrived: dict[tuple[int, str], list[tuple[OpId, Chunk, np.ndarray, bool]]] = {}

    def part(data: np.ndarray, chunk: Chunk) -> np.ndarray:
        return data[(..., *map(slice, chunk.box.lo, chunk.box.hi))]

    def value(rank: int, chunk: Chunk, reader: OpId | None) -> np.ndarray:
        whole = start[chunk.tensor].reshape(plan.world, *plan.tensor(chunk.tensor).shape)[rank]
        memory = np.full(whole.shape, np.nan)
        for own in plan.before[rank]:
            if own.tensor == chunk.tensor:
                part(memory, own)[...] = part(whole, own)
        for writer, where, data, adds in arrived.get((rank, chunk.tensor), []):
            if reader is None or writer in behind[reader]:
                part(memory, where)[...] = part(memory, where) + data if adds else data
        return part(memory, chunk).copy()

    waiting = {node: graph.in_degree(node) for node in graph}
    ready = sorted(node for node, count in waiting.items() if count == 0)
    dice = random.Random(seed)
    while ready:
        node = ready.pop(dice.randrange(len(ready)))
        op = plan.op(node)
        moved = value(op.src_rank, op.src, node)
        assert not np.isnan(moved).any(), f"{op} reads what is not there"
        arrived.setdefault((op.dst_rank, op.dst.tensor), []).append((node, op.dst, moved, op.reduce is not None))
        for follower in graph.successors(node):
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    return [{chunk.tensor: value(rank, chunk, None) for chunk in chunks} for rank, chunks in enumerate(plan.after)]
