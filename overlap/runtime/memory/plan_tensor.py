"""`PlanTensor`: one tensor of a plan on a group: where every rank has it in symmetric memory, and views of that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from overlap.chunkplan.plan import P2P, CommPlan, OpId
from overlap.chunkplan.region import Box

from ..protocol import Runtime
from .layout import RankLayout, Region, destination_region, source_region


class Staged(NamedTuple):
    """A copy that opens a launch: ``part`` of what the caller gives as ``name`` (None: zeros), into ``to``."""

    name: str | None
    part: tuple[slice, ...]
    to: torch.Tensor


class PlanTensor(ABC):
    """Views of a tensor's memory on all ranks.

    Args:
        name: of the tensor in the plan.
        layouts: of every rank's memory, in rank order.
        held: what of the global tensor this rank's caller is given (of an input: what it gives).
    """

    made = False
    """Whether a kernel makes it, so that its memory holds partial results, for messages."""

    def __init__(
        self,
        name: str,
        plan: CommPlan,
        runtime: Runtime,
        dtype: torch.dtype,
        layouts: Sequence[RankLayout],
        held: Box,
    ) -> None:
        self.name = name
        self.plan = plan
        self.dtype = dtype
        self.layouts = tuple(layouts)
        self.held = held
        self.size = max(layout.size for layout in self.layouts)
        """Elements of symmetric memory."""
        self._runtime = runtime
        self.data: Any = None

    def bind(self, data: torch.Tensor) -> None:
        """Takes symmetric memory, `size` elements or more."""
        self.data = data

    @abstractmethod
    def staged(self, given: Mapping[str, torch.Tensor], from_caller: Collection[OpId] = ()) -> Iterator[Staged]:
        """What a launch copies into this tensor's memory first.

        ``from_caller``: operations of this rank that read the caller's tensor instead.
        """

    def view(
        self, region: Region, rank: int | None = None, box: Box | None = None, *, here: bool = False
    ) -> torch.Tensor:
        """``box`` (all) of a region of this rank's layout or, with ``rank``, of that rank's, in the user's dimension order.

        ``here``: the place that it would have in this rank's memory, by which NVSHMEM finds it in the other's.
        """
        data = self.data if here or rank is None else self._runtime.peer(self.data, rank)
        box = region.box if box is None else box
        return data.as_strided(box.shape, region.strides, data.storage_offset() + region.at(box))

    @property
    def layout(self) -> RankLayout:
        """This rank's."""
        return self.layouts[self._runtime.rank]

    def source(self, op_id: OpId, *, here: bool = False) -> torch.Tensor:
        """What an operation reads, on the rank where that lies; ``here``: see `view`."""
        op = self._op(op_id)
        region = source_region(self.layouts[op.src_rank], op_id, op.src.box)
        return self.view(region, op.src_rank, op.src.box, here=here)

    def destination(self, op_id: OpId, *, here: bool = False) -> torch.Tensor:
        """Where an operation writes, on the rank where that lies; ``here``: see `view`."""
        op = self._op(op_id)
        return self.view(destination_region(self.layouts[op.dst_rank], op_id), op.dst_rank, op.dst.box, here=here)

    def _op(self, op_id: OpId) -> P2P:
        op = self.plan.op(op_id)
        assert isinstance(op, P2P)
        return op
