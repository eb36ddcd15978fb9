"""What every shipped template gives and takes, and what torch.distributed makes of the same data.

Data are small integers that differ by rank, place and call, so that sums are exact in every dtype and order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from overlap.chunkplan.region import shard_interval
from overlap.runtime.group.collectives import gather_single, reduce_scatter_single

GATHERS = (
    "all_gather_1d",
    "all_gather_1d_pull",
    "all_gather_1d_push",
    "all_gather_2d",
    "all_gather_double_ring",
    "all_gather_ring",
    "all_gather_ring_both_ways",
)
SCATTERS = ("reduce_scatter_1d", "reduce_scatter_2d", "reduce_scatter_ring")
REDUCES = ("all_reduce_2d", "all_reduce_one_shot", "all_reduce_ring", "all_reduce_two_shot")
EXCHANGES = ("all_to_all_1d", "all_to_all_2d")
KIND = {
    **dict.fromkeys(("all_gather", *GATHERS), "gather"),
    **dict.fromkeys(("reduce_scatter", *SCATTERS), "scatter"),
    **dict.fromkeys(("all_reduce", *REDUCES), "reduce"),
    **dict.fromkeys(("all_to_all", *EXCHANGES), "exchange"),
    "broadcast": "broadcast",
    "halo": "halo",
    "kv_ring": "kv",
}
"""By template, and by collective."""
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
TEMPLATES = tuple(name for name in KIND if name not in COLLECTIVES)
ON_A_MESH = ("all_gather_2d", "all_gather_double_ring", "reduce_scatter_2d", "all_reduce_2d", "all_to_all_2d")
"""Templates that need a mesh of two axes."""
MOST = 112
"""Sums up to this, bf16 holds exactly."""


def shapes(world: int) -> dict[str, tuple[int, int]]:
    """Global shapes that give ranks even, uneven and empty pieces along either dimension."""
    return {
        "even": (8 * world, 6 * world),
        "uneven": (8 * world - 3, 6 * world - 1),
        "empty": (max(1, world - 2), max(1, world - 1)),
        "nothing": (0, 3),
    }


@dataclass(frozen=True)
class Case:
    """A template (or collective) on a group for one tensor."""

    name: str
    shape: tuple[int, ...]
    dim: int
    dtype: torch.dtype
    rank: int
    world: int
    device: str = "cuda"

    def __str__(self) -> str:
        return f"{self.name} of {self.shape} along {self.dim}, {self.dtype}, rank {self.rank} of {self.world}"

    @property
    def kind(self) -> str:
        return KIND[self.name]

    @property
    def to_dim(self) -> int | None:
        return 1 - self.dim if self.kind == "exchange" else None

    def whole(self, call: int, rank: int = 0) -> torch.Tensor:
        """The global tensor of a call, or a rank's part of a sum."""
        generator = torch.Generator(self.device).manual_seed(call * 64 + rank)
        most = MOST // self.world
        low = 0 if self.dtype in (torch.bool, torch.uint8) else -most
        high = 2 if self.dtype == torch.bool else most + 1
        made = torch.randint(low, high, self.shape, generator=generator, device=self.device)
        return made.to(self.dtype)

    def piece(self, dim: int, rank: int | None = None) -> tuple[slice, ...]:
        """A rank's shard along a dimension."""
        found = [slice(None)] * len(self.shape)
        found[dim] = slice(*shard_interval(self.shape[dim], self.world, self.rank if rank is None else rank))
        return tuple(found)

    def held(self, call: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """What this rank holds before."""
        if self.kind in ("scatter", "reduce"):
            return self.whole(call, self.rank)
        if self.kind == "broadcast":
            return self.whole(call) if self.rank == 0 else self.whole(call)[:0].clone()
        if self.kind == "kv":
            return {
                "k": self.whole(call)[self.piece(self.dim)].clone(),
                "v": self.values(call)[self.piece(self.dim)].clone(),
            }
        return self.whole(call)[self.piece(self.dim)].clone()

    def values(self, call: int) -> torch.Tensor:
        """The second tensor of a ring of keys and values."""
        return self.whole(call, 33)

    def wanted(self, call: int) -> dict[str, torch.Tensor]:
        """What torch.distributed leaves on this rank, by tensor; collective over the default group."""
        held = self.held(call)
        if self.kind == "kv":
            assert isinstance(held, dict)
            return {name: self._passed_around(shard) for name, shard in held.items()}
        assert isinstance(held, torch.Tensor)
        made = {
            "gather": self._gathered,
            "scatter": self._scattered,
            "reduce": self._reduced,
            "exchange": self._exchanged,
            "broadcast": self._broadcast,
            "halo": self._with_halo,
        }[self.kind](held)
        return {"x": made}

    # torch.distributed's own

    def _sizes(self, dim: int) -> list[int]:
        bounds = [shard_interval(self.shape[dim], self.world, rank) for rank in range(self.world)]
        return [high - low for low, high in bounds]

    def _gathered(self, shard: torch.Tensor) -> torch.Tensor:
        """`all_gather_into_tensor`, of pieces padded to the largest where they are uneven."""
        sizes, outer = self._sizes(self.dim), shard.movedim(self.dim, 0)
        padded = outer.new_zeros((max(sizes), *outer.shape[1:]))
        padded[: len(outer)] = outer
        if not padded.numel():
            return shard.new_empty(self.shape)
        whole = padded.new_empty((self.world * max(sizes), *outer.shape[1:]))
        gather_single(_raw(whole), _raw(padded))
        parts = [part[:size] for part, size in zip(whole.split(max(sizes)), sizes, strict=True)]
        return torch.cat(parts).movedim(0, self.dim)

    def _reduced(self, part: torch.Tensor) -> torch.Tensor:
        total = part.clone()
        if total.numel():
            dist.all_reduce(total)
        return total

    def _scattered(self, part: torch.Tensor) -> torch.Tensor:
        """`reduce_scatter_tensor`, of pieces padded to the largest where they are uneven."""
        sizes, outer = self._sizes(self.dim), part.movedim(self.dim, 0)
        longest = max(sizes)
        padded = outer.new_zeros((self.world * longest, *outer.shape[1:]))
        padded[: len(outer)] = outer
        piece = outer.new_empty((longest, *outer.shape[1:]))
        if piece.numel():
            reduce_scatter_single(piece, padded)
        return piece[: sizes[self.rank]].movedim(0, self.dim)

    def _exchanged(self, shard: torch.Tensor) -> torch.Tensor:
        """`all_to_all_single` with splits."""
        assert self.to_dim is not None
        sent = [shard[self.piece(self.to_dim, rank)].contiguous() for rank in range(self.world)]
        mine = list(shard.shape)
        mine[self.to_dim] = self._sizes(self.to_dim)[self.rank]
        shapes = [[*mine] for _ in range(self.world)]
        for shape, size in zip(shapes, self._sizes(self.dim), strict=True):
            shape[self.dim] = size
        counts = [torch.Size(shape).numel() for shape in shapes]
        away = torch.cat([piece.reshape(-1) for piece in sent])
        got = away.new_empty(sum(counts))
        width = away.element_size()
        if torch.Size(self.shape).numel():
            dist.all_to_all_single(
                _raw(got), _raw(away), [width * n for n in counts], [width * piece.numel() for piece in sent]
            )
        return torch.cat([part.view(shape) for part, shape in zip(got.split(counts), shapes, strict=True)], self.dim)

    def _broadcast(self, held: torch.Tensor) -> torch.Tensor:
        whole = held if self.rank == 0 else held.new_empty(self.shape)
        if whole.numel():
            dist.broadcast(_raw(whole), 0)
        return whole

    def _passed_around(self, shard: torch.Tensor) -> torch.Tensor:
        """Sends and receives of every shard."""
        whole = shard.new_empty(self.shape)
        whole[self.piece(self.dim)] = shard
        self._move({(a, b): self._bounds(a) for a in range(self.world) for b in range(self.world)}, shard, whole, 0)
        return whole

    def _with_halo(self, shard: torch.Tensor) -> torch.Tensor:
        """Sends and receives of what neighbours need, an element beyond each end."""
        extent = self.shape[self.dim]
        wants = [
            (max(low - 1, 0), min(high + 1, extent)) if low < high else (low, high) for low, high in self._all_bounds()
        ]
        low, high = wants[self.rank]
        grown = shard.new_empty([high - low if d == self.dim else n for d, n in enumerate(self.shape)])
        mine = self._bounds(self.rank)
        grown.narrow(self.dim, mine[0] - low, mine[1] - mine[0]).copy_(shard)
        cuts = {
            (a, b): (max(self._bounds(a)[0], wants[b][0]), min(self._bounds(a)[1], wants[b][1]))
            for a in range(self.world)
            for b in range(self.world)
        }
        self._move(cuts, shard, grown, low)
        return grown

    def _bounds(self, rank: int) -> tuple[int, int]:
        return shard_interval(self.shape[self.dim], self.world, rank)

    def _all_bounds(self) -> list[tuple[int, int]]:
        return [self._bounds(rank) for rank in range(self.world)]

    def _move(
        self, cuts: dict[tuple[int, int], tuple[int, int]], shard: torch.Tensor, into: torch.Tensor, start: int
    ) -> None:
        """``cuts[a, b]``: global bounds of what rank a sends to rank b; ``into`` begins at ``start``."""
        ops, landing = [], []
        first = self._bounds(self.rank)[0]
        for (a, b), (low, high) in sorted(cuts.items()):
            count = (high - low) * (torch.Size(self.shape).numel() // max(1, self.shape[self.dim]))
            if a == b or count <= 0 or self.rank not in (a, b):
                continue
            if self.rank == a:
                piece = shard.narrow(self.dim, low - first, high - low).contiguous()
                ops.append(dist.P2POp(dist.isend, _raw(piece), b))
            else:
                place = into.narrow(self.dim, low - start, high - low)
                piece = torch.empty_like(place, memory_format=torch.contiguous_format)
                ops.append(dist.P2POp(dist.irecv, _raw(piece), a))
                landing.append((place, piece))
        if ops:
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        for place, piece in landing:
            place.copy_(piece)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's bytes: what is only moved goes in any dtype."""
    return tensor.view(-1).view(torch.uint8)


def difference(told: object, got: torch.Tensor, wanted: torch.Tensor) -> str:
    """What is wrong with a result, in words; nothing where it is equal, bit by bit but for the sign of zero."""
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return f"{told}: {tuple(got.shape)} {got.dtype} instead of {tuple(wanted.shape)} {wanted.dtype}"
    bad = (got != wanted).nonzero()
    if not len(bad):
        return ""
    first, last = (tuple(bad[i].tolist()) for i in (0, -1))
    rows = [sorted({int(index[d]) for index in bad})[:8] for d in range(got.dim())]
    return (
        f"{told}: {len(bad)} of {got.numel()} elements differ, from {first} ({got[first].item()} instead of "
        f"{wanted[first].item()}) to {last} ({got[last].item()} instead of {wanted[last].item()}); "
        f"places along each dimension: {rows}"
    )
