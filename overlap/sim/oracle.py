"""What every rank's results must be, from the original kernel's results on every rank, and how close they must come.

not communicated, or gathered inputs   the original's own result
reduce-scatter, all-reduce             the ranks' results added in float64, the rank's shard of it or all
all-to-all of a result                 the ranks' results side by side, the rank's shard of them along the other axis
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from .inputs import shard_of

_EPSILON = {
    torch.float64: 2**-52,
    torch.float32: 2**-23,
    torch.float16: 2**-10,
    torch.bfloat16: 2**-7,
    torch.float8_e4m3fn: 2**-3,
    torch.float8_e5m2: 2**-2,
}


@dataclass(frozen=True)
class Wanted:
    """A result on one rank: its values, its dtype, whether it must be equal bit by bit, and how far off it may be.

    ``values`` are float64 for sums. ``allowed`` is absolute; to it comes ``relative`` times the value.
    """

    values: torch.Tensor
    dtype: torch.dtype
    moved: bool
    allowed: float
    relative: float = 0.0

    @property
    def tolerance(self) -> float:
        """The largest difference allowed anywhere."""
        sizes = self.values.double().abs()
        sizes = sizes[sizes.isfinite()]
        return self.allowed + (self.relative * float(sizes.max()) if len(sizes) else 0.0)


def wanted_results(
    operator: Any, made: list[tuple[torch.Tensor, ...]], sizes: dict[str, int]
) -> list[tuple[Wanted, ...]]:
    """What each rank must return in one launch.

    Args:
        made: the original's results, ``made[rank]``, in the order of the operator's outputs.
        sizes: axis to global extent.
    """
    world = len(made)
    moved = {comm.tensor: comm for comm in operator.comms if comm.produced}
    ranks: list[list[Wanted]] = [[] for _ in range(world)]
    for place, name in enumerate(operator.outputs):
        parts = [results[place] for results in made]
        comm = moved.get(name)
        dtype = parts[0].dtype
        allowed = tolerance(operator, sizes, dtype)
        # Blocks of an in-tile loop come in another order than the original's: the sum may round to the next number.
        reordered = _EPSILON.get(dtype, 0.0) if operator.ranges else 0.0
        if comm is None:
            for rank, part in enumerate(parts):
                ranks[rank].append(Wanted(part, dtype, True, allowed, reordered))
        elif comm.kind == "all_to_all":
            whole = torch.cat(parts, comm.dim)
            for rank in range(world):
                ranks[rank].append(Wanted(shard_of(whole, comm.to_dim, world, rank), dtype, True, allowed, reordered))
        else:
            total = parts[0] if world == 1 else torch.stack([part.double() for part in parts]).sum(0)
            relative = _EPSILON.get(dtype, 0.0)
            for rank in range(world):
                share = total if comm.kind == "all_reduce" else shard_of(total, comm.dim, world, rank)
                ranks[rank].append(Wanted(share, dtype, world == 1, world * allowed, relative))
    return [tuple(results) for results in ranks]


def tolerance(operator: Any, sizes: dict[str, int], dtype: torch.dtype) -> float:
    """Largest difference allowed of what one rank's kernel makes: its rounding, and of sums over the axes it does not have.

    The generated kernel adds in the original's order, so the usual difference is zero.
    """
    if not dtype.is_floating_point:
        return 0.0
    kept = {axis for dims in operator.outputs.values() for axis in dims}
    summed = math.prod(sizes[axis] for axis in {a for dims in operator.inputs.values() for a in dims} - kept)
    rounding = _EPSILON[dtype] if dtype.itemsize < 4 else 0.0
    return 4.0 * math.sqrt(max(1, summed)) * (rounding + math.sqrt(max(1, summed)) * 2**-23)
