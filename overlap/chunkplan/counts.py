"""Sizes that are known when a call is made and not before, such as how many rows each rank sends to each other one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from overlap.errors import PlanError

MAX_INDICES = 3
LARGEST = 2**62

Index = int | slice


@dataclass(frozen=True)
class CountArray:
    """Counts, each 0 or more, by one to three indices.

    ``array[i, j]`` is one count; ``array.sum(i, slice(0, j))`` adds up a part of it, in constant time, which makes the
    place of a piece in a row of pieces of any sizes.

    Args:
        shape: how many values each index has.
        values: the counts, the last index fastest.

    Raises:
        PlanError: no index or more than three, not one value a place, or a value that is no count.
    """

    shape: tuple[int, ...]
    values: tuple[int, ...]
    _sums: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= MAX_INDICES:
            raise PlanError(f"counts with {len(self.shape)} indices", help=f"write lists in lists, {MAX_INDICES} deep")
        if len(self.values) != prod(self.shape):
            raise PlanError(
                f"{len(self.values)} counts for {'x'.join(map(str, self.shape))} places", help="give each place one"
            )
        for place, value in zip(self.places(), self.values, strict=True):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
                shown = ", ".join(map(str, place))
                raise PlanError(f"the count at [{shown}] is {value!r}", help="a count is an integer from 0 on")
        object.__setattr__(self, "_sums", self._prefix_sums())

    @classmethod
    def of(cls, counts: Any) -> CountArray:
        """Counts from lists in lists, or from an array or tensor that has ``tolist()``.

        Raises:
            PlanError: rows of different lengths, or anything that is no count.
        """
        if isinstance(counts, CountArray):
            return counts
        if hasattr(counts, "tolist"):
            counts = counts.tolist()
        shape: list[int] = []
        level: Any = counts
        while _is_row(level):
            shape.append(len(level))
            level = level[0] if level else None
        values: list[Any] = []
        _flatten(counts, shape, (), values)
        return cls(tuple(shape), tuple(values))

    def places(self) -> Iterator[tuple[int, ...]]:
        """Every index of a count, in the order of ``values``."""
        return product(*map(range, self.shape))

    def __getitem__(self, index: int | tuple[int, ...]) -> int:
        """One count. An index that does not exist raises IndexError; none counts from the end."""
        at = 0
        for i, size in zip(index if isinstance(index, tuple) else (index,), self.shape, strict=True):
            if not 0 <= i < size:
                raise IndexError(f"index {i} of {size}")
            at = at * size + i
        return self.values[at]

    def sum(self, *index: Index) -> int:
        """The sum over a part: an integer or a slice without a step for each index; indices left out mean all of them.

        Raises:
            IndexError: a bound that does not lie on its index, or a slice that runs backwards.
        """
        spans = []
        for number, size in enumerate(self.shape):
            part = index[number] if number < len(index) else slice(None)
            if isinstance(part, slice):
                low, high = part.start or 0, size if part.stop is None else part.stop
            else:
                low, high = part, part + 1
            if not 0 <= low <= high <= size:
                raise IndexError(f"{low}:{high} of {size}")
            spans.append((low, high))
        total = 0
        for ends in product((0, 1), repeat=len(spans)):
            at = 0
            for end, span, size in zip(ends, spans, self.shape, strict=True):
                at = at * (size + 1) + span[end]
            total += self._sums[at] if (len(spans) - sum(ends)) % 2 == 0 else -self._sums[at]
        return total

    def tolist(self) -> list[Any]:
        """Lists in lists."""
        rows: list[Any] = list(self.values)
        for number in range(len(self.shape) - 1, 0, -1):
            width = self.shape[number]
            rows = [rows[i * width : (i + 1) * width] for i in range(prod(self.shape[:number]))]
        return rows

    def __str__(self) -> str:
        return str(self.tolist())

    def _prefix_sums(self) -> tuple[int, ...]:
        """At ``[a, b, ...]`` the sum of all counts whose indices are below a, b, ..."""
        grown = tuple(size + 1 for size in self.shape)
        strides = [prod(grown[number + 1 :]) for number in range(len(grown))]
        sums = [0] * prod(grown)
        for place, value in zip(self.places(), self.values, strict=True):
            sums[sum((i + 1) * stride for i, stride in zip(place, strides, strict=True))] = value
        for size, stride in zip(grown, strides, strict=True):
            for at in range(len(sums)):
                if at // stride % size:
                    sums[at] += sums[at - stride]
        return tuple(sums)


def _is_row(level: Any) -> bool:
    return isinstance(level, Sequence) and not isinstance(level, str | bytes)


def _flatten(level: Any, shape: Sequence[int], at: tuple[int, ...], values: list[Any]) -> None:
    if len(at) == len(shape):
        values.append(level)
        return
    if not _is_row(level) or len(level) != shape[len(at)]:
        said = f"{len(level)} entries" if _is_row(level) else f"`{level!r}`"
        raise PlanError(
            f"counts whose rows differ: {said} at [{', '.join(map(str, at))}], where {shape[len(at)]} stand elsewhere",
            help="give every row as many counts",
        )
    for number, part in enumerate(level):
        _flatten(part, shape, (*at, number), values)
