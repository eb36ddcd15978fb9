"""Random inputs for a generated operator on simulated ranks, and how close results must be."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from overlap.chunkplan.region import shard_interval
from overlap.errors import UsageError

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "int8": torch.int8,
}
_EPSILON = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float8_e4m3fn: 2**-3, torch.float8_e5m2: 2**-2}


@dataclass(frozen=True)
class CallInputs:
    """The arguments of one call on one rank: the global form for the original, and what the rank passes."""

    whole: dict[str, Any]
    passed: dict[str, Any]


def dtype_of(name: str) -> torch.dtype:
    """A dtype by its short name.

    Raises:
        UsageError: unknown.
    """
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}", help="one of: " + ", ".join(DTYPES))
    return DTYPES[name]


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
) -> list[list[CallInputs]]:
    """``[launch][rank]``: the communicated tensor cut as ``torch.chunk`` does, the others different on every rank.

    ``dtypes`` names the tensors that are not of ``dtype``.
    """
    dtypes = dtypes or {}
    generator = torch.Generator().manual_seed(20)
    rest = _other_arguments(operator)
    calls = []
    for _ in range(launches):
        kind = dtypes.get(operator.tensor, dtype)
        gathered = _random([sizes[axis] for axis in operator.inputs[operator.tensor]], kind, generator)
        ranks = []
        for rank in range(world):
            whole = dict(rest)
            for name, dims in operator.inputs.items():
                shape = [sizes[axis] for axis in dims]
                other = gathered if name == operator.tensor else None
                whole[name] = _random(shape, dtypes.get(name, dtype), generator) if other is None else other
            low, high = shard_interval(gathered.shape[operator.dim], world, rank)
            shard = gathered.narrow(operator.dim, low, high - low).contiguous()
            ranks.append(CallInputs(whole, {**whole, operator.tensor: shard}))
        calls.append(ranks)
    return calls


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


def tolerance(operator: Any, sizes: dict[str, int], dtype: torch.dtype) -> float:
    """Largest difference allowed: rounding of the result, and of sums over the axes that results do not have.

    The generated kernel adds in the original's order, so the usual difference is zero.
    """
    if not dtype.is_floating_point:
        return 0.0
    kept = {axis for dims in operator.outputs.values() for axis in dims}
    summed = math.prod(sizes[axis] for axis in {a for dims in operator.inputs.values() for a in dims} - kept)
    return 4.0 * math.sqrt(max(1, summed)) * (_EPSILON.get(dtype, 0.0) + math.sqrt(max(1, summed)) * 2**-23)
