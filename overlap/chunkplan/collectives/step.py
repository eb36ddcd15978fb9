"""The noun of a collective step: what a group of ranks has, and what it wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from overlap.errors import PlanError

from ..cuts import Split, by_turn, split_of, weights_at
from ..document import nearest
from ..mesh import Mesh
from ..plan import Chunk, TensorSpec
from ..reduction import Reduction, check_reduction
from ..region import Box, shard_interval

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]

PROMISES = {
    "all_gather": "gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
}
"""The kind that `overlap.chunkplan.promise.verify_kind` knows a step by."""


@dataclass(frozen=True)
class CollectiveStep:
    """A collective over a group of ranks.

    Members count from 0 inside the group, in the order of ``ranks``: member i is global rank ``ranks[i]`` and owns
    the i-th shard. Ranks outside the group hold nothing of the tensor, before or after.

    Args:
        kind: what it does.
        tensor: the group's global tensor.
        world: number of all ranks.
        dim: the dimension of the shards (of those before an all-to-all; of those an all-reduce is worked on in).
        to_dim: the dimension of the shards after an all-to-all.
        ranks: global ranks of the group; all ranks where it is empty.
        split: how a shard is cut into chunks, along ``dim`` (`overlap.chunkplan.cuts`).
        itemsize: bytes an element.
        reduction: how partial results are combined.
        mesh: the grid in which members stand, by their numbers in the group; templates may be made for one.

    Raises:
        PlanError: a name, rank, dimension or number that does not exist.
    """

    kind: Kind
    tensor: TensorSpec
    world: int
    dim: int = 0
    to_dim: int | None = None
    ranks: tuple[int, ...] = ()
    split: Split = 1
    itemsize: int = 2
    reduction: Reduction = Reduction()
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise PlanError(f"unknown collective `{self.kind}`", help=nearest(self.kind, get_args(Kind)))
        if self.world < 1:
            raise PlanError(f"a collective in a world of {self.world} ranks", help="a world has 1 rank or more")
        if self.itemsize < 1:
            raise PlanError(f"{self.kind}: itemsize {self.itemsize}", help="itemsize is 1 or more")
        try:
            object.__setattr__(self, "split", split_of(self.split))
        except PlanError as error:
            raise PlanError(f"{self.kind}: {error.message}", help=error.help) from None
        for rank in self.ranks:
            if not 0 <= rank < self.world:
                raise PlanError(
                    f"{self.kind}: there is no rank {rank} in a world of {self.world}",
                    help=f"a group names global ranks, 0 to {self.world - 1}",
                )
            if self.ranks.count(rank) > 1:
                raise PlanError(f"{self.kind}: rank {rank} is in the group twice", help="name every rank once")
        dims = len(self.tensor.shape)
        if not 0 <= self.dim < dims:
            raise PlanError(
                f"{self.kind}: {self.tensor} has no dimension {self.dim}",
                help=f"its dimensions are 0 to {dims - 1}" if dims else "a tensor with a dimension can be cut",
            )
        if (self.to_dim is not None) != (self.kind == "all_to_all"):
            raise PlanError(
                f"{self.kind}: to_dim {self.to_dim}", help="an all-to-all has a second dimension, nothing else has"
            )
        if self.to_dim is not None and (self.to_dim == self.dim or not 0 <= self.to_dim < dims):
            raise PlanError(
                f"{self.kind}: {self.tensor} cannot go from dimension {self.dim} to dimension {self.to_dim}",
                help=f"give two different dimensions, 0 to {dims - 1}",
            )
        if self.mesh is not None and self.mesh.world != len(self.group):
            raise PlanError(
                f"{self.kind}: a mesh of {self.mesh.world} ranks for a group of {len(self.group)}",
                help="give the mesh in which the group's members stand",
            )
        check_reduction(self.reduction)

    @property
    def group(self) -> tuple[int, ...]:
        """The global ranks of the group, member by member."""
        return self.ranks or tuple(range(self.world))

    @property
    def reduces(self) -> bool:
        return self.kind in ("reduce_scatter", "all_reduce")

    @property
    def spec(self) -> TensorSpec:
        """The tensor as a plan of the world has it: of a sum, member i holds part i, and the others none."""
        if not self.reduces or not self.ranks:
            return self.tensor
        member = {rank: i for i, rank in enumerate(self.group)}
        return replace(self.tensor, parts=tuple(member.get(rank, 0) for rank in range(self.world)))

    @property
    def whole(self) -> Box:
        return Box.whole(self.tensor.shape)

    def shard(self, member: int) -> Box:
        """The member's shard along ``dim``."""
        return self._cut(member, self.dim)

    def across(self, member: int) -> Box:
        """The member's shard along ``to_dim``."""
        assert self.to_dim is not None
        return self._cut(member, self.to_dim)

    def _cut(self, member: int, dim: int) -> Box:
        return self.whole.with_interval(dim, *shard_interval(self.tensor.shape[dim], len(self.group), member))

    def before(self) -> tuple[tuple[Chunk, ...], ...]:
        """What every rank of the world holds before the step."""
        return self._held([self.whole if self.reduces else self.shard(i) for i in range(len(self.group))])

    def after(self) -> tuple[tuple[Chunk, ...], ...]:
        """What every rank of the world holds after it."""
        members = range(len(self.group))
        if self.kind == "reduce_scatter":
            return self._held([self.shard(i) for i in members])
        if self.kind == "all_to_all":
            return self._held([self.across(i) for i in members])
        return self._held([self.whole for _ in members])

    def _held(self, boxes: Sequence[Box]) -> tuple[tuple[Chunk, ...], ...]:
        held: list[tuple[Chunk, ...]] = [() for _ in range(self.world)]
        for rank, box in zip(self.group, boxes, strict=True):
            held[rank] = (Chunk(self.tensor.name, box),)
        return tuple(held)

    def parts(self, box: Box) -> list[Box]:
        """The chunks that a box is moved in: ``split`` parts along ``dim``, without empty ones.

        Raises:
            PlanError: the first and the last transfer are to be cut otherwise.
        """
        if by_turn(self.split):
            raise PlanError(
                f"{self.kind}: the parts of a plan that is made for links are the same for all transfers",
                help="give a number of parts, or weights for all transfers, as 1:2:1",
            )
        return [part for part in box.split(self.dim, weights_at(self.split)) if not part.empty]
