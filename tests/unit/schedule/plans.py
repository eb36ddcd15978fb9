"""Plans written out by hand: all-gathers over even and uneven shards, with nothing taken from the plan templates."""

from __future__ import annotations

from overlap.chunkplan.plan import P2P, Chunk, CommPlan, TensorSpec
from overlap.chunkplan.region import Box
from overlap.schedule.model import AxisTiles, TensorRead


def shards(extent: int, parts: int, lo: int = 0) -> list[tuple[int, int]]:
    """``extent`` elements from ``lo`` on in equal parts, the last ones short or empty."""
    width = -(-extent // parts) if parts else 0
    return [(lo + min(i * width, extent), lo + min((i + 1) * width, extent)) for i in range(parts)]


def chunk_of(shape: tuple[int, ...], dim: int, lo: int, hi: int, tensor: str = "a") -> Chunk:
    start = tuple(lo if d == dim else 0 for d in range(len(shape)))
    stop = tuple(hi if d == dim else extent for d, extent in enumerate(shape))
    return Chunk(tensor, Box(start, stop))


def pieces(shape: tuple[int, ...], dim: int, world: int, split: int, tensor: str = "a") -> list[list[Chunk]]:
    """``[rank][part]``"""
    return [
        [chunk_of(shape, dim, lo, hi, tensor) for lo, hi in shards(stop - start, split, start)]
        for start, stop in shards(shape[dim], world)
    ]


def gather(
    shape: tuple[int, ...],
    dim: int,
    world: int,
    *,
    split: int = 1,
    direction: str = "pull",
    channels: int = 1,
    tensor: str = "a",
    name: str = "gather",
) -> CommPlan:
    """Every rank's shard to every rank, rotated; part p of a shard runs in channel ``p % channels``."""
    parts = pieces(shape, dim, world, split, tensor)
    ops: list[list[P2P]] = [[] for _ in range(world)]
    for rank in range(world):
        for step in range(1, world):
            src = (rank + step) % world if direction == "pull" else rank
            dst = rank if direction == "pull" else (rank - step) % world
            for part, chunk in enumerate(parts[src]):
                ops[rank].append(P2P(direction, src, dst, chunk, chunk, channel=part % channels))
    return finish(name, world, shape, parts, ops, tensor)


def ring(
    shape: tuple[int, ...], dim: int, world: int, *, split: int = 1, direction: str = "pull", channels: int = 1
) -> CommPlan:
    """Every chunk travels from neighbour to neighbour, ``rank -> rank + 1``; each hop depends on the one before."""
    parts = pieces(shape, dim, world, split)
    ops: list[list[P2P]] = [[] for _ in range(world)]
    for step in range(1, world):
        for rank in range(world):
            # At this step the chunk that started `step` ranks before the receiver reaches it.
            src, dst = ((rank - 1) % world, rank) if direction == "pull" else (rank, (rank + 1) % world)
            origin = (dst - step) % world
            for part, chunk in enumerate(parts[origin]):
                before = ((src if direction == "pull" else (rank - 1) % world), (step - 2) * split + part)
                depends = (before,) if step > 1 else ()
                ops[rank].append(P2P(direction, src, dst, chunk, chunk, depends, channel=part % channels))
    return finish("ring", world, shape, parts, ops)


def finish(name, world, shape, parts, ops, tensor="a") -> CommPlan:
    everything = tuple(chunk for rank in parts for chunk in rank)
    return CommPlan(
        name=name,
        world=world,
        tensors=(TensorSpec(tensor, shape),),
        before=tuple(tuple(rank) for rank in parts),
        after=(everything,) * world,
        ops=tuple(tuple(rank) for rank in ops),
    )


def both(left: CommPlan, right: CommPlan, *, channel: int = 0) -> CommPlan:
    """Two gathers of different tensors in one plan; those of ``right`` run behind, in channels from ``channel`` on."""
    ops = []
    for rank in range(left.world):
        shift = {r: len(left.ops[r]) for r in range(left.world)}
        moved = [
            P2P(
                op.direction,
                op.src_rank,
                op.dst_rank,
                op.src,
                op.dst,
                tuple((r, i + shift[r]) for r, i in op.depends),
                op.channel + channel,
            )
            for op in right.ops[rank]
        ]
        ops.append((*left.ops[rank], *moved))
    return CommPlan(
        name="both",
        world=left.world,
        tensors=(*left.tensors, *right.tensors),
        before=tuple((*a, *b) for a, b in zip(left.before, right.before, strict=True)),
        after=tuple((*a, *b) for a, b in zip(left.after, right.after, strict=True)),
        ops=tuple(ops),
    )


def gemm_axes(m: int, n: int, block_m: int, block_n: int) -> tuple[AxisTiles, ...]:
    return AxisTiles("M", m, block_m), AxisTiles("N", n, block_n)


def reads_a(*, wraps: bool = False) -> tuple[TensorRead, ...]:
    """a[M, K] as a GEMM reads it."""
    return (TensorRead("a", ("M", None), (wraps, False)),)


def reads_b(*, wraps: bool = False, tensor: str = "b") -> tuple[TensorRead, ...]:
    """b[K, N] as a GEMM reads it."""
    return (TensorRead(tensor, (None, "N"), (False, wraps)),)
