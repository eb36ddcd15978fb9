"""The nouns of a communication plan (the paper's Listing 2), frozen and free of torch.

A `CommPlan` says *what* moves: per rank an ordered list of operations over `Chunk`s, each
operation with the ``(rank, index)`` operations it comes after. It says nothing about when
tiles run (schedule) or how bytes move (realization).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .region import Box

OpId = tuple[int, int]
"""``(rank, index)``: the index-th operation in that rank's list."""


@dataclass(frozen=True)
class TensorSpec:
    """A global tensor: its name and global shape in elements."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """A box of a global tensor that is communicated as a unit."""

    tensor: str
    box: Box


@dataclass(frozen=True)
class P2P:
    """Moves ``src`` on ``src_rank`` to ``dst`` on ``dst_rank``.

    ``direction`` says whose list the operation stands in: ``push`` in the source's, ``pull`` in the
    destination's, ``local`` when both ranks are one. ``channel`` names the ordered lane it runs in:
    operations of one rank and one channel run in list order, different channels are unordered.
    """

    direction: Literal["push", "pull", "local"]
    src_rank: int
    dst_rank: int
    src: Chunk
    dst: Chunk
    depends: tuple[OpId, ...] = ()
    channel: int = 0
    reduce: str | None = None
    backend: str | None = None


@dataclass(frozen=True)
class Collective:
    """A collective over ``ranks`` handed to a library as a whole."""

    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
    ranks: tuple[int, ...]
    src: Chunk
    dst: Chunk
    depends: tuple[OpId, ...] = ()
    channel: int = 0
    reduce: str | None = None
    backend: str | None = None


CommOp = P2P | Collective


@dataclass(frozen=True)
class CommPlan:
    """Per rank an ordered list of operations; who owns what before and after.

    ``before[rank]`` and ``after[rank]`` are the chunks that rank holds valid before the first and
    after the last operation.
    """

    name: str
    world: int
    tensors: tuple[TensorSpec, ...]
    before: tuple[tuple[Chunk, ...], ...]
    after: tuple[tuple[Chunk, ...], ...]
    ops: tuple[tuple[CommOp, ...], ...]
    meta: dict[str, str] = field(default_factory=dict, compare=False, hash=False)

    def op(self, op_id: OpId) -> CommOp:
        rank, index = op_id
        return self.ops[rank][index]

    def arriving(self, rank: int) -> tuple[OpId, ...]:
        """Operations, of any rank's list, whose destination is ``rank``."""
        return tuple(
            (owner, index)
            for owner, ops in enumerate(self.ops)
            for index, op in enumerate(ops)
            if (rank in op.ranks if isinstance(op, Collective) else op.dst_rank == rank)
        )
