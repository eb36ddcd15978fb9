"""Integer arithmetic of plan files: Python's spelling, a whitelist of its syntax, no evaluation of Python.

    (rank + step) % world        min(extent, 2 * rows)        0 if rank == 0 else world - 1
    axis_size(gpu)               global_rank(node, (gpu + 1) % axis_size(gpu))            local_rank(node, peer)
    sent[rank, peer]             sum(sent[rank, :peer])       counts, see `countexpr`

An expression is checked once, when the file is read (syntax and names), and becomes a closure over an
environment of values; only a division by zero, a rank beside the mesh and an index beside the counts are left to fail
later.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from overlap.errors import PlanError, SourceSpan

from .countexpr import SUM, bare_counts, one_count, sum_of_counts
from .document import COMMA, Document, Node, nearest
from .rankkinds import MESH_FUNCTIONS, kind_of

Env = Mapping[str, Any]
"""The integers behind names, and the `CountArray` behind a name of counts."""

Closure = Callable[[Env], int]

LIMIT = 2**63
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_PLAIN = ("min", "max", "abs", "cdiv")
FUNCTIONS = (*_PLAIN, SUM, *MESH_FUNCTIONS)
_ALLOWED = "integers, names, + - * // %, comparisons, and / or / not, `a if c else b`, min, max, abs, cdiv"


@dataclass(frozen=True)
class Snippet:
    """Python-like text inside a YAML scalar, parsed, with the place of each of its parts."""

    document: Document
    node: Node
    text: str
    tree: ast.expr
    shift: int

    @classmethod
    def parse(
        cls, document: Document, node: Node, what: str, *, help: str, prefix: str = "", suffix: str = ""
    ) -> Snippet:
        """Parses a scalar as one Python expression, between ``prefix`` and ``suffix``; ``help`` says what it may be.

        Raises:
            PlanError: the text is no expression.
        """
        raw = document.scalar(node, what)
        text = raw.strip()
        lead = len(raw) - len(raw.lstrip())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python's own remarks on style, such as `1if`
                tree = ast.parse(prefix + text + suffix, mode="eval").body
        except SyntaxError as error:
            place = max(0, min(len(text), (error.offset or 1) - 1 - len(prefix)))
            where = document.span(node, lead + place, lead + max(place + 1, len(text)))
            if "\n" in text:
                where = document.span(node)
            reason = error.msg.split(";")[0]
            help = COMMA if document.cut_short(node) else help
            raise PlanError(f"{what} `{_short(text)}` cannot be read: {reason}", where=where, help=help) from None
        except (ValueError, RecursionError, MemoryError):
            raise document.error(node, f"{what} cannot be read", help=help) from None
        return cls(document, node, text, tree, lead - len(prefix))

    def span(self, part: ast.AST) -> SourceSpan:
        """The place of a part of the expression in the user's file."""
        start, end = getattr(part, "col_offset", None), getattr(part, "end_col_offset", None)
        if start is None or end is None or "\n" in self.text or not self.text.isascii():
            return self.document.span(self.node)
        return self.document.span(self.node, max(0, start + self.shift), max(0, end + self.shift))

    def error(self, part: ast.AST, message: str, help: str = "") -> PlanError:
        return PlanError(message, where=self.span(part), help=help)

    @staticmethod
    def shown(part: ast.AST) -> str:
        """A part as text for a message, cut short where it is long."""
        return _short(ast.unparse(part))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True)
class IntExpr:
    """An integer expression. Calling it with values for its names gives the integer; ``kind`` is of `rankkinds`."""

    snippet: Snippet
    part: ast.expr
    names: frozenset[str]
    run: Closure
    kind: str | None = None

    def __call__(self, env: Env) -> int:
        value = self.run(env)
        if not -LIMIT < value < LIMIT:
            raise self.error("a value that does not fit 64 bits", "plans count ranks and elements")
        return value

    @property
    def text(self) -> str:
        return ast.unparse(self.part)

    def error(self, message: str, help: str = "") -> PlanError:
        """An error at this expression."""
        return self.snippet.error(self.part, message, help)


