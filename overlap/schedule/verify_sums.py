"""Checks of launch steps that concern what tiles make: nothing leaves before it is whole, everything is summed once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from overlap.chunkplan.plan import Chunk, CommPlan, OpId
from overlap.errors import ScheduleError

from .early import kept_chunks
from .pieces import Piece, Values, partial_sources, pieces
from .steps import Branch, Copy, Fork, Gather, Hold, Join, Kernel, Step, Sum, Whole


@dataclass(frozen=True)
class Produced:
    """What a rank's operations on produced tensors send, and what it ends with.

    ``partial``: operations that send a chunk as its tiles made it; ``kept``: those that send a sum, with its pieces;
    ``result``: all pieces of what the rank ends with; ``own``: chunks whose counters say that tiles have made them.
    """

    partial: dict[OpId, Chunk]
    kept: dict[OpId, tuple[Piece, ...]]
    result: tuple[Piece, ...]
    own: frozenset[Chunk] = frozenset()

    @classmethod
    def of(
        cls,
        plan: CommPlan,
        rank: int,
        produced: Collection[str],
        values: Values | None,
        early: bool = False,
    ) -> Produced:
        if not produced:
            return cls({}, {}, ())
        partial = {op: chunk for chunk, ops in partial_sources(plan, rank, produced, values) for op in ops}
        kept: dict[OpId, tuple[Piece, ...]] = {}
        result: list[Piece] = []
        for tensor in sorted(set(produced)):
            sums, final = pieces(plan, rank, tensor, values)
            kept |= {op: made for ops, made in sums.items() for op in ops}
            result += final
        held = kept_chunks(plan, rank, produced, values) if early else ()
        own = frozenset([*partial.values(), *(chunk for chunk, _ in held)])
        return cls(partial, kept, tuple(result), own)


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
        elif isinstance(step, Whole):
            if step.chunk not in made.own or not kernel:
                raise ScheduleError(
                    f"rank {rank}: lane {step.lane} waits until tiles have made {step.chunk}, "
                    + ("ahead of their kernel" if step.chunk in made.own else "which no counter says")
                )
        elif isinstance(step, Copy) and step.op in made.partial:
            chunk = made.partial[step.op]
            if chunk not in held.get(step.lane, ()):
                raise ScheduleError(
                    f"rank {rank}: lane {step.lane} copies {_op(step.op)} without being held until {chunk} is whole"
                )


def check_sums(steps: Sequence[Step], rank: int, made: Produced, *, kernel: bool = True) -> None:
    """Sums stand behind the ``kernel``, if there is one, add every piece once, and come before what sends them on. What tiles
    store in the result itself is what stays of it, and in no sum.

    On a lane a sum stands beside the kernel: behind the waits for all that it adds, so that it never waits itself, and, where it
    is sent on, in front of those of the main stream, which fill the device and wait.
    """
    expected = list(dict.fromkeys([*(piece for kept in made.kept.values() for piece in kept), *made.result]))
    made_partial = not kernel
    summed: set[Piece] = set()
    behind: dict[int, set[Piece]] = {}
    here: dict[int, set[Piece]] = {}
    there: dict[int, set[object]] = {}
    for step in steps:
        if isinstance(step, Kernel):
            made_partial = True
            _check_placed(step, rank, made, expected)
            summed.update(step.placed)
            for piece in step.finished:
                if piece not in expected or piece in summed or piece.keep or None not in piece.summands:
                    raise ScheduleError(
                        f"rank {rank}: the kernel adds up {piece.chunk}, which is no part of its own that it keeps, or twice"
                    )
                summed.add(piece)
        elif isinstance(step, Whole):
            there.setdefault(step.lane, set()).add(step.chunk)
        elif isinstance(step, Gather):
            there.setdefault(step.lane, set()).update(step.ops)
        elif isinstance(step, Branch):
            behind.setdefault(step.lane, set()).update(here.get(step.behind, ()))
        elif isinstance(step, Join):
            here.pop(step.lane, None)
        elif isinstance(step, Sum):
            if not made_partial:
                raise ScheduleError(f"rank {rank}: a sum of {step.tensor} ahead of the kernel that makes its partial")
            for piece in step.pieces:
                if piece not in expected or piece in summed or piece.chunk.tensor != step.tensor:
                    raise ScheduleError(
                        f"rank {rank}: a sum of {step.tensor} adds up {piece.chunk} twice, or otherwise than the plan says"
                    )
                summed.add(piece)
            for op in step.stores:
                if not set(made.kept.get(op, (None,))) <= set(step.pieces):
                    raise ScheduleError(f"rank {rank}: a sum of {step.tensor} stores {_op(op)}, which sends another")
            if step.lane is None:
                if here:
                    raise ScheduleError(f"rank {rank}: a sum of {step.tensor} beside those of lane {min(here)}")
                continue
            if any(piece.keep for piece in step.pieces):
                here.setdefault(step.lane, set()).update(step.pieces)
            for piece in step.pieces:
                for summand in piece.summands:
                    if (piece.chunk if summand is None else summand) not in there.get(step.lane, ()):
                        what = "tiles made it" if summand is None else f"{_op(summand)} has landed"
                        raise ScheduleError(
                            f"rank {rank}: lane {step.lane} adds up {piece.chunk} without waiting until {what}"
                        )
        elif isinstance(step, Fork):
            behind.setdefault(step.lane, set()).update(summed.difference(*here.values()))
        elif isinstance(step, Copy):
            for piece in made.kept.get(step.op, ()):
                if piece not in behind.get(step.lane, ()):
                    raise ScheduleError(
                        f"rank {rank}: lane {step.lane} copies {_op(step.op)} without a fork behind the sum of {piece.chunk}"
                    )
    for piece in expected:
        if piece not in summed:
            raise ScheduleError(f"rank {rank}: no sum adds up {piece.chunk}")


def _check_placed(kernel: Kernel, rank: int, made: Produced, expected: Collection[Piece]) -> None:
    """Of what tiles store in the result itself nothing is in their partial, so nobody may send it or add to it."""
    for piece in kernel.placed:
        chunk, alone = piece.chunk, piece.summands == (None,) and not piece.keep
        sent = any(c.tensor == chunk.tensor and c.box.overlaps(chunk.box) for c in made.partial.values())
        if piece not in expected or not alone or sent or kernel.placed.count(piece) > 1:
            raise ScheduleError(
                f"rank {rank}: tiles store {chunk} in the result, "
                + ("and an operation sends it" if sent else "which is more than what they make of it, or twice")
            )


def _op(op: OpId) -> str:
    return f"rank {op[0]} operation {op[1]}"
