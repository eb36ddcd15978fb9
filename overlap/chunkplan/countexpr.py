"""Counts in expressions: ``sent[rank, peer]`` is one, ``sum(sent[rank, :peer])`` adds up those before it.

Slices are Python's without a step, and stricter: a bound that does not lie on its index is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from overlap.errors import PlanError

from .document import nearest
from .rankkinds import need_kind

if TYPE_CHECKING:
    from .expr import Closure, Env, Snippet

SUM = "sum"
_Sub = Callable[[ast.expr], "Closure"]


def one_count(snippet: Snippet, part: ast.Subscript, sub: _Sub) -> Closure:
    """``NAME[i, j]``.

    Raises:
        PlanError: no such counts, another number of indices, or a slice among them.
    """
    name = _name_of(snippet, part.value)
    indices = _indices(part)
    for index in indices:
        if isinstance(index, ast.Slice):
            raise snippet.error(
                index, f"`{snippet.shown(part)}` is many counts", f"write `sum({snippet.shown(part)})` to add them up"
            )
    kinds = snippet.document.names.counts[name]
    if len(indices) != len(kinds):
        raise snippet.error(part, f"`{name}` has {len(kinds)} indices, not {len(indices)}", _forms(snippet, name))
    values = [_index(snippet, index, kind, sub) for index, kind in zip(indices, kinds, strict=True)]

    def read(env: Env) -> int:
        array = env[name]
        found = tuple(value(env) for value in values)
        for index, at, size in zip(indices, found, array.shape, strict=True):
            if not 0 <= at < size:
                raise snippet.error(
                    index,
                    f"there is no index {at} here: `{name}` has {size}, counted from 0",
                    f"`({snippet.shown(index)}) % {size}` wraps around, `when` leaves one out",
                )
        count: int = array[found]
        return count

    return read


def sum_of_counts(snippet: Snippet, part: ast.Call, sub: _Sub) -> Closure:
    """``sum(NAME)`` or ``sum(NAME[i, lo:hi])``.

    Raises:
        PlanError: no such counts, more indices than they have, or a slice with a step.
    """
    if len(part.args) != 1:
        raise snippet.error(
            part, f"sum() with {len(part.args)} arguments", "write `sum(NAME[i, :])`, NAME from `counts`"
        )
    summed = part.args[0]
    name = _name_of(snippet, summed.value if isinstance(summed, ast.Subscript) else summed)
    indices = _indices(summed) if isinstance(summed, ast.Subscript) else []
    kinds = snippet.document.names.counts[name]
    if len(indices) > len(kinds):
        raise snippet.error(part, f"`{name}` has {len(kinds)} indices, not {len(indices)}", _forms(snippet, name))
    bounds: list[tuple[ast.expr, Closure | None, Closure | None]] = []
    for index, kind in zip(indices, kinds, strict=False):
        if isinstance(index, ast.Slice):
            if index.step is not None:
                raise snippet.error(index.step, "a sum has no step", "write `lo:hi`")
            low = None if index.lower is None else _index(snippet, index.lower, kind, sub)
            high = None if index.upper is None else _index(snippet, index.upper, kind, sub)
            bounds.append((index, low, high))
        else:
            value = _index(snippet, index, kind, sub)
            bounds.append((index, value, lambda env, value=value: value(env) + 1))  # type: ignore[misc]

    def add(env: Env) -> int:
        array = env[name]
        parts = []
        for (index, low, high), size in zip(bounds, array.shape, strict=False):
            first = 0 if low is None else low(env)
            last = size if high is None else high(env)
            if not 0 <= first <= last <= size:
                raise snippet.error(
                    index,
                    f"{first}:{last} is no interval of an index of `{name}` with {size} values",
                    f"bounds grow and lie in 0:{size}",
                )
            parts.append(slice(first, last))
        total: int = array.sum(*parts)
        return total

    return add


def bare_counts(snippet: Snippet, part: ast.Name) -> PlanError:
    """The error of a name of counts that stands where an integer does."""
    return snippet.error(part, f"`{part.id}` is many counts, not one", _forms(snippet, part.id))


def _name_of(snippet: Snippet, part: ast.expr) -> str:
    counts = snippet.document.names.counts
    if isinstance(part, ast.Name) and part.id in counts:
        return part.id
    shown = snippet.shown(part)
    way = nearest(shown, counts) if counts else "`counts: {sent: [world, world]}` declares some"
    raise snippet.error(part, f"there are no counts `{shown}`", way)


def _indices(part: ast.Subscript) -> list[ast.expr]:
    return list(part.slice.elts) if isinstance(part.slice, ast.Tuple) else [part.slice]


def _index(snippet: Snippet, index: ast.expr, kind: str | None, sub: _Sub) -> Closure:
    if kind is not None:
        need_kind(snippet, index, kind)
    return sub(index)


def _forms(snippet: Snippet, name: str) -> str:
    indices = len(snippet.document.names.counts[name])
    one = ", ".join(["rank", "peer", "i"][:indices])
    row = ", ".join(["rank", ":", ":"][:indices]) if indices > 1 else ":"
    return f"write `{name}[{one}]` for one, `sum({name}[{row}])` to add some up"