def parse_int(document: Document, node: Node, what: str, scope: frozenset[str]) -> IntExpr:
    """The integer expression of a scalar.

    Args:
        scope: the names that have a value where the expression stands.

    Raises:
        PlanError: it cannot be read, uses an unknown name (those in scope are listed) or syntax outside the whitelist.
    """
    snippet = Snippet.parse(document, node, what, help=f"allowed: {_ALLOWED}")
    return compile_int(snippet, snippet.tree, scope)


def compile_int(snippet: Snippet, part: ast.expr, scope: frozenset[str]) -> IntExpr:
    """One part of a parsed snippet as an integer expression."""
    names = frozenset(n.id for n in ast.walk(part) if isinstance(n, ast.Name) and n.id not in FUNCTIONS)
    try:
        return IntExpr(snippet, part, names, _compile(snippet, part, scope), kind_of(snippet, part))
    except RecursionError:
        raise snippet.error(part, "an expression nested too deeply", "use `let` for parts of it") from None


def _compile(snippet: Snippet, part: ast.expr, scope: frozenset[str]) -> Closure:
    def sub(child: ast.expr) -> Closure:
        return _compile(snippet, child, scope)

    match part:
        case ast.Constant(value=bool() as value):
            return lambda env: int(value)
        case ast.Constant(value=int() as value):
            return lambda env: value
        case ast.Name(id=name):
            if name in snippet.document.names.counts:
                raise bare_counts(snippet, part)
            if name not in scope:
                raise snippet.error(part, f"unknown symbol `{name}`", nearest(name, scope))
            return lambda env: env[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _binary(snippet, part, _BINARY[type(op)], sub(left), sub(right))
        case ast.BinOp(op=ast.Div()):
            raise snippet.error(
                part, "`/` does not give an integer", "write `//` (rounds down) or `cdiv(a, b)` (rounds up)"
            )
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value_of = sub(operand)
            return lambda env: -value_of(env)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return sub(operand)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            truth = sub(operand)
            return lambda env: int(not truth(env))
        case ast.BoolOp(op=op, values=values):
            terms = [sub(value) for value in values]
            if isinstance(op, ast.And):
                return lambda env: int(all(term(env) for term in terms))
            return lambda env: int(any(term(env) for term in terms))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            chosen, then, other = sub(test), sub(body), sub(orelse)
            return lambda env: then(env) if chosen(env) else other(env)
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _COMPARE for op in ops):
            return _comparison([_COMPARE[type(op)] for op in ops], [sub(term) for term in (left, *rest)])
        case ast.Subscript(value=ast.Name()):
            return one_count(snippet, part, sub)
        case ast.Call(func=ast.Name(id="sum"), keywords=[]):
            return sum_of_counts(snippet, part, sub)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in MESH_FUNCTIONS:
            return _on_mesh(snippet, part, name, args, sub)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return _call(snippet, part, name, [sub(arg) for arg in args])
        case ast.Call(func=ast.Name(id=name)) if name not in FUNCTIONS:
            names = snippet.document.names
            known = (*_PLAIN, *((SUM,) if names.counts else ()), *(MESH_FUNCTIONS if names.axes else ()))
            raise snippet.error(part, f"unknown function `{name}`", nearest(name, known))
    raise snippet.error(part, f"`{snippet.shown(part)}` is not integer arithmetic", f"allowed: {_ALLOWED}")


def _binary(
    snippet: Snippet, part: ast.BinOp, function: Callable[[int, int], int], left: Closure, right: Closure
) -> Closure:
    if not isinstance(part.op, ast.FloorDiv | ast.Mod):
        return lambda env: function(left(env), right(env))

    def divide(env: Env) -> int:
        divisor = right(env)
        if divisor == 0:
            raise _by_zero(snippet, part.right, env)
        return function(left(env), divisor)

    return divide


