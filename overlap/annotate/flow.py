"""Which values a piece of a kernel takes in from before, and which reads behind a loop see what it left."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .names import writes

Block = list[ast.stmt]


def names_of(node: ast.AST) -> Iterator[ast.Name]:
    """Every name a node reads or binds."""
    return (n for n in ast.walk(node) if isinstance(n, ast.Name))


def exposed(body: Block, defined: frozenset[str] = frozenset()) -> set[str]:
    """Names that a block may read before it binds them; ``defined`` are bound already."""
    return {name.id for name in _Flow().block(body, set(defined))}


def behind(function: ast.FunctionDef, loop: ast.stmt, names: frozenset[str]) -> list[ast.Name]:
    """Reads, in source order, that may see what ``loop`` left in one of ``names``.

    What follows in the loop's own block, then in the blocks around it; a loop around it begins again with the next
    iteration.
    """
    found: list[ast.Name] = []
    known: set[str] = set()
    inner: ast.stmt = loop
    for owner, body in _around(function, loop):
        at = body.index(inner)
        flow = _Flow()
        found += flow.block(body[at + 1 :], known)
        if isinstance(owner, (ast.For, ast.While)):
            again = set(known) | (writes(owner.target) if isinstance(owner, ast.For) else set())
            # Up to the loop itself: whatever is bound on the way there is new in each iteration.
            found += _Flow().block(body[: at + 1], again)
        if not isinstance(owner, ast.FunctionDef):
            inner = owner  # type: ignore[assignment]
    return sorted({n for n in found if n.id in names}, key=lambda n: (n.lineno, n.col_offset))


def _around(function: ast.FunctionDef, statement: ast.stmt) -> list[tuple[ast.AST, Block]]:
    """(owner, block) of every block that holds a statement, innermost first."""

    def search(owner: ast.AST) -> list[tuple[ast.AST, Block]] | None:
        for field in ("body", "orelse", "finalbody"):
            body = getattr(owner, field, None)
            if not isinstance(body, list):
                continue
            for child in body:
                if child is statement:
                    return [(owner, body)]
                if isinstance(child, (ast.For, ast.While, ast.If, ast.With, ast.Try)):
                    deeper = search(child)
                    if deeper is not None:
                        return [*deeper, (owner, body)]
        return None

    return search(function) or []


class _Flow:
    """Reads of a block that see what was there before; ``known`` grows by what is bound on every path."""

    def block(self, body: Block, known: set[str]) -> list[ast.Name]:
        found: list[ast.Name] = []
        for statement in body:
            found += self.statement(statement, known)
        return found

    def statement(self, node: ast.stmt, known: set[str]) -> list[ast.Name]:
        if isinstance(node, ast.If):
            found = self._reads(node.test, known)
            left, right = set(known), set(known)
            found += self.block(node.body, left) + self.block(node.orelse, right)
            known |= left & right
            return found
        if isinstance(node, (ast.For, ast.While)):
            head = node.iter if isinstance(node, ast.For) else node.test
            found = self._reads(head, known)
            inside = set(known) | (writes(node.target) if isinstance(node, ast.For) else set())
            # A loop may run no iteration, so that it binds nothing for what follows.
            return found + self.block(node.body, inside) + self.block(node.orelse, set(known))
        if isinstance(node, ast.With):
            found = [n for item in node.items for n in self._reads(item.context_expr, known)]
            return found + self.block(node.body, known)
        found = self._reads(node, known)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id not in known:
            found.append(node.target)
        known |= writes(node)
        return found

    @staticmethod
    def _reads(node: ast.AST, known: set[str]) -> list[ast.Name]:
        return [n for n in names_of(node) if isinstance(n.ctx, ast.Load) and n.id not in known]


@dataclass(frozen=True)
class Update:
    """``x += step``; or ``x = tl.advance(x, steps)``, ``function`` being ``tl.advance``, or ``.advance`` of a method call."""

    steps: tuple[ast.expr, ...]
    function: str = ""


def single_update(statement: ast.stmt, name: str) -> Update | None:
    """How a statement moves a variable on, where it does just that."""
    if isinstance(statement, ast.AugAssign):
        simple = isinstance(statement.target, ast.Name) and isinstance(statement.op, ast.Add)
        return Update((statement.value,)) if simple and not _mentions(statement.value, name) else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    value = statement.value
    if not isinstance(statement.targets[0], ast.Name):
        return None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        for own, step in ((value.left, value.right), (value.right, value.left)):
            if isinstance(own, ast.Name) and own.id == name and not _mentions(step, name):
                return Update((step,))
        return None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "advance":
        arguments = [*value.args, *(k.value for k in value.keywords)]
        if not isinstance(value.func.value, ast.Name) or not arguments:
            return None
        receiver = value.func.value.id
        if receiver == name and len(arguments) == 1:
            moves, function = arguments[0], ".advance"
        elif len(arguments) == 2 and isinstance(arguments[0], ast.Name) and arguments[0].id == name:
            moves, function = arguments[1], f"{receiver}.advance"
        else:
            return None
        if isinstance(moves, (ast.Tuple, ast.List)) and not _mentions(moves, name):
            return Update(tuple(moves.elts), function)
    return None


def _mentions(node: ast.AST, name: str) -> bool:
    return any(n.id == name for n in names_of(node))
