"""The nouns of a communication plan (the paper's Listing 2), frozen and free of torch.

A `CommPlan` says *what* moves: per rank an ordered list of operations over `Chunk`s, each
operation with the ``(rank, index)`` operations it comes after. It says nothing about when
tiles run (schedule) or how bytes move (realization).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from overlap.errors import SourceSpan

from .mesh import Mesh
from .reduction import Reduction
from .region import Box

OpId = tuple[int, int]
"""``(rank, index)``: the index-th operation in that rank's list."""


@dataclass(frozen=True)
class TensorSpec:
    """A global tensor: its name and global shape in elements.

    ``parts`` matters where the tensor is reduced: which part of the sum each rank holds, by rank and counted from 0. A
    sum counts every part once. Ranks with one number hold the same part, or the part of other elements, as when a sum
    runs over one axis of a mesh only. Empty: every rank holds a part of its own.

    ``groups`` makes it several tensors under one name: ranks with one number share a tensor, ranks with different ones
    have nothing in common, and parts are counted in each group. Empty: all ranks share it.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()

    def group(self, rank: int) -> int:
        """The number of the group a rank is in."""
        return self.groups[rank] if self.groups else 0

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Chunk:
    """A box of a global tensor that is communicated as a unit."""

    tensor: str
    box: Box

    def __str__(self) -> str:
        return f"{self.tensor}{self.box}"


@dataclass(frozen=True)
class P2P:
    """Moves ``src`` on ``src_rank`` to ``dst`` on ``dst_rank``.

    ``direction`` says whose list the operation stands in: ``push`` in the source's, ``pull`` in the
    destination's, ``local`` when both ranks are one. ``channel`` names the ordered lane it runs in:
    operations of one rank and one channel run in list order, different channels are unordered.

    Without ``reduce`` what arrives replaces what was there. With it, what arrives is combined with the rank's own
    value: a later operation, or the end of the plan, sees the own value and all that was combined *before* it, and
    what is not ordered with an operation is not seen by it (every arrival has memory of its own until it is combined).
    """

    direction: Literal["push", "pull", "local"]
    src_rank: int
    dst_rank: int
    src: Chunk
    dst: Chunk
    depends: tuple[OpId, ...] = ()
    channel: int = 0
    reduce: Reduction | None = None
    backend: str | None = None

    @property
    def owner(self) -> int:
        """The rank whose list the operation belongs in."""
        return self.src_rank if self.direction == "push" else self.dst_rank

    def __str__(self) -> str:
        what = str(self.dst) if self.src == self.dst else f"{self.src} as {self.dst}"
        if self.reduce:
            what = f"{what} ({self.reduce})"
        if self.direction == "pull":
            return f"pull {what} from rank {self.src_rank}"
        if self.direction == "push":
            return f"push {what} to rank {self.dst_rank}"
        return f"copy {what}"


@dataclass(frozen=True)
class Collective:
    """A collective over ``ranks`` handed to a library as a whole.

    It stands in the list of each of its ranks, with that rank's own ``src`` and ``dst``.
    """

    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
    ranks: tuple[int, ...]
    src: Chunk
    dst: Chunk
    depends: tuple[OpId, ...] = ()
    channel: int = 0
    reduce: Reduction | None = None
    backend: str | None = None

    def __str__(self) -> str:
        reduce = f" ({self.reduce})" if self.reduce else ""
        return f"{self.kind} {self.src} into {self.dst}{reduce} over ranks {', '.join(map(str, self.ranks))}"


CommOp = P2P | Collective


@dataclass(frozen=True)
class CommPlan:
    """Per rank an ordered list of operations; who owns what before and after.

    ``before[rank]`` and ``after[rank]`` are the chunks that rank holds valid before the first and
    after the last operation. ``span`` is the place of the plan in the user's file and ``spans[rank][index]``
    that of an operation (None and empty where there is none, as for plans made in Python); neither plays a part in equality.
    ``mesh`` is the grid its ranks stand in, where it is made for one.
    """

    name: str
    world: int
    tensors: tuple[TensorSpec, ...]
    before: tuple[tuple[Chunk, ...], ...]
    after: tuple[tuple[Chunk, ...], ...]
    ops: tuple[tuple[CommOp, ...], ...]
    meta: dict[str, str] = field(default_factory=dict, compare=False, hash=False)
    span: SourceSpan | None = field(default=None, compare=False, hash=False, repr=False)
    spans: tuple[tuple[SourceSpan | None, ...], ...] = field(default=(), compare=False, hash=False, repr=False)
    mesh: Mesh | None = None

    def op(self, op_id: OpId) -> CommOp:
        rank, index = op_id
        return self.ops[rank][index]

    def tensor(self, name: str) -> TensorSpec:
        """The tensor of that name.

        Raises:
            KeyError: there is none.
        """
        for spec in self.tensors:
            if spec.name == name:
                return spec
        raise KeyError(name)

    def items(self) -> Iterator[tuple[OpId, CommOp]]:
        """Every operation with its id, rank by rank in list order."""
        for rank, ops in enumerate(self.ops):
            for index, op in enumerate(ops):
                yield (rank, index), op

    def where(self, op_id: OpId | None = None) -> SourceSpan | None:
        """The place of an operation, or of the plan, in the user's plan file, if there is one."""
        if op_id is not None:
            rank, index = op_id
            if rank < len(self.spans) and index < len(self.spans[rank]):
                return self.spans[rank][index] or self.span
        return self.span

    def arriving(self, rank: int) -> tuple[OpId, ...]:
        """Operations, of any rank's list, that write ``rank``'s memory."""
        return tuple(
            (owner, index)
            for (owner, index), op in self.items()
            if (owner if isinstance(op, Collective) else op.dst_rank) == rank
        )
