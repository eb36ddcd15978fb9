"""Collectives of tensors sharded along any dimension, in even and uneven pieces: what the serial ways are made of.

    reduce_scatter   every rank's summand of the whole  ->  this rank's piece of the sum
    all_reduce       every rank's summand of the whole  ->  the whole sum
    all_to_all       pieces along one dimension         ->  pieces along another

Pieces follow `torch.chunk`. On GPUs sums are NCCL's, which rounds at every hop. In ``fixed_order``, and on every other
backend, the summands themselves are exchanged and added in fp32 (fp64 for fp64) in the order of the ranks, so that the
result has the same bits in every run and, where several ranks get it, on all of them. A group of None is one rank alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from overlap.chunkplan.region import shard_interval

# Newer versions of torch call these by another name and warn of the old one.
gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def reduce_scatter(
    group: Any, summand: torch.Tensor, dim: int, out: torch.Tensor, *, fixed_order: bool = False
) -> torch.Tensor:
    """This rank's piece along ``dim`` of the sum of all ranks' ``summand``, into ``out``, whose dtype may differ."""
    world = _size(group)
    if world == 1:
        return out.copy_(summand)
    bounds = _bounds(summand.shape[dim], world)
    if not summand.is_cuda or fixed_order:
        pieces = exchange(group, [summand.narrow(dim, low, high - low) for low, high in bounds], [out.shape] * world)
        return out.copy_(add_in_order(pieces))
    longest = bounds[0][1]
    outer = summand.movedim(dim, 0)
    if outer.shape[0] < longest * world:  # a collective takes equal pieces: short ones are padded
        padded = summand.new_zeros([longest * world, *outer.shape[1:]])
        for rank, (low, high) in enumerate(bounds):
            padded[rank * longest : rank * longest + high - low] = outer[low:high]
        outer = padded
    direct = dim == 0 and out.shape[0] == longest and out.dtype == summand.dtype and out.is_contiguous()
    piece = out if direct else summand.new_empty([longest, *outer.shape[1:]])
    reduce_scatter_single(piece, outer.contiguous(), group=group)
    return out if direct else out.copy_(piece[: out.shape[dim]].movedim(0, dim))


def all_reduce(group: Any, summand: torch.Tensor, out: torch.Tensor, *, fixed_order: bool = False) -> torch.Tensor:
    """The sum of all ranks' ``summand``, into ``out``, whose dtype may differ; ``summand`` may be overwritten."""
    world = _size(group)
    if world == 1:
        return out.copy_(summand)
    if summand.is_cuda and not fixed_order:
        summand = summand.contiguous()
        dist.all_reduce(summand, group=group)
        return out if out.data_ptr() == summand.data_ptr() else out.copy_(summand)
    # Every rank adds an equal part, whose sums then go to all.
    flat = summand.reshape(-1)
    longest = -(-flat.numel() // world)
    padded = flat.new_zeros(longest * world)
    padded[: flat.numel()] = flat
    part = torch.empty(longest, dtype=out.dtype, device=out.device)
    reduce_scatter(group, padded, 0, part, fixed_order=True)
    whole = part.new_empty(longest * world)
    gather_single(whole, part, group=group)
    return out.copy_(whole[: flat.numel()].view(out.shape))


def all_to_all(group: Any, held: torch.Tensor, from_dim: int, to_dim: int, out: torch.Tensor) -> torch.Tensor:
    """A tensor of which every rank holds its piece along ``from_dim``, as this rank's piece along ``to_dim``.

    Args:
        held: this rank's piece along ``from_dim``, all of ``to_dim``.
        out: this rank's piece along ``to_dim``, all of ``from_dim``; of any strides.
    """
    world = _size(group)
    if world == 1:
        return out.copy_(held)
    bounds, places = _bounds(held.shape[to_dim], world), _bounds(out.shape[from_dim], world)
    lying = _behind_each_other(held, to_dim)
    away = held.view(-1) if lying else torch.cat([held.narrow(to_dim, a, b - a).reshape(-1) for a, b in bounds])
    straight = out.dtype == held.dtype and _behind_each_other(out, from_dim)
    got = out.view(-1) if straight else away.new_empty(out.numel())
    sizes = [out.numel() // max(1, out.shape[from_dim]) * (high - low) for low, high in places]
    lengths = [held.numel() // max(1, held.shape[to_dim]) * (high - low) for low, high in bounds]
    dist.all_to_all_single(got, away, sizes, lengths, group=group)
    if straight:
        return out
    if out.shape[from_dim] % world == 0:  # one copy for all pieces
        pieces = out.unflatten(from_dim, (world, out.shape[from_dim] // world)).movedim(from_dim, 0)
        pieces.copy_(got.view(pieces.shape))
        return out
    for (low, high), piece in zip(places, got.split(sizes), strict=True):
        place = out.narrow(from_dim, low, high - low)
        place.copy_(piece.view(place.shape))
    return out


def _behind_each_other(tensor: torch.Tensor, dim: int) -> bool:
    """Whether the pieces of a tensor along ``dim`` lie in memory one behind the other."""
    return tensor.is_contiguous() and math.prod(tensor.shape[:dim]) == 1


def add_in_order(summands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Their sum in fp32 (fp64 where they are fp64), added in the order given."""
    wide = torch.float64 if summands[0].dtype == torch.float64 else torch.float32
    total = summands[0].to(wide)
    for summand in summands[1:]:
        total = total + summand.to(wide)
    return total


def exchange(group: Any, sent: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """One tensor to every rank, one of the given shapes from every rank."""
    away = torch.cat([piece.reshape(-1) for piece in sent])
    sizes = [torch.Size(shape).numel() for shape in shapes]
    got = away.new_empty(sum(sizes))
    dist.all_to_all_single(got, away, sizes, [piece.numel() for piece in sent], group=group)
    return [part.view(shape) for part, shape in zip(got.split(sizes), map(torch.Size, shapes), strict=True)]


def _bounds(extent: int, world: int) -> list[tuple[int, int]]:
    return [shard_interval(extent, world, rank) for rank in range(world)]


def _size(group: Any) -> int:
    return 1 if group is None else int(dist.get_world_size(group))
