"""DTensor's placements and meshes as plain data, and the plan of a redistribution.

    plan = redistribute_plan(dtensor, [Shard(0), Replicate()])          # what dtensor.redistribute(placements=...) moves

Ranks of the plan are places in the mesh, row by row: `plan_rank` is the one of this process. A mesh over some of the
ranks, or over all in another order, has them from 0 on all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import placement_types as torch_placements

from overlap.chunkplan.cuts import Split
from overlap.chunkplan.importers.partition_ir import PartitionIR, Reshard, lower_partition_ir
from overlap.chunkplan.importers.placement import Partial, Placement, Replicate, Shard
from overlap.chunkplan.links import Links
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import CommPlan
from overlap.errors import PlanError


def mesh_of(mesh: DeviceMesh) -> Mesh:
    """The axes of a device mesh, by their names where it has some.

    Raises:
        PlanError: it has more axes than a plan's mesh may have.
    """
    return Mesh(tuple(mesh.shape), tuple(mesh.mesh_dim_names or ()))


def plan_rank(mesh: DeviceMesh) -> int:
    """The rank of this process in plans over a device mesh.

    Raises:
        PlanError: the process is not in the mesh.
    """
    at = mesh.get_coordinate()
    if at is None:
        raise PlanError(
            f"rank {mesh.get_rank()} is not in the mesh {mesh.mesh.tolist()}",
            help="call it on the ranks of the mesh, or take a mesh that this rank is in",
        )
    return mesh_of(mesh).global_rank(tuple(at))


def placement_of(placement: Any) -> Placement:
    """A placement of DTensor as plain data.

    Raises:
        PlanError: no plan places a tensor so, as with strided shards.
    """
    if type(placement) is torch_placements.Shard:
        return Shard(placement.dim)
    if type(placement) is torch_placements.Replicate:
        return Replicate()
    if type(placement) is torch_placements.Partial:
        return Partial(placement.reduce_op)
    name = type(placement).__name__
    if "Strided" in name:
        raise PlanError(
            f"{placement} interleaves the pieces of a dimension: what a rank holds is not one box",
            help="cut the dimension over the mesh's axes in their order (FSDP before tensor parallelism makes strided "
            "shards: put the data-parallel axis behind the other one), or gather it first",
        )
    raise PlanError(
        f"{placement!r}, a {name}, is no placement that a plan knows", help="there is Shard, Replicate and Partial"
    )


def resharding(name: str, tensor: DTensor, placements: Sequence[Any]) -> Reshard:
    """A distributed tensor and where it is to lie, as plain data for a `PartitionIR`.

    Args:
        name: of the tensor in the plan, a Python identifier.
        placements: of DTensor, one an axis of the tensor's mesh.

    Raises:
        PlanError: a placement that no plan knows.
    """
    before, after = (tuple(map(placement_of, given)) for given in (tensor.placements, placements))
    return Reshard(name, tuple(tensor.shape), before, after)


def redistribute_plan(
    tensor: DTensor,
    placements: Sequence[Any],
    *,
    name: str = "x",
    direction: str = "pull",
    split: Split = 1,
    accumulate: str = "fp32",
    path: str = "template",
    links: Links | None = None,
) -> CommPlan:
    """The plan that leaves on each rank what ``tensor.redistribute(placements=placements)`` would.

    Args:
        tensor: its shape, mesh and placements are read, its data is not.
        name, direction, split, accumulate, path, links: as
            `overlap.chunkplan.importers.partition_ir.lower_partition_ir` has them.

    Raises:
        PlanError: a placement that no plan knows or that no communication leads to.
    """
    ir = PartitionIR(mesh_of(tensor.device_mesh), (resharding(name, tensor, placements),))
    return lower_partition_ir(ir, direction=direction, split=split, accumulate=accumulate, path=path, links=links)
