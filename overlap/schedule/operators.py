"""Operators as prediction knows them: a product of M x N x K, what is communicated of it, and by which plan.

ag_gemm     a[M, K] is gathered along M, each rank computes its part of N
gemm_rs     each rank computes its part of K, c[M, N] is reduce-scattered along M
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from overlap import settings
from overlap.chunkplan.document import nearest
from overlap.chunkplan.plan import CommPlan, TensorSpec
from overlap.chunkplan.promise import verify_kind
from overlap.chunkplan.region import shard_interval
from overlap.chunkplan.verify import check_structure
from overlap.errors import PlanError, UsageError

Sizes = Mapping[str, int]
AXES = ("M", "N", "K")
TENSOR = "x"
"""The name of the tensor that moves, in plans for an operator."""


@dataclass(frozen=True)
class Operator:
    """A product and what is communicated of it.

    Args:
        kind: the collective that overlap replaces.
        plan: the template on one node; on several of one size it is that of two levels, ``{kind}_2d``.
        moved: axes of the tensor that moves (``a`` is [M, K] and read, ``c`` [M, N] and written).
        divided: the axis of which each rank computes its part.
        dim, to_dim: the dimension of the tensor in which it is sharded, before and after an all-to-all.
        inside: chunks are waited for inside a tile's loop over K; where pieces are cut, tiles wait before it, for parts along
            dimension 0.
    """

    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
    plan: str
    moved: str
    divided: str
    dim: int = 0
    to_dim: int | None = None
    inside: bool = False

    @property
    def produced(self) -> bool:
        return self.moved == "MN"

    @property
    def waiting(self) -> bool:
        """Whether every tile waits for what others hold."""
        return self.inside or (self.kind == "all_to_all" and not self.produced)

    def in_place(self, world: int, sizes: Sizes, blocks: tuple[int, int], itemsize: int) -> bool:
        """Whether tiles of ``blocks`` (rows and columns) can access what is a rank's own in its caller's tensors, on every rank:
        store what it keeps of an exchanged result in the result itself (`staying`), or read what it holds of an input where
        that is. None of them makes, or loads at once, a part of that and a part of another's, and elements of so many bytes go
        by TMA."""
        if (
            self.kind not in ("all_gather", "all_to_all")
            or self.inside
            or itemsize != 2
            or not settings.get("in_place")
        ):
            return False
        axis, block = ("N", blocks[1]) if self.produced else ("M", blocks[0]) if self.dim == 0 else ("K", BLOCK_K)
        edges = {edge for rank in range(world) for edge in shard_interval(sizes[axis], world, rank)}
        return all(edge % block == 0 or edge == sizes[axis] for edge in edges)

    def pushes(self, world: int, sizes: Sizes, itemsize: int) -> bool:
        """Whether a call by copy engine that names no plan pushes what it gathers, which is then read in place: shards of whole
        tiles, large enough to be pushed out of the caller's tensor (`overlap.ops.gather_call.default_plan`)."""
        if self.kind != "all_gather" or world == 1 or sizes["K"] * itemsize % 16:
            return False
        shard = -(-sizes["M"] // world) * sizes["K"] * itemsize
        return self.in_place(world, sizes, (TILE_ROWS, 1), itemsize) and shard >= settings.get("given_bytes")

    def adds_in_tiles(self, itemsize: int) -> bool:
        """Whether tiles can add what comes of the part of a result that their rank keeps (`tile_sums`), where chunks are whole
        tiles: elements of so many bytes go by TMA."""
        return self.kind == "reduce_scatter" and itemsize == 2

    @property
    def split_dim(self) -> int | None:
        """The dimension that parts of a transfer are cut along, as `cut.cut_along` has it; None: ``dim``."""
        return 0 if self.inside else None if self.produced else self.to_dim


BLOCK_K, TILE_ROWS = 64, 128
"""Elements of K that tiles load at once, and a multiple of the rows of any tile."""

OPERATORS: Mapping[str, Operator] = {
    "ag_gemm": Operator("all_gather", "all_gather_1d", "MK", "N"),
    "ag_gemm_k": Operator("all_gather", "all_gather_1d", "MK", "N", dim=1, inside=True),
    "gemm_rs": Operator("reduce_scatter", "reduce_scatter_1d", "MN", "K"),
    "gemm_ar": Operator("all_reduce", "all_reduce_two_shot", "MN", "K"),
    "a2a_gemm": Operator("all_to_all", "all_to_all_1d_push", "MK", "M", dim=1, to_dim=0),
    "gemm_a2a": Operator("all_to_all", "all_to_all_1d", "MN", "M", dim=0, to_dim=1),
}


def operator_of(op: str, sizes: Sizes) -> Operator:
    """The operator of that name, for these sizes.

    Raises:
        UsageError: there is none, or sizes that are not M, N and K, of 1 or more.
    """
    if op not in OPERATORS:
        raise UsageError(f"unknown operator `{op}`", help=nearest(op, OPERATORS))
    if set(sizes) != set(AXES):
        raise UsageError(
            f"the sizes of {op} are M, N and K, not {', '.join(sizes) or 'none'}", help="write M=8192,N=28672,K=8192"
        )
    empty = [axis for axis in AXES if sizes[axis] < 1]
    if empty:
        raise UsageError(f"{empty[0]}={sizes[empty[0]]}: there is nothing to multiply", help="give sizes of 1 or more")
    return OPERATORS[op]


def tensor_of(op: Operator, sizes: Sizes) -> TensorSpec:
    """The tensor that moves."""
    return TensorSpec(TENSOR, tuple(sizes[axis] for axis in op.moved))


def check_plan(op: Operator, plan: CommPlan, world: int, sizes: Sizes) -> None:
    """Returns if a plan does what the operator communicates, for this world and these sizes. It is not proven: that is
    `overlap.chunkplan.verify.verify_plan`, which takes much longer than a prediction.

    Raises:
        PlanError: it does not, is for others, or names what there is not.
    """
    tensor = tensor_of(op, sizes)
    if plan.world != world or [(spec.name, spec.shape) for spec in plan.tensors] != [(tensor.name, tensor.shape)]:
        moved = ", ".join(map(str, plan.tensors))
        raise PlanError(
            f"plan {plan.name} moves {moved} over {plan.world} ranks, what is predicted moves {tensor} over {world}",
            where=plan.where(),
            help="make it for that tensor and world",
        )
    check_structure(plan)
    kind = "gather" if op.kind == "all_gather" else op.kind
    verify_kind(plan, tensor.name, kind, dim=op.dim, to_dim=op.to_dim)
