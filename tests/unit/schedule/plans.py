"""Plans written out by hand, over even and uneven shards, with nothing taken from the plan templates."""

from __future__ import annotations

from dataclasses import replace

from overlap.chunkplan.plan import P2P, Chunk, CommPlan, TensorSpec
from overlap.chunkplan.reduction import Reduction
from overlap.chunkplan.region import Box
from overlap.schedule.model import AxisTiles, TensorRead, TensorWrite

SUM = Reduction()


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
            replace(op, depends=tuple((r, i + shift[r]) for r, i in op.depends), channel=op.channel + channel)
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


def whole_of(shape: tuple[int, ...], tensor: str = "c") -> Chunk:
    return Chunk(tensor, Box((0,) * len(shape), shape))


def reduce_scatter(
    shape: tuple[int, ...],
    dim: int,
    world: int,
    *,
    split: int = 1,
    channels: int = 1,
    tensor: str = "c",
    name: str = "reduce_scatter",
) -> CommPlan:
    """Every rank sends its partial of every other shard to the owner, the next rank's first."""
    parts = pieces(shape, dim, world, split, tensor)
    ops: list[list[P2P]] = [[] for _ in range(world)]
    for rank in range(world):
        for step in range(1, world):
            peer = (rank + step) % world
            for part, chunk in enumerate(parts[peer]):
                ops[rank].append(P2P("push", rank, peer, chunk, chunk, channel=part % channels, reduce=SUM))
    return reduced(name, world, shape, [tuple(rank) for rank in parts], ops, tensor)


def one_shot(shape: tuple[int, ...], world: int, *, tensor: str = "c") -> CommPlan:
    """Every rank sends its whole partial to every other."""
    whole = whole_of(shape, tensor)
    ops = [
        [P2P("push", rank, (rank + step) % world, whole, whole, reduce=SUM) for step in range(1, world)]
        for rank in range(world)
    ]
    return reduced("one_shot", world, shape, [(whole,)] * world, ops, tensor)


def two_shot(
    shape: tuple[int, ...], dim: int, world: int, *, split: int = 1, channels: int = 2, tensor: str = "c"
) -> CommPlan:
    """A reduce-scatter, then every owner sends its sums to all; in one channel or in two."""
    parts = pieces(shape, dim, world, split, tensor)
    first = reduce_scatter(shape, dim, world, split=split, tensor=tensor)
    ops = [list(own) for own in first.ops]
    for rank in range(world):
        for step in range(1, world):
            for chunk in parts[rank]:
                landed = tuple(
                    (src, i)
                    for src in range(world)
                    for i, op in enumerate(first.ops[src])
                    if op.dst == chunk and op.dst_rank == rank
                )
                ops[rank].append(P2P("push", rank, (rank + step) % world, chunk, chunk, landed, channel=channels - 1))
    return reduced("two_shot", world, shape, [(whole_of(shape, tensor),)] * world, ops, tensor)


def ring_scatter(shape: tuple[int, ...], dim: int, world: int, *, channels: int = 1, tensor: str = "c") -> CommPlan:
    """A reduce-scatter over a ring: every rank adds its partial to the sum that comes by and sends it on.

    The sum of shard s starts at rank s + 1 and ends at rank s. Step k runs in channel ``k % channels``.
    """
    parts = pieces(shape, dim, world, 1, tensor)
    ops: list[list[P2P]] = [[] for _ in range(world)]
    for step in range(1, world):
        for rank in range(world):
            chunk = parts[(rank - step) % world][0]
            depends = (((rank - 1) % world, step - 2),) if step > 1 else ()
            ops[rank].append(
                P2P("push", rank, (rank + 1) % world, chunk, chunk, depends, channel=step % channels, reduce=SUM)
            )
    return reduced("ring_scatter", world, shape, [tuple(rank) for rank in parts], ops, tensor)


def exchange(shape: tuple[int, ...], world: int, *, split: int = 1, tensor: str = "c") -> CommPlan:
    """An all-to-all from rows to columns: every rank makes its rows and ends with its columns."""
    rows, columns = pieces(shape, 0, world, 1, tensor), pieces(shape, 1, world, 1, tensor)
    ops: list[list[P2P]] = [[] for _ in range(world)]
    for rank in range(world):
        for step in range(1, world):
            peer = (rank + step) % world
            lo, hi = rows[rank][0].box.lo[0], rows[rank][0].box.hi[0]
            for start, stop in shards(hi - lo, split, lo):
                low, high = columns[peer][0].box.lo[1], columns[peer][0].box.hi[1]
                chunk = Chunk(tensor, Box((start, low), (stop, high)))
                ops[rank].append(P2P("push", rank, peer, chunk, chunk))
    return CommPlan(
        "exchange",
        world,
        (TensorSpec(tensor, shape),),
        tuple(tuple(rank) for rank in rows),
        tuple(tuple(rank) for rank in columns),
        tuple(tuple(own) for own in ops),
    )


def reduced(name, world, shape, after, ops, tensor="c") -> CommPlan:
    """Every rank starts with a partial of everything."""
    return CommPlan(
        name,
        world,
        (TensorSpec(tensor, shape),),
        ((whole_of(shape, tensor),),) * world,
        tuple(tuple(rank) for rank in after),
        tuple(tuple(own) for own in ops),
    )


def writes_c() -> tuple[TensorWrite, ...]:
    """c[M, N] as a GEMM writes it."""
    return (TensorWrite("c", ("M", "N")),)


def windows_of(plan: CommPlan, tensor: str = "c") -> list[dict[str, Box]]:
    """What each rank's kernel makes of a tensor: the one chunk that it starts with."""
    return [{tensor: next(chunk.box for chunk in own if chunk.tensor == tensor)} for own in plan.before]
