"""Global and local ranks in plan files are told apart before anything is evaluated.

`rank` is a global rank; a mesh axis' name is this rank's local rank along it. What is computed from one stays one
(``(gpu + 1) % axis_size(gpu)``), and only `global_rank` and `local_rank` turn one into the other. Loop variables and
numbers are neither: they stand for whatever is wanted.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from overlap.errors import PlanError

if TYPE_CHECKING:
    from .expr import IntExpr, Snippet

GLOBAL = "rank"
"""The kind of a global rank; that of a local rank is its axis' name."""

MESH_FUNCTIONS = ("axis_size", "global_rank", "local_rank")


@dataclass
class Names:
    """What is known of a plan file's names while it is read: its mesh axes, which names are ranks, and its counts.

    ``counts`` has for every name of counts what each of its indices is: a global rank, a local one, or neither (None).
    """

    axes: tuple[str, ...] = ()
    kinds: dict[str, str] = field(default_factory=lambda: {GLOBAL: GLOBAL})
    counts: dict[str, tuple[str | None, ...]] = field(default_factory=dict)

    def example(self) -> str:
        return f"global_rank({', '.join(self.axes)})"


def kind_of(snippet: Snippet, part: ast.expr) -> str | None:
    """Whether an expression is a global rank, a local one, or neither.

    Raises:
        PlanError: it mixes the two, or gives a function the wrong one.
    """
    names = snippet.document.names

    def of(child: ast.expr) -> str | None:
        return kind_of(snippet, child)

    match part:
        case ast.Name(id=name):
            return names.kinds.get(name)
        case ast.BinOp(left=left, op=op, right=right):
            first, second = of(left), of(right)
            if isinstance(op, ast.Add | ast.Sub | ast.Mod):
                _same(snippet, part, first, second)
            if isinstance(op, ast.Mod):
                hand_made = first == GLOBAL and not (isinstance(right, ast.Name) and right.id == "world")
                return None if hand_made else first
            if isinstance(op, ast.Sub) and first == second:
                return None
            if isinstance(op, ast.Add | ast.Sub):
                return first if second is None else second if first is None else first if first == second else None
            return None
        case ast.IfExp(test=test, body=body, orelse=orelse):
            of(test)
            first, second = of(body), of(orelse)
            _same(snippet, part, first, second)
            return first or second
        case ast.Compare(left=left, comparators=rest):
            kinds = [of(term) for term in (left, *rest)]
            for first, second in zip(kinds, kinds[1:], strict=False):
                _same(snippet, part, first, second)
            return None
        case ast.Call(func=ast.Name(id="global_rank"), args=args):
            for axis, arg in zip(names.axes, args, strict=False):
                need_kind(snippet, arg, axis)
            return GLOBAL
        case ast.Call(func=ast.Name(id="local_rank"), args=[ast.Name(id=axis), arg]):
            kind = of(arg)
            if kind is not None and kind != GLOBAL:
                raise snippet.error(
                    arg, f"`{snippet.shown(arg)}` is {_said(kind)} already", "local_rank(AXIS, r) takes a global rank r"
                )
            return axis
        case ast.Call(func=ast.Name(id="axis_size")):
            return None
        case ast.Call(func=ast.Name(id="min" | "max"), args=args):
            kinds = [of(arg) for arg in args]
            known = [kind for kind in kinds if kind is not None]
            for kind in known:
                _same(snippet, part, known[0], kind)
            return known[0] if known else None
    for child in ast.iter_child_nodes(part):
        if isinstance(child, ast.expr):
            of(child)
    return None


def need_global(expr: IntExpr, what: str) -> IntExpr:
    """The expression, which stands where a global rank does.

    Raises:
        PlanError: it is a local rank.
    """
    if expr.kind is not None and expr.kind != GLOBAL:
        names = expr.snippet.document.names
        raise expr.error(f"{what} is a global rank, and `{expr.text}` is {_said(expr.kind)}", _way(names, GLOBAL))
    return expr


def need_kind(snippet: Snippet, part: ast.expr, wanted: str) -> None:
    """Returns if a part may stand where a rank of the kind ``wanted`` does.

    Raises:
        PlanError: it is a rank of another kind.
    """
    kind = kind_of(snippet, part)
    if kind is not None and kind != wanted:
        raise snippet.error(
            part,
            f"`{snippet.shown(part)}` is {_said(kind)}, and here goes {_said(wanted)}",
            _way(snippet.document.names, wanted),
        )


def _said(kind: str) -> str:
    return "a global rank" if kind == GLOBAL else f"a local rank along `{kind}`"


def _way(names: Names, wanted: str) -> str:
    if wanted == GLOBAL:
        return f"`{names.example()}` makes a global rank of local ones"
    return f"`{wanted}` is this rank's own, `local_rank({wanted}, r)` that of global rank r"


def _same(snippet: Snippet, part: ast.expr, first: str | None, second: str | None) -> None:
    if first is None or second is None or (first == GLOBAL) == (second == GLOBAL):
        return
    local = second if first == GLOBAL else first
    error: PlanError = snippet.error(
        part,
        f"`{snippet.shown(part)}` mixes a global rank with a local rank along `{local}`",
        f"{_way(snippet.document.names, GLOBAL)}; {_way(snippet.document.names, local)}",
    )
    raise error
