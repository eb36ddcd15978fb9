"""How a tensor [..., D] that is gathered along any dimension but the last becomes what the kernels take.

gather_dim 0 of [S, D] or [S, B, D]         one matrix of S (* B) rows         a[1, M, K], along M
gather_dim 1 of [B, S, D]                   B matrices of S rows, strided      a[B, M, K], along M
gather_dim 0 of [S, B, D], uneven shards    S matrices of B rows               a[B, M, K], along B

A result [..., N] that is left sharded (or summed) goes the same ways, as c[B, M, N], and along N as well:

scatter_dim 0 of [S, N] or [S, B, N]        one matrix of S (* B) rows         c[1, M, N], along M
scatter_dim 1 of [B, S, N]                  B matrices of S rows               c[B, M, N], along M
scatter_dim 0 of [S, B, N], uneven shards   S matrices of B rows               c[B, M, N], along B
the last dimension                          one matrix                         c[1, M, N], along N
none (all-reduce)                           one matrix                         c[1, M, N], along nothing
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from overlap.chunkplan.region import shard_interval
from overlap.errors import RuntimeContractError, UnsupportedError, UsageError


@dataclass(frozen=True)
class GatherView:
    """The gathered tensor as [batch, rows, D], and the dimension of it that is gathered.

    ``whole``: global shape as the caller sees it. ``along``: ``M`` (rows) or ``B`` (batch). ``possible`` is False where
    uneven shards of an inner dimension fit neither; then only a plain collective can gather.
    """

    whole: tuple[int, ...]
    batch: int
    rows: int
    depth: int
    along: str
    possible: bool = True

    def shard(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's shard in the same form; a copy only where no view has it."""
        held = x.shape[dim]
        inner = math.prod(x.shape[dim + 1 : -1])
        if self.along == "B":
            return x.reshape(held, inner, self.depth)
        return x.reshape(self.batch, held * inner, self.depth)


def gather_view(x: torch.Tensor, dim: int, gather_size: int | None, world: int, rank: int) -> GatherView:
    """How ``x`` is gathered along ``dim`` over ``world`` ranks.

    Args:
        x: this rank's shard, [..., D].
        dim: the gathered dimension, negative ones count from the end.
        gather_size: its global extent; None where every rank holds as much as this one.

    Raises:
        UsageError: a dimension that ``x`` has not, or an extent that is no whole number.
        UnsupportedError: the last dimension, over which the product sums.
        RuntimeContractError: a shard that is not this rank's piece under `torch.chunk`.
    """
    if x.dim() < 2:
        raise UsageError(f"x has {x.dim()} dimensions", help="x is [..., D], with a dimension to gather along")
    if not isinstance(dim, int) or not -x.dim() <= dim < x.dim():
        raise UsageError(
            f"gather_dim={dim!r}, x has {x.dim()} dimensions", help=f"gather_dim is one of 0 to {x.dim() - 2}"
        )
    dim %= x.dim()
    if dim == x.dim() - 1:
        raise UnsupportedError(
            f"gather_dim={dim} is the dimension that the product sums over (a gather along K)",
            help=f"gather along one of the dimensions 0 to {x.dim() - 2}",
        )
    if not (gather_size is None or hasattr(gather_size, "__index__")):
        raise UsageError(f"gather_size={gather_size!r}", help="the global extent, a whole number")
    held = x.shape[dim]
    extent = held * world if gather_size is None else gather_size
    low, high = shard_interval(max(0, extent), world, rank)
    if extent < 0 or high - low != held:
        raise RuntimeContractError(
            f"rank {rank} of {world}: the piece of {extent} along dimension {dim} is {high - low}, x has {held}",
            help="shards follow torch.chunk; pass gather_size= with the global extent where they are uneven",
        )
    whole = (*x.shape[:dim], extent, *x.shape[dim + 1 :])
    outer, inner = math.prod(x.shape[:dim]), math.prod(x.shape[dim + 1 : -1])
    depth = x.shape[-1]
    if inner == 1 or extent % world == 0:
        return GatherView(whole, outer, extent * inner, depth, "M")
    return GatherView(whole, extent, inner, depth, "B", possible=outer == 1)


@dataclass(frozen=True)
class ResultView:
    """The whole result as [batch, rows, columns], and the dimension of it that is left sharded.

    ``whole``: global shape as the caller sees it; ``shape``: what this rank gets of it. ``along``: ``M``, ``B`` or ``N``,
    empty where every rank gets all. ``possible`` is False where uneven shards of an inner dimension fit neither.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    batch: int
    rows: int
    columns: int
    along: str
    possible: bool = True

    def left(self, x: torch.Tensor) -> torch.Tensor:
        """The left operand [..., K], all rows of it, as [batch, rows, K]; a copy only where no view has it."""
        return x.reshape(self.batch, self.rows, x.shape[-1])

    def shard(self, out: torch.Tensor) -> torch.Tensor:
        """This rank's part of the result, contiguous, in the same form."""
        held = out.numel()
        if self.along == "B":
            return out.view(held // max(1, self.rows * self.columns), self.rows, self.columns)
        if self.along == "N":
            return out.view(self.batch, self.rows, out.shape[-1])
        return out.view(self.batch, held // max(1, self.batch * self.columns), self.columns)


def scatter_view(lead: tuple[int, ...], columns: int, dim: int, world: int, rank: int) -> ResultView:
    """How a result of shape [*lead, columns] is cut along ``dim``, which counts from the front, over ``world`` ranks."""
    whole = (*lead, columns)
    low, high = shard_interval(whole[dim], world, rank)
    shape = (*whole[:dim], high - low, *whole[dim + 1 :])
    if dim == len(lead):
        return ResultView(whole, shape, 1, math.prod(lead), columns, "N")
    outer, extent, inner = math.prod(lead[:dim]), lead[dim], math.prod(lead[dim + 1 :])
    if inner == 1 or extent % world == 0:
        return ResultView(whole, shape, outer, extent * inner, columns, "M")
    return ResultView(whole, shape, extent, inner, columns, "B", possible=outer == 1)


def whole_view(lead: tuple[int, ...], columns: int) -> ResultView:
    """A result of shape [*lead, columns] that every rank gets whole."""
    whole = (*lead, columns)
    return ResultView(whole, whole, 1, math.prod(lead), columns, "")
