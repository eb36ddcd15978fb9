"""Inputs for a generated operator on simulated ranks: what each rank passes, and what the original sees instead."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from overlap.chunkplan.region import shard_interval
from overlap.errors import UsageError

from .payload import payload_of


@dataclass(frozen=True)
class CallInputs:
    """The arguments of one call on one rank: the global form for the original, and what the rank passes."""

    whole: dict[str, Any]
    passed: dict[str, Any]


def check_sizes(operator: Any, sizes: dict[str, int]) -> None:
    """Raises UsageError unless every axis of the inputs has a size, and no other."""
    axes = {axis for dims in (*operator.inputs.values(), *operator.outputs.values()) for axis in dims}
    for axis in sorted(axes - set(sizes)):
        raise UsageError(
            f"no size for axis {axis}", help="give it in --shape: " + ",".join(f"{a}=.." for a in sorted(axes))
        )
    for axis in sorted(set(sizes) - axes):
        raise UsageError(f"--shape names axis {axis}, which no tensor has", help="axes: " + ", ".join(sorted(axes)))
    for axis, extent in sizes.items():
        if extent < 0:
            raise UsageError(f"{axis}={extent}: sizes are 0 or more")


def make_inputs(
    operator: Any,
    sizes: dict[str, int],
    dtype: torch.dtype,
    world: int,
    launches: int,
    dtypes: Mapping[str, torch.dtype] | None = None,
    *,
    payload: bool = False,
) -> list[list[CallInputs]]:
    """``[launch][rank]``: communicated inputs cut as ``torch.chunk`` does, the others different on every rank.

    ``dtypes`` names the tensors that are not of ``dtype``; ``payload``: bit patterns of every kind (`overlap.sim.payload`)
    instead of random numbers.
    """
    dtypes = dtypes or {}
    named = {comm.tensor for comm in operator.comms if not comm.produced}
    copies = {name: launches * (1 if name in named else world) for name in operator.inputs}
    need_memory(sum(n * math.prod(sizes[axis] for axis in operator.inputs[name]) for name, n in copies.items()), sizes)
    generator = torch.Generator().manual_seed(20)
    fill = payload_of if payload else _random
    rest = _other_arguments(operator)
    moved = {comm.tensor: comm for comm in operator.comms if not comm.produced}
    local = [rank_sizes(operator, sizes, world, rank) for rank in range(world)]
    calls = []
    for _ in range(launches):
        common = {
            name: fill([sizes[axis] for axis in comm.dims], dtypes.get(name, dtype), generator)
            for name, comm in moved.items()
        }
        ranks = []
        for rank in range(world):
            whole, passed = dict(rest), dict(rest)
            for name, dims in operator.inputs.items():
                comm = moved.get(name)
                if comm is None:
                    shape = [local[rank][axis] for axis in dims]
                    whole[name] = passed[name] = fill(shape, dtypes.get(name, dtype), generator)
                    continue
                value = common[name]
                passed[name] = shard_of(value, comm.dim, world, rank)
                whole[name] = value if comm.to_dim is None else shard_of(value, comm.to_dim, world, rank)
            ranks.append(CallInputs(whole, passed))
        calls.append(ranks)
    return calls


def rank_sizes(operator: Any, sizes: dict[str, int], world: int, rank: int) -> dict[str, int]:
    """Extents as the kernel of ``rank`` sees them: of an axis that an all-to-all shards around the kernel, the rank's part."""
    found = dict(sizes)
    for comm in operator.comms:
        if comm.kind == "all_to_all":
            axis = comm.axis if comm.produced else comm.to
            low, high = shard_interval(sizes[axis], world, rank)
            found[axis] = high - low
    return found


def shard_of(tensor: torch.Tensor, dim: int, world: int, rank: int) -> torch.Tensor:
    """A rank's piece along ``dim``, contiguous."""
    low, high = shard_interval(tensor.shape[dim], world, rank)
    return tensor.narrow(dim, low, high - low).contiguous()


def need_memory(elements: int, sizes: Mapping[str, int]) -> None:
    """Refuses inputs of more fp32 elements than this machine has memory for, ahead of being ended by it.

    Raises:
        UsageError: there is less memory.
    """
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return
    if 4 * elements > there:
        shown = ",".join(f"{axis}={size}" for axis, size in sizes.items())
        raise UsageError(
            f"{shown}: the inputs of all simulated ranks take {4 * elements:,} bytes, and this machine has {there:,}",
            help="ragged sizes of a few hundred show what larger ones do: --shape M=1000,N=130,K=64",
        )


def _other_arguments(operator: Any) -> dict[str, Any]:
    """Values of host parameters that are no tensors: their defaults.

    Raises:
        UsageError: one has no default.
    """
    values = {}
    for name, parameter in list(inspect.signature(operator.body).parameters.items())[1:]:
        if name in operator.inputs:
            continue
        if parameter.default is inspect.Parameter.empty:
            raise UsageError(
                f"the host function's parameter {name!r} is no tensor of the host entry and has no default",
                help="name it in the host_entry pragma, or give it a default",
            )
        values[name] = parameter.default
    return values


def _random(shape: list[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-8, 8, shape, generator=generator).to(dtype)