def _by_zero(snippet: Snippet, divisor: ast.expr, env: Env) -> PlanError:
    counts = snippet.document.names.counts
    names = sorted({n.id for n in ast.walk(divisor) if isinstance(n, ast.Name)} & set(env) - set(counts))
    values = ", ".join(f"{name} = {env[name]}" for name in names)
    return snippet.error(
        divisor,
        f"division by zero: `{snippet.shown(divisor)}` is 0" + (f" with {values}" if values else ""),
        f"guard it, as in `x // max(1, {snippet.shown(divisor)})`, or add a `when`",
    )


def _comparison(functions: list[Callable[[int, int], bool]], terms: list[Closure]) -> Closure:
    def compare(env: Env) -> int:
        values = [term(env) for term in terms]
        return int(all(f(a, b) for f, a, b in zip(functions, values, values[1:], strict=False)))

    return compare


def _call(snippet: Snippet, part: ast.Call, name: str, args: list[Closure]) -> Closure:
    wanted = {"abs": (1, 1), "cdiv": (2, 2)}.get(name, (2, 64))
    if not wanted[0] <= len(args) <= wanted[1]:
        raise snippet.error(
            part, f"{name}() with {len(args)} arguments", "write max(a, b), min(a, b), abs(a) or cdiv(a, b)"
        )
    if name == "min":
        return lambda env: min(arg(env) for arg in args)
    if name == "max":
        return lambda env: max(arg(env) for arg in args)
    if name == "abs":
        return lambda env: abs(args[0](env))

    def cdiv(env: Env) -> int:
        divisor = args[1](env)
        if divisor == 0:
            raise _by_zero(snippet, part.args[1], env)
        return -(-args[0](env) // divisor)

    return cdiv


def size_key(axis: str) -> str:
    """The name under which an environment has an axis' size; no plan can spell it otherwise."""
    return f"axis_size({axis})"


def _on_mesh(
    snippet: Snippet, part: ast.Call, name: str, args: list[ast.expr], sub: Callable[[ast.expr], Closure]
) -> Closure:
    """``axis_size(AXIS)``, ``global_rank(LOCAL, ...)`` and ``local_rank(AXIS, GLOBAL)``; the last axis varies fastest."""
    names = snippet.document.names
    axes = names.axes
    if not axes:
        raise snippet.error(part, f"`{name}` in a plan without a mesh", "name its axes, as in `mesh: [node, gpu]`")
    keys = [size_key(axis) for axis in axes]
    if name == "global_rank":
        if len(args) != len(axes):
            raise snippet.error(part, f"global_rank() with {len(args)} local ranks", f"write `{names.example()}`")
        locals_of = [sub(arg) for arg in args]

        def number(env: Env) -> int:
            rank = 0
            for axis, key, arg, local_of in zip(axes, keys, args, locals_of, strict=True):
                local = local_of(env)
                if not 0 <= local < env[key]:
                    raise snippet.error(
                        arg,
                        f"there is no local rank {local} along `{axis}` of {env[key]} ranks",
                        f"`({snippet.shown(arg)}) % axis_size({axis})` wraps around, `when` leaves one out",
                    )
                rank = rank * env[key] + local
            return rank

        return number
    wanted = {"axis_size": 1, "local_rank": 2}[name]
    if len(args) != wanted or not (isinstance(args[0], ast.Name) and args[0].id in axes):
        form = f"{name}({axes[-1]})" if wanted == 1 else f"{name}({axes[-1]}, rank)"
        raise snippet.error(part, f"`{snippet.shown(part)}` names no axis", f"write `{form}`; axes: {', '.join(axes)}")
    place = axes.index(args[0].id)
    if name == "axis_size":
        return lambda env: env[keys[place]]
    global_of = sub(args[1])

    def coordinate(env: Env) -> int:
        rank = global_of(env)
        if not 0 <= rank < env["world"]:
            raise snippet.error(args[1], f"there is no global rank {rank}", f"ranks are 0 to {env['world'] - 1}")
        for key in keys[:place:-1]:
            rank //= env[key]
        return rank % env[keys[place]]

    return coordinate
