"""Groups by name, as graphs hold them."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from overlap.api.groups import resolve_group


def group_name(group: Any) -> str:
    """The name of the process group that ``group`` stands for; may be traced by `torch.compile`.

    Args:
        group: as for `overlap.api.resolve_group`, simulated groups excepted.
    """
    if isinstance(group, str):
        return group
    if not torch.compiler.is_compiling():
        return str(resolve_group(group).group_name)
    # A tracer knows these members of groups and meshes, and no others.
    if group is None:
        from torch.distributed.distributed_c10d import _get_default_group

        return _get_default_group().group_name
    if isinstance(group, tuple):
        mesh, dim = group
        return mesh.get_group(dim).group_name
    if isinstance(group, DeviceMesh):
        return group.get_group().group_name
    return group.group_name
