"""Checks of launch steps that concern what tiles make: nothing leaves before it is whole, everything is summed once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from overlap.chunkplan.plan import Chunk, CommPlan, OpId
from overlap.errors import ScheduleError

from .pieces import Piece, Values, partial_sources, pieces
from .steps import Copy, Fork, Hold, Kernel, Step, Sum


@dataclass(frozen=True)
class Produced:
    """What a rank's operations on produced tensors send, and what it ends with.

    ``partial``: operations that send a chunk as its tiles made it; ``kept``: those that send a sum, with its pieces;
    ``result``: all pieces of what the rank ends with.
    """

    partial: dict[OpId, Chunk]
    kept: dict[OpId, tuple[Piece, ...]]
    result: tuple[Piece, ...]

    @classmethod
    def of(cls, plan: CommPlan, rank: int, produced: Collection[str], values: Values | None) -> Produced:
        if not produced:
            return cls({}, {}, ())
        partial = {op: chunk for chunk, ops in partial_sources(plan, rank, produced, values) for op in ops}
        kept: dict[OpId, tuple[Piece, ...]] = {}
        result: list[Piece] = []
        for tensor in sorted(set(produced)):
            sums, final = pieces(plan, rank, tensor, values)
            kept |= {op: made for ops, made in sums.items() for op in ops}
            result += final
        return cls(partial, kept, tuple(result))


def check_holds(steps: Sequence[Step], rank: int, made: Produced) -> None:
    """A lane is held back, behind the kernel, before it copies a chunk that tiles make."""
    kernel = False
    held: dict[int, set[Chunk]] = {}
    for step in steps:
        if isinstance(step, Kernel):
            kernel = True
            for op in step.stores:
                if op not in made.partial or made.partial[op].box.empty:
                    raise ScheduleError(
                        f"rank {rank}: the kernel stores {_op(op)}, which sends nothing that its tiles make"
                    )
        elif isinstance(step, Hold):
            chunk = made.partial.get(step.op)
            if chunk is None:
                raise ScheduleError(
                    f"rank {rank}: lane {step.lane} is held for {_op(step.op)}, which sends nothing that its tiles make"
                )
            if not kernel:
                raise ScheduleError(
                    f"rank {rank}: lane {step.lane} is held for {_op(step.op)} ahead of the kernel that makes {chunk}"
                )
            held.setdefault(step.lane, set()).add(chunk)
        elif isinstance(step, Copy) and step.op in made.partial:
            chunk = made.partial[step.op]
            if chunk not in held.get(step.lane, ()):
                raise ScheduleError(
                    f"rank {rank}: lane {step.lane} copies {_op(step.op)} without being held until {chunk} is whole"
                )


def check_sums(steps: Sequence[Step], rank: int, made: Produced, *, kernel: bool = True) -> None:
    """Sums stand behind the ``kernel``, if there is one, add every piece once, and come before what sends them on."""
    expected = list(dict.fromkeys([*(piece for kept in made.kept.values() for piece in kept), *made.result]))
    made_partial = not kernel
    summed: set[Piece] = set()
    behind: dict[int, set[Piece]] = {}
    for step in steps:
        if isinstance(step, Kernel):
            made_partial = True
        elif isinstance(step, Sum):
            if not made_partial:
                raise ScheduleError(f"rank {rank}: a sum of {step.tensor} ahead of the kernel that makes its partial")
            for piece in step.pieces:
                if piece not in expected or piece in summed or piece.chunk.tensor != step.tensor:
                    raise ScheduleError(
                        f"rank {rank}: a sum of {step.tensor} adds up {piece.chunk} twice, or otherwise than the plan says"
                    )
                summed.add(piece)
        elif isinstance(step, Fork):
            behind[step.lane] = set(summed)
        elif isinstance(step, Copy):
            for piece in made.kept.get(step.op, ()):
                if piece not in behind.get(step.lane, ()):
                    raise ScheduleError(
                        f"rank {rank}: lane {step.lane} copies {_op(step.op)} without a fork behind the sum of {piece.chunk}"
                    )
    for piece in expected:
        if piece not in summed:
            raise ScheduleError(f"rank {rank}: no sum adds up {piece.chunk}")


def _op(op: OpId) -> str:
    return f"rank {op[0]} operation {op[1]}"
