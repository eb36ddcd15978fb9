"""Meshes: ranks in a grid of one to three axes, such as 2 nodes of 4 GPUs.

A *global rank* is 0 to world - 1. A *local rank* is a rank's coordinate along one axis, 0 to the axis' size - 1. Both
are integers and mean different things, so no function here takes one for the other. The last axis varies fastest:
on ``2x4`` global rank 5 stands at ``(1, 1)``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from overlap.errors import PlanError

from .document import nearest

MAX_AXES = 3
FORM = "write sizes such as `2x4`, or axes with sizes such as `node=2,gpu=4`; 1 to 3 axes"
_SIZE = re.compile(r"[1-9][0-9]{0,8}\Z")
_AXIS = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*([1-9][0-9]{0,8})\s*\Z")


@dataclass(frozen=True)
class Mesh:
    """Axes, outermost first.

    Args:
        sizes: ranks along each axis.
        names: one name an axis; ``axis0``, ``axis1``, ... where it is left empty.

    Raises:
        PlanError: no axis or more than three, a size below 1, or names that are not one a size and all different.
    """

    sizes: tuple[int, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.sizes) <= MAX_AXES:
            raise PlanError(f"a mesh of {len(self.sizes)} axes", help=FORM)
        if min(self.sizes) < 1:
            raise PlanError(f"a mesh with {min(self.sizes)} ranks along an axis", help="an axis has 1 rank or more")
        if not self.names:
            object.__setattr__(self, "names", tuple(f"axis{i}" for i in range(len(self.sizes))))
        if len(self.names) != len(self.sizes) or len(set(self.names)) != len(self.names):
            raise PlanError(
                f"a mesh of {len(self.sizes)} axes named {', '.join(self.names)}", help="give each axis its own name"
            )

    @property
    def world(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    def axis(self, name: str) -> int:
        """The place of an axis.

        Raises:
            PlanError: there is no such axis.
        """
        if name not in self.names:
            raise PlanError(f"mesh {self} has no axis `{name}`", help=nearest(name, self.names))
        return self.names.index(name)

    def coordinates(self, global_rank: int) -> tuple[int, ...]:
        """The local rank along every axis of a global rank.

        Raises:
            PlanError: there is no such global rank.
        """
        if not 0 <= global_rank < self.world:
            raise PlanError(
                f"there is no global rank {global_rank} on mesh {self}",
                help=f"global ranks are 0 to {self.world - 1}; a local rank becomes one by `global_rank`",
            )
        found = []
        for size in reversed(self.sizes):
            global_rank, coordinate = divmod(global_rank, size)
            found.append(coordinate)
        return tuple(reversed(found))

    def local_rank(self, axis: str, global_rank: int) -> int:
        """The coordinate of a global rank along one axis."""
        return self.coordinates(global_rank)[self.axis(axis)]

    def global_rank(self, coordinates: Sequence[int]) -> int:
        """The global rank at local ranks, one an axis.

        Raises:
            PlanError: not one an axis, or one that is not on its axis.
        """
        if len(coordinates) != len(self.sizes):
            raise PlanError(
                f"{len(coordinates)} local ranks on mesh {self} of {len(self.sizes)} axes", help="give one an axis"
            )
        rank = 0
        for name, size, coordinate in zip(self.names, self.sizes, coordinates, strict=True):
            if not 0 <= coordinate < size:
                raise PlanError(
                    f"there is no local rank {coordinate} along {name} of mesh {self}",
                    help=f"local ranks along {name} are 0 to {size - 1}; `local_rank` makes one of a global rank",
                )
            rank = rank * size + coordinate
        return rank

    def group(self, axis: str, global_rank: int) -> tuple[int, ...]:
        """The global ranks that differ from ``global_rank`` along one axis only, by their local rank there."""
        at, place = self.coordinates(global_rank), self.axis(axis)
        return tuple(self.global_rank((*at[:place], local, *at[place + 1 :])) for local in range(self.sizes[place]))

    def named(self, names: Sequence[str]) -> Mesh:
        """The same mesh under other names, as many."""
        return Mesh(self.sizes, tuple(names))

    def __str__(self) -> str:
        if self.names == Mesh(self.sizes).names:
            return "x".join(map(str, self.sizes))
        return ",".join(f"{name}={size}" for name, size in zip(self.names, self.sizes, strict=True))


def parse_mesh(text: str) -> Mesh:
    """``8``, ``2x4``, ``2x2x2`` or ``node=2,gpu=4``. The inverse of ``str``.

    Raises:
        PlanError: it is none of these.
    """
    sizes = text.strip().lower().split("x")
    if all(map(_SIZE.match, sizes)):
        return Mesh(tuple(map(int, sizes)))
    axes = [_AXIS.match(part) for part in text.split(",")]
    if not all(axes):
        raise PlanError(f"`{text}` is no mesh", help=FORM)
    return Mesh(tuple(int(axis[2]) for axis in axes if axis), tuple(axis[1] for axis in axes if axis))


def mesh_of_ranks(ranks: Sequence[object], names: Sequence[str] = ()) -> Mesh:
    """The mesh of nested lists of global ranks, such as ``[[0, 1], [2, 3]]`` (``DeviceMesh.mesh.tolist()``).

    Raises:
        PlanError: the lists are ragged or empty, or are not 0, 1, 2, ... in order: on a part of the world, or in another
            order, a global rank of the group is not the process' rank, and a plan counts within the group.
    """
    sizes: list[int] = []
    level: object = ranks
    while isinstance(level, Sequence):
        if not level:
            raise PlanError("a mesh without ranks", help="give each axis 1 rank or more")
        sizes.append(len(level))
        level = level[0]
    mesh = Mesh(tuple(sizes), tuple(names))
    for global_rank, coordinates in enumerate(product(*map(range, sizes))):
        level = ranks
        for depth, coordinate in enumerate(coordinates):
            if not isinstance(level, Sequence) or len(level) != sizes[depth]:
                raise PlanError("a mesh of ragged lists", help="give every row as many ranks")
            level = level[coordinate]
        if level != global_rank:
            raise PlanError(
                f"rank {level} stands where global rank {global_rank} of a mesh {mesh} does",
                help="make the group of exactly these ranks, in this order, and count its ranks from 0",
            )
    return mesh
