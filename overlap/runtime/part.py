"""`Part`: one communicated tensor of an instance: its shape, its memory on every rank, and views of that."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from overlap.chunkplan.order import HappensBefore
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.region import Box, bounding
from overlap.chunkplan.window import kernel_window
from overlap.errors import PlanError
from overlap.schedule.pieces import Values, pieces
from overlap.schedule.pushes import stored_ops

from .layout import RankLayout, Region, destination_region, input_layout, output_layout, source_region
from .operator import Comm
from .protocol import Runtime
from .shapes import piece


class Given(NamedTuple):
    """What a call brings of a communicated tensor.

    ``shape``: global. ``order``: its dimensions in memory as the kernel sees it, outermost first; None: the ranks agree on one.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] | None


class Part:
    """One communicated tensor of an instance. ``order`` is settled; ``stores``: tiles are stored where they go.

    Raises:
        PlanError: the plan gives ranks other pieces than `torch.chunk`.
        UnsupportedError: the plan moves what no memory here takes.
    """

    def __init__(
        self, comm: Comm, plan: CommPlan, runtime: Runtime, given: Given, happens: HappensBefore, stores: bool = False
    ) -> None:
        self.comm = comm
        self.plan = plan
        self.shape = given.shape
        self.dtype = given.dtype
        self.order = given.order or tuple(range(len(given.shape)))
        self._runtime = runtime
        self.layouts: tuple[RankLayout, ...] = tuple(
            part_layout(plan, comm, rank, self.order, happens, stores) for rank in range(runtime.world)
        )
        self.size = max(layout.size for layout in self.layouts)
        """Elements of symmetric memory."""
        self.held: Box = piece(self.shape, comm.held, runtime.world, runtime.rank)
        """What of the global tensor the caller of this rank holds, or is given."""
        self.window: Box = self.layouts[runtime.rank].window.box
        """What the kernel of this rank sees or makes."""
        self._check(plan, runtime.rank)
        self.data: Any = None
        self.tensor: Any = None
        """What the kernel of this rank gets for the tensor: gathered, or to be filled."""

    def _check(self, plan: CommPlan, rank: int) -> None:
        seen = piece(self.shape, self.comm.seen, self._runtime.world, rank)
        ends = plan.after if self.comm.produced else plan.before
        held = bounding(chunk.box for chunk in ends[rank] if chunk.tensor == self.comm.tensor)
        for name, found, wanted in (("the kernel sees", self.window, seen), ("the caller holds", held, self.held)):
            if found == wanted or (wanted.empty and (found is None or found.empty)):
                continue
            raise PlanError(
                f"plan {plan.name}: of {self.comm.tensor} {name} {wanted} on rank {rank}, the plan has {found} there",
                where=plan.where(),
                help="`before` and `after` must be the shards that the operator's kind has (torch.chunk)",
            )

    def bind(self, data: torch.Tensor) -> None:
        """Takes symmetric memory, `size` elements or more."""
        self.data = data
        self.tensor = self.view(self.layout.window)

    def view(self, region: Region, rank: int | None = None, box: Box | None = None) -> torch.Tensor:
        """``box`` (all) of a region of this rank's layout or, with ``rank``, of that rank's, in the user's dimension order."""
        data = self._runtime.peer(self.data, self._runtime.rank if rank is None else rank)
        box = region.box if box is None else box
        return data.as_strided(box.shape, region.strides, data.storage_offset() + region.at(box))

    @property
    def layout(self) -> RankLayout:
        """This rank's."""
        return self.layouts[self._runtime.rank]

    def source(self, op_id: OpId) -> torch.Tensor:
        """What an operation reads, on the rank where that lies."""
        op = self._op(op_id)
        return self.view(source_region(self.layouts[op.src_rank], op_id, op.src.box), op.src_rank, op.src.box)

    def destination(self, op_id: OpId) -> torch.Tensor:
        """Where an operation writes, on the rank where that lies."""
        op = self._op(op_id)
        return self.view(destination_region(self.layouts[op.dst_rank], op_id), op.dst_rank, op.dst.box)

    def _op(self, op_id: OpId) -> P2P:
        op = self.plan.op(op_id)
        assert isinstance(op, P2P)
        return op


def part_layout(
    plan: CommPlan,
    comm: Comm,
    rank: int,
    order: tuple[int, ...],
    happens: HappensBefore | None = None,
    stores: bool = False,
) -> RankLayout:
    """A rank's memory of a communicated tensor. ``stores``: kernels store tiles into each other's slots."""
    window = kernel_window(plan, comm.tensor, comm.kind, comm.produced, rank)
    if not comm.produced:
        return input_layout(plan, comm.tensor, rank, window, order)
    sums, _ = pieces(plan, rank, comm.tensor, happens)
    kept = [(ops, bounding([p.chunk.box for p in parts]) or parts[0].chunk.box) for ops, parts in sums.items()]
    stored: dict[OpId, Box] = {}
    if stores:
        values = Values(plan, happens)
        for source in range(plan.world):
            made = kernel_window(plan, comm.tensor, comm.kind, comm.produced, source)
            stored |= dict.fromkeys(stored_ops(plan, source, comm.tensor, values), made)
    return output_layout(plan, comm.tensor, rank, window, order, kept, stored)
