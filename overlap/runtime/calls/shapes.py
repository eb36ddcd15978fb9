"""Global shapes of communicated tensors, from what callers pass; and the piece of them that a rank holds or sees."""

from __future__ import annotations

from typing import Any

import torch

from overlap.chunkplan.region import Box, shard_interval
from overlap.errors import RuntimeContractError, UsageError

from ..operator import Comm, Operator
from ..protocol import Runtime

GLOBAL = "sizes, strides and grid describe the whole tensor; only its data is this rank's shard"


def piece(shape: tuple[int, ...], dim: int | None, world: int, rank: int) -> Box:
    """``rank``'s piece of a tensor of ``shape`` along ``dim`` under `torch.chunk`; None: all of it."""
    whole = Box.whole(shape)
    return whole if dim is None else whole.with_interval(dim, *shard_interval(shape[dim], world, rank))


def check_sizes(operator: Operator, sizes: dict[str, int] | None) -> dict[str, int]:
    """``sizes`` as a caller gave them, or none.

    Raises:
        UsageError: an axis nobody declared, or a size that is none.
    """
    if not (sizes is None or hasattr(sizes, "items")):
        raise UsageError(
            f"sizes is a {type(sizes).__name__}", help='a dict of axes and their global extents, {"M": 4096}'
        )
    axes = {d for named in (*operator.inputs.values(), *operator.outputs.values()) for d in named}
    for axis, extent in (sizes or {}).items():
        if axis not in axes:
            raise UsageError(f"sizes names axis {axis!r}, which no tensor has", help="axes: " + ", ".join(sorted(axes)))
        if not isinstance(extent, int) or isinstance(extent, bool) or extent < 0:
            raise UsageError(f"the size of {axis} must be a non-negative integer, not {extent!r}")
    return sizes or {}


def global_shape(
    comm: Comm, tensor: torch.Tensor, sizes: dict[str, int], world: int, rank: int, *, made: bool = False
) -> tuple[int, ...]:
    """Global shape of a communicated tensor, from this rank's piece of it and ``sizes``.

    Args:
        tensor: this rank's shard; with ``made`` what the host function made for its kernel to write.
        sizes: axis to global extent; needed where pieces are uneven.

    Raises:
        RuntimeContractError: a piece that is not this rank's under `torch.chunk`, or sizes that contradict it.
    """
    dim, what = (comm.seen, "") if made else (comm.held, "the shard of ")
    if tensor.dim() != len(comm.dims):
        raise RuntimeContractError(
            f"`{comm.tensor}` has {tensor.dim()} dimensions, the host entry names {len(comm.dims)}: {', '.join(comm.dims)}"
        )
    shape = list(tensor.shape)
    for d, axis in enumerate(comm.dims):
        if d != dim and sizes.get(axis, shape[d]) != shape[d]:
            raise RuntimeContractError(
                f"rank {rank}: `{comm.tensor}` has {shape[d]} along {axis}, sizes says {sizes[axis]}"
            )
    if dim is not None:
        axis = comm.dims[dim]
        extent = sizes.get(axis, shape[dim] * world)
        low, high = shard_interval(extent, world, rank)
        if high - low != shape[dim]:
            raise RuntimeContractError(
                f"rank {rank} of {world}: {what}`{comm.tensor}` has {shape[dim]} along {axis}, "
                f"its piece of {extent} is {high - low}",
                help="shards follow torch.chunk along the axis; pass sizes= with the global extent",
            )
        shape[dim] = extent
    return tuple(shape)


def launch_shape(
    operator: Operator, comm: Comm, arguments: dict[str, Any], shard: torch.Tensor, world: int, rank: int
) -> tuple[int, ...]:
    """Global shape of a communicated tensor, from the caller's shard and the extents that a direct launch passes.

    A launch passes what its kernel sees: global extents, and along the axis of which an all-to-all's kernel sees its
    rank's piece, that piece's.

    Raises:
        RuntimeContractError: a shard, or an extent, that is not this rank's piece under `torch.chunk`.
        UsageError: the launch does not pass the sharded axis's extent.
    """
    dims = comm.dims
    if shard.dim() != len(dims):
        raise RuntimeContractError(
            f"`{comm.tensor}` has {shard.dim()} dimensions, the kernel indexes {len(dims)}: {', '.join(dims)}"
        )
    shape = list(shard.shape)
    for d, axis in enumerate(dims):
        parameter = operator.extents.get(axis)
        extent = arguments.get(parameter) if parameter is not None else None
        if isinstance(extent, bool) or not isinstance(extent, int):
            if d == comm.held:
                if parameter is None:
                    raise UsageError(
                        f"nobody says which parameter of the kernel is the extent of {axis}, along which `{comm.tensor}` is cut",
                        help=f"add to the kernel: # @overlap.axis_count {axis}=range extent=PARAMETER",
                    )
                raise UsageError(
                    f"the launch gives `{parameter}`, the extent of {axis}, no integer: {extent!r}",
                    help=f"pass the global extent of `{comm.tensor}` along {axis}",
                )
            continue
        if d == comm.held:
            low, high = shard_interval(max(0, extent), world, rank)
            if extent < 0 or high - low != shape[d]:
                raise RuntimeContractError(
                    f"rank {rank} of {world}: the launch passes {parameter}={extent}, of which this rank holds "
                    f"{high - low} ({low}:{high}), its shard of `{comm.tensor}` has {shape[d]}",
                    help=f"{GLOBAL}; shards follow torch.chunk along the axis",
                )
            shape[d] = extent
            continue
        low, high = (0, shape[d]) if d != comm.seen else shard_interval(shape[d], world, rank)
        if extent != high - low:
            part = f", of which the kernel of this rank sees {high - low}" if d == comm.seen else ""
            raise RuntimeContractError(
                f"rank {rank}: the launch passes {parameter}={extent}, its shard of `{comm.tensor}` has {shape[d]} "
                f"along {axis}{part}"
            )
    return tuple(shape)


def check_device(name: str, tensor: torch.Tensor, runtime: Runtime) -> None:
    """Raises RuntimeContractError for a communicated tensor on another device than its rank works on."""
    if tensor.device != runtime.device:
        raise RuntimeContractError(
            f"`{name}` is on {tensor.device}; rank {runtime.rank} of this group works on {runtime.device}",
            help="move it there, or call torch.cuda.set_device on every rank before the group is used first",
        )


def overlapping(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the extents of two tensors in one memory overlap."""

    def ends(tensor: torch.Tensor) -> tuple[int, int]:
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    (a, b), (c, d) = ends(one), ends(other)
    return a < d and c < b
