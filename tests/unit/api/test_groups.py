"""What may be given as a group."""

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from overlap.api import resolve_group
from overlap.errors import RuntimeContractError, UsageError
from overlap.interop import group_name


def test_without_a_process_group():
    with pytest.raises(RuntimeContractError, match="no process group"):
        resolve_group(None)


def test_groups_names_and_meshes(fake_group):
    assert resolve_group(None) is fake_group
    assert resolve_group(fake_group) is fake_group
    assert resolve_group(fake_group.group_name) is fake_group
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for given in ((mesh, "tp"), (mesh, 1), mesh["tp"]):
        found = resolve_group(given)
        assert dist.get_process_group_ranks(found) == [0, 1]
        assert group_name(given) == found.group_name
    assert dist.get_process_group_ranks(resolve_group((mesh, "dp"))) == [1, 3]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda mesh: mesh, "a mesh of 2 dimensions.*dp, tp"),
        (lambda mesh: (mesh, "row"), "no dimension 'row'.*dp, tp"),
        (lambda mesh: (mesh, 2), "no dimension 2"),
        (lambda mesh: (mesh, True), "no dimension True"),
        (lambda mesh: "nobody", "no process group is called 'nobody'"),
        (lambda mesh: [0, 1], "group is a list"),
        (lambda mesh: 2, "group is a int"),
        (lambda mesh: dist.new_group([0, 3]), "no member of the group.*by no other rank"),
        (lambda mesh: DeviceMesh("cpu", [0, 3]), "no member of the mesh.*by no other rank"),
    ],
)
def test_what_is_no_group(fake_group, given, said):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with pytest.raises(UsageError, match="(?s)" + said):
        resolve_group(given(mesh))


def test_a_carried_runtime_is_taken_as_it_is():
    class Group:
        overlap_runtime = object()

    group = Group()
    assert resolve_group(group) is group
