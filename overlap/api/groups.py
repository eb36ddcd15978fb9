"""What may be given as ``group=``: a process group, its name, a mesh (with a dimension), a simulated group."""

from __future__ import annotations

from typing import Any

from overlap.errors import RuntimeContractError, UsageError


def resolve_group(group: Any) -> Any:
    """The process group (or simulated group) that ``group`` stands for; None is the default group.

    Args:
        group: None, a `torch.distributed.ProcessGroup`, its name, a 1-D DeviceMesh, ``(mesh, dim)`` with the name or
            number of a dimension, or a group of `overlap.sim`.

    Raises:
        UsageError: something else, a mesh of several dimensions without one chosen, an unknown name, or a group of which this
            rank is no member.
        RuntimeContractError: no process group is initialised.
    """
    if hasattr(group, "overlap_runtime"):
        return group
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeContractError(
            "no process group", help="call torch.distributed.init_process_group first, or pass a simulated group"
        )
    if group is None:
        return dist.group.WORLD
    if isinstance(group, dist.ProcessGroup):
        return group
    if isinstance(group, str):
        return group_by_name(group)
    if type(group) is int and group == dist.GroupMember.NON_GROUP_MEMBER:
        raise _no_member("the group")
    mesh, dim = group if isinstance(group, tuple) and len(group) == 2 else (group, None)
    if hasattr(mesh, "get_group") and hasattr(mesh, "mesh_dim_names"):
        return _mesh_group(mesh, dim)
    raise UsageError(
        f"group is a {type(group).__name__}",
        help="a process group, its name, a DeviceMesh of one dimension, or (mesh, dim)",
    )


def no_group(group: Any) -> bool:
    """Whether no group is meant and none exists: a program on one device, for which there is nothing to gather."""
    if group is not None:
        return False
    import torch.distributed as dist

    return not dist.is_initialized()


def resolved(group: Any) -> Any:
    """`resolve_group`'s group; None in a program on one device, where none is meant."""
    return None if no_group(group) else resolve_group(group)


def group_by_name(name: str) -> Any:
    """The process group called ``name`` (its ``group_name``).

    Raises:
        UsageError: there is none.
    """
    from torch.distributed.distributed_c10d import _resolve_process_group

    try:
        return _resolve_process_group(name)
    except (ValueError, LookupError, RuntimeError):
        raise UsageError(f"no process group is called {name!r}", help="a group's name is its .group_name") from None


def _no_member(what: str) -> UsageError:
    return UsageError(
        f"this rank is no member of {what}", help="a call is made by the ranks of its group, and by no other rank"
    )


def _mesh_group(mesh: Any, dim: Any) -> Any:
    if mesh.get_coordinate() is None:
        raise _no_member("the mesh")
    names = mesh.mesh_dim_names
    shown = ", ".join(names) if names else ", ".join(map(str, range(mesh.ndim)))
    if dim is None:
        if mesh.ndim != 1:
            raise UsageError(
                f"a mesh of {mesh.ndim} dimensions has a group in each", help=f"group=(mesh, dim), dim one of {shown}"
            )
        return mesh.get_group()
    known = dim in (names or ()) if isinstance(dim, str) else type(dim) is int and 0 <= dim < mesh.ndim
    if not known:
        raise UsageError(f"the mesh has no dimension {dim!r}", help=f"its dimensions are {shown}")
    return mesh.get_group(dim)
