"""`Part`: one communicated tensor of an operator's instance: its shape, its memory on every rank, and views of that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from overlap.chunkplan.order import HappensBefore
from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.region import Box, bounding
from overlap.chunkplan.window import kernel_window
from overlap.errors import PlanError
from overlap.schedule.pieces import Values, pieces
from overlap.schedule.pushes import stored_ops

from ..calls.shapes import piece
from ..operator import Comm
from ..protocol import Runtime
from .layout import RankLayout, Region, input_layout, output_layout, source_region
from .plan_tensor import PlanTensor, Staged

WORTH_A_LAUNCH = 4 << 20
"""Bytes of a shard that take as long to stage as a launch does."""


class Given(NamedTuple):
    """What a call brings of a communicated tensor.

    ``shape``: global. ``order``: its dimensions in memory as the kernel sees it, outermost first; None: the ranks agree on one.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] | None


class Part(PlanTensor):
    """One communicated tensor of an instance. ``order`` is settled; ``stored``: operations whose tiles are
    stored where they go; ``direct``: a library moves it, and the plan no more than the kernel knows; ``words``: what arrives lies
    elsewhere (`tables.inline_words`).

    Raises:
        PlanError: the plan gives ranks other pieces than `torch.chunk`.
        UnsupportedError: the plan moves what no memory here takes.
    """

    def __init__(
        self,
        comm: Comm,
        plan: CommPlan,
        runtime: Runtime,
        given: Given,
        happens: HappensBefore,
        stored: Collection[OpId] = (),
        direct: bool = False,
        words: bool = False,
    ) -> None:
        self.comm = comm
        self.made = comm.produced
        self.shape = given.shape
        self.order = given.order or tuple(range(len(given.shape)))
        layouts = [part_layout(plan, comm, rank, self.order, happens, stored, words) for rank in range(runtime.world)]
        held = piece(self.shape, comm.held, runtime.world, runtime.rank)
        super().__init__(comm.tensor, plan, runtime, given.dtype, layouts, held)
        self.window: Box = self.layout.window.box
        """What the kernel of this rank sees or makes."""
        if not direct:
            self._check(plan, runtime.rank)
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
        super().bind(data)
        self.tensor = self.view(self.layout.window)

    def staged(self, given: Mapping[str, torch.Tensor], from_caller: Collection[OpId] = ()) -> Iterator[Staged]:
        """gather            shard -> its place in the window
        all-to-all input  what is sent of it -> source | what the rank keeps of it -> window
        output, added to  what the caller's tensor holds -> partial (zeros elsewhere)
        """
        tensor = given.get(self.name)
        if tensor is None:
            return
        layout = self.layout
        everything = (slice(None),) * tensor.dim()
        both = self.held.intersect(self.window)
        if self.made and tuple(tensor.shape) == self.window.shape:
            yield Staged(self.name, everything, self.tensor)
            return
        if self.made:
            # The caller's shard is what the sum starts from; every other part of the partial starts from nothing.
            yield Staged(None, everything, self.tensor)
        elif layout.source is not None:
            for box in self._sent(layout.source, both, from_caller):
                yield Staged(self.name, self.inside(box), self.view(layout.source, box=box))
        yield Staged(self.name, self.inside(both), self.view(layout.window, box=both))

    def _sent(self, source: Region, kept: Box, from_caller: Collection[OpId]) -> list[Box]:
        """What is staged of the shard in ``source`` for operations, of this rank's and of peers: the box of all that they read.

        Where none goes ``from_caller`` that is most of it, and the whole takes one dense copy; all but what the rank has ``kept``
        takes another launch at most, of as dense copies.
        """
        plan, rank, layout = self.plan, self._runtime.rank, self.layout
        sending = [
            (op_id, op.src.box)
            for op_id, op in plan.items()
            if isinstance(op, P2P) and (op.src_rank, op.src.tensor) == (rank, self.name)
        ]
        read = [
            box for op_id, box in sending if op_id not in from_caller and source_region(layout, op_id, box) is source
        ]
        around = bounding(read)
        if around is None or any(op_id in from_caller for op_id, _ in sending):
            return [] if around is None else [around]
        others = self.held.subtract(kept)
        worth = kept.size * self.dtype.itemsize >= WORTH_A_LAUNCH and not any(map(kept.overlaps, read))
        return others if worth and all(map(source.dense, others)) else [self.held]

    def inside(self, box: Box) -> tuple[slice, ...]:
        """A part of what the caller holds, in its tensor."""
        return tuple(slice(a - o, b - o) for a, b, o in zip(box.lo, box.hi, self.held.lo, strict=True))


def part_layout(
    plan: CommPlan,
    comm: Comm,
    rank: int,
    order: tuple[int, ...],
    happens: HappensBefore | None = None,
    stored: Collection[OpId] = (),
    words: bool = False,
) -> RankLayout:
    """A rank's memory of a communicated tensor. ``stored``: operations that tiles carry out, into each other's slots; ``words``:
    what arrives lies elsewhere."""
    window = kernel_window(plan, comm.tensor, comm.kind, comm.produced, rank)
    if words:
        return RankLayout(Region(f"partial {comm.tensor}", 0, window, order))
    if not comm.produced:
        return input_layout(plan, comm.tensor, rank, window, order)
    sums, _ = pieces(plan, rank, comm.tensor, happens)
    kept = [(ops, bounding([p.chunk.box for p in parts]) or parts[0].chunk.box) for ops, parts in sums.items()]
    windows: dict[OpId, Box] = {}
    if stored:
        values = Values(plan, happens)
        for source in range(plan.world):
            made = kernel_window(plan, comm.tensor, comm.kind, comm.produced, source)
            windows |= dict.fromkeys(stored_ops(plan, source, comm.tensor, values, stored), made)
    return output_layout(plan, comm.tensor, rank, window, order, kept, windows)
