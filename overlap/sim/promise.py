"""What a plan promises, in numbers: from what ranks hold before and after, and never from how the plan gets there.

Elements of a tensor have one value all over the world (in each of its groups); of a tensor that is reduced, one value for
each part, and what ranks end with is the sum of the parts. Elements of a tensor that nobody holds before are those that
operations put `into` them from another tensor. All values are integers small enough that sums of them are exact in any
order and dtype.
"""

from __future__ import annotations

import numpy as np
import torch

from overlap.chunkplan.memory import reduced_tensors
from overlap.chunkplan.plan import P2P, Chunk, CommPlan
from overlap.chunkplan.region import Box

_EXACT = {
    torch.float64: 2**52,
    torch.float32: 2**24,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
    torch.float8_e4m3fn: 2**4,
    torch.float8_e5m2: 2**3,
    torch.int8: 2**6,
}
"""Integers up to these have all their bits in a dtype."""


class Promise:
    """Data for one launch of ``plan``, and what ranks must end with.

    Args:
        seed: of the data.
    """

    def __init__(self, plan: CommPlan, dtype: torch.dtype, seed: int) -> None:
        self._plan = plan
        reduced = reduced_tensors(plan)
        promised = {chunk.tensor for chunks in plan.after for chunk in chunks}
        self._reduced = reduced
        self._partial = reduced | {
            op.src.tensor for _, op in plan.items() if op.dst.tensor in reduced and op.src.tensor not in promised
        }
        most = max(1, min(2**20, _EXACT.get(dtype, 2**6) // plan.world - 1))
        dice = np.random.default_rng(seed)
        self._values = {
            spec.name: {
                kind: dice.integers(-most, most + 1, spec.shape).astype(np.float64)
                for kind in sorted({self._kind(spec.name, rank) for rank in range(plan.world)})
            }
            for spec in plan.tensors
        }
        """By tensor, group and part."""
        self._carry_over()

    def given(self, rank: int, tensor: str, box: Box) -> np.ndarray:
        """What a rank holds before, of ``box``."""
        return self._values[tensor][self._kind(tensor, rank)][_index(box)]

    def promised(self, rank: int, chunk: Chunk) -> np.ndarray:
        """What ``rank`` must have of ``chunk``, which it ends with."""
        return self._total(chunk.tensor, rank)[_index(chunk.box)]

    def _kind(self, tensor: str, rank: int) -> tuple[int, int]:
        """The group of a rank, and which part it holds of the group's tensor."""
        spec = self._plan.tensor(tensor)
        if tensor not in self._partial:
            return spec.group(rank), 0
        return spec.group(rank), spec.parts[rank] if spec.parts else rank

    def _total(self, tensor: str, rank: int) -> np.ndarray:
        group, part = self._kind(tensor, rank)
        values = self._values[tensor]
        if tensor not in self._reduced:
            return values[group, part]
        return np.stack([value for (other, _), value in values.items() if other == group]).sum(0)

    def _carry_over(self) -> None:
        """Gives the elements of tensors that nobody holds before the values that come from other tensors."""
        plan = self._plan
        moves = [op for _, op in plan.items() if isinstance(op, P2P) and op.src.tensor != op.dst.tensor]
        if not moves:
            return
        held = {
            name: {kind: np.zeros(value.shape, bool) for kind, value in values.items()}
            for name, values in self._values.items()
        }
        for rank, chunks in enumerate(plan.before):
            for chunk in chunks:
                held[chunk.tensor][self._kind(chunk.tensor, rank)][_index(chunk.box)] = True
        for _ in plan.tensors:  # as far as a chain of tensors goes
            for op in moves:
                for kind, into in self._values[op.dst.tensor].items():
                    if kind[0] != self._kind(op.dst.tensor, op.dst_rank)[0]:
                        continue
                    fresh = ~held[op.dst.tensor][kind][_index(op.dst.box)]
                    if op.dst.tensor in self._partial:
                        source = self._values[op.src.tensor].get(kind, self._total(op.src.tensor, op.src_rank))
                    else:
                        source = self._total(op.src.tensor, op.src_rank)
                    into[_index(op.dst.box)][fresh] = source[_index(op.src.box)][fresh]


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(map(slice, box.lo, box.hi))
