"""A collective in every group along an axis of a mesh at once, on real ranks: one plan, a tensor of its own in each group.

Values are integers that differ by rank, so that sums are exact in any order.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import overlap
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.groups import over_axis
from overlap.chunkplan.library import find_template
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import TensorSpec
from overlap.chunkplan.region import shard_interval

COLUMNS = 48


def whole(call: int, number: int, rows: int) -> torch.Tensor:
    """The tensor of a group, or a rank's summand."""
    generator = torch.Generator("cuda").manual_seed(call * 64 + number)
    return torch.randint(-99, 100, (rows, COLUMNS), device="cuda", generator=generator).float()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("rows", [256, 131, 1])
@pytest.mark.parametrize("name", ["all_gather_1d", "all_gather_ring", "reduce_scatter_1d", "all_reduce_ring"])
def test_groups_along_each_axis(group, name, rows):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    mesh = Mesh((2, world // 2), ("node", "gpu"))
    path, text = find_template(name)
    direction = "pull" if "gather" in name else "push"
    for axis in mesh.names:
        members = mesh.group(axis, rank)
        local, size = mesh.local_rank(axis, rank), len(members)
        spec = TensorSpec("a", (rows, COLUMNS))
        one = build_plan(text, world=size, tensor=spec, dim=0, direction=direction, path=path)
        plan = over_axis(one, mesh, axis)
        own = slice(*shard_interval(rows, size, local))
        for call in range(3):
            if "gather" in name:
                wanted = whole(call, 32 + members[0], rows)
                given = wanted[own]
            else:
                given = whole(call, rank, rows)
                wanted = torch.stack([whole(call, member, rows) for member in members]).sum(0)
                wanted = wanted[own] if "scatter" in name else wanted
            got = overlap.transfer(plan, given, group=group)
            bad = (got != wanted).any(1).nonzero().flatten().tolist() if got.shape == wanted.shape else got.shape
            assert torch.equal(got, wanted), f"{axis}, call {call}, rank {rank} of group {members}: rows {bad}"
