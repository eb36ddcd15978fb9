"""`Split`: into which parts transfers are cut.

    4                        4 parts of one size
    (1, 2, 1)                a quarter, a half and a quarter: 4 parts of one size, the two in the middle taken together
    ((1,), (1,), (3, 1))     of a rank's transfers the first, those between and the last, each by its own weights

As text, on command lines and in tables: ``4``, ``1:2:1`` and ``1/1/3:1``. Every part costs a copy's latency and a flag, so
small parts pay only where somebody waits: for the first chunk of all, or behind the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from overlap.errors import PlanError

Weights = tuple[int, ...]
Split = int | Weights | tuple[Weights, ...]
"""Equal parts, parts by weight, or by weight for the first transfer, those between and the last. In the form of `split_of`."""

SplitLike = int | str | Sequence[Any]
"""What `split_of` takes."""

WHOLE: Weights = (1,)
TURNS = ("the first transfer", "those between", "the last")
FORMS = "write parts as 4, weights as 1:2:1, or those of the first transfer, of others and of the last as 1/1/3:1"


def split_of(value: Any) -> Split:
    """A split from a number, a text, or numbers in sequences, in its one form: what cuts alike is equal.

    Raises:
        PlanError: it is none.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise PlanError(f"a split into {value} parts", help="split is 1 or more")
        return value
    if isinstance(value, str):
        turns = [_read(turn, value) for turn in value.split("/")]
        if len(turns) == 1:
            return _short(turns[0])
    elif isinstance(value, Sequence):
        if not any(isinstance(turn, Sequence) for turn in value):
            return _short(_checked(value, value))
        turns = [_counted(turn, value) for turn in value]
    else:
        raise PlanError(f"{value!r} says no split", help=FORMS)
    if len(turns) != len(TURNS):
        raise PlanError(f"a split with weights for {len(turns)} turns: {value!r}", help=FORMS)
    return _short(turns[0]) if len(set(turns)) == 1 else tuple(turns)


def split_text(split: Split) -> str:
    """The split as `split_of` reads it."""
    if isinstance(split, int):
        return str(split)
    return "/".join(map(_turn_text, _turns(split))) if by_turn(split) else _turn_text(_turns(split)[0])


def by_turn(split: Split) -> bool:
    """Whether the first and the last transfer of a rank are cut otherwise than those between."""
    return isinstance(split, tuple) and isinstance(split[0], tuple)


def parts_in(split: Split) -> int:
    """How many parts a transfer is cut into at most."""
    return split if isinstance(split, int) else max(map(len, _turns(split)))


def units_in(split: Split) -> int:
    """Units of weight that a transfer is cut into at most: of fewer elements some parts are empty."""
    return max(map(sum, _turns(split)))


def weights_at(split: Split, place: int = 0, count: int = 1) -> Weights:
    """The weights of a rank's transfer number ``place`` of ``count``.

    An only transfer is the first and the last: it is cut into the more parts of both, as the last where those are as many.
    """
    first, between, last = _turns(split)
    if place == 0 and (count > 1 or len(first) > len(last)):
        return first
    return last if place == count - 1 else between


def cut(length: int, weights: Weights) -> list[tuple[int, int]]:
    """Half-open intervals of ``length`` elements, one a weight, in order.

    As if `torch.chunk` cut it into as many parts as the weights add up to and neighbours were taken together: a unit of weight
    is ``ceil(length / sum(weights))`` elements, so parts at the end may be short or empty.
    """
    unit = -(-length // sum(weights))
    found, done = [], 0
    for weight in weights:
        upto = min(done + weight * unit, length)
        found.append((done, upto))
        done = upto
    return found


# Forms


def _turns(split: Split) -> tuple[Weights, Weights, Weights]:
    if isinstance(split, int):
        return ((1,) * split,) * 3
    return split if by_turn(split) else (split,) * 3  # type: ignore[return-value]


def _short(weights: Weights) -> Split:
    return len(weights) if set(weights) == {1} else weights


def _checked(weights: Sequence[Any], whole: Any) -> Weights:
    """Positive integers without a common factor."""
    if not weights or not all(type(weight) is int and weight >= 1 for weight in weights):
        raise PlanError(f"weights of a split are integers of 1 or more, not {whole!r}", help=FORMS)
    common = gcd(*weights)
    return tuple(weight // common for weight in weights)


def _counted(turn: Any, whole: Any) -> Weights:
    """The weights of one turn, which may be a number of parts."""
    if isinstance(turn, Sequence) and not isinstance(turn, str):
        return _checked(turn, whole)
    if type(turn) is not int or turn < 1:
        raise PlanError(f"weights of a split are integers of 1 or more, not {whole!r}", help=FORMS)
    return (1,) * turn


def _read(turn: str, whole: str) -> Weights:
    numbers = [int(word) if word.isascii() and word.strip().isdecimal() else 0 for word in turn.split(":")]
    return _counted(numbers[0], whole) if len(numbers) == 1 else _checked(numbers, whole)


def _turn_text(weights: Weights) -> str:
    return str(len(weights)) if set(weights) == {1} else ":".join(map(str, weights))
