"""Finding and replacing pieces of a libcst module: functions by qualified name, pragmas in comments, names in expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import libcst as cst
import libcst.matchers as m

from overlap.errors import CodegenError

_PRAGMA = re.compile(r"#\s*@(?:overlap|sy)\.(?P<name>\w+)\b\s*(?P<rest>.*)")


def pragma_of(line: cst.EmptyLine) -> tuple[str, str] | None:
    """Name and rest of the pragma a comment line holds, or None."""
    if line.comment is None:
        return None
    found = _PRAGMA.match(line.comment.value)
    return (found["name"], found["rest"].strip()) if found else None


def comment(text: str) -> cst.EmptyLine:
    return cst.EmptyLine(indent=True, comment=cst.Comment(f"# {text}"))


def statements(code: str) -> list[cst.BaseStatement]:
    """Parses dedented statements; comments above one stay with it."""
    module = cst.parse_module(code)
    body: list[cst.BaseStatement] = list(module.body)
    if body and module.header:
        body[0] = body[0].with_changes(leading_lines=[*module.header, *_leading(body[0])])
    return body


def _leading(node: cst.CSTNode) -> Sequence[cst.EmptyLine]:
    return getattr(node, "leading_lines", ())


_HOLD_STATEMENTS = (cst.Module, cst.BaseCompoundStatement, cst.BaseSuite, cst.Else, cst.Finally, cst.MatchCase)
"""Nodes that hold statements; with the two kinds of ``except`` below, statements are in nothing else."""
_HANDLERS = (cst.ExceptHandler, cst.ExceptStarHandler)


def _holds_statements(node: cst.CSTNode) -> bool:
    return isinstance(node, (*_HOLD_STATEMENTS, *_HANDLERS))


def find_function(module: cst.Module, qualname: str) -> cst.FunctionDef:
    """The function with this dotted path (enclosing functions and classes, then its name).

    Raises:
        CodegenError: there is none.
    """
    found: list[cst.FunctionDef] = []
    stack: list[str] = []

    class Finder(cst.CSTVisitor):
        def on_visit(self, node: cst.CSTNode) -> bool:
            if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
                stack.append(node.name.value)
                if isinstance(node, cst.FunctionDef) and ".".join(stack) == qualname:
                    found.append(node)
            return _holds_statements(node)

        def on_leave(self, original_node: cst.CSTNode) -> None:
            if isinstance(original_node, (cst.FunctionDef, cst.ClassDef)):
                stack.pop()

    module.visit(Finder())
    if not found:
        raise CodegenError(f"no function `{qualname}` in the module being rewritten")
    return found[-1]


def replace_function(
    module: cst.Module, qualname: str, change: Callable[[cst.FunctionDef], cst.FunctionDef]
) -> cst.Module:
    """The module with one function changed."""
    node = find_function(module, qualname)
    return replaced(module, node, change(node))


def replaced(module: cst.Module, old: cst.BaseCompoundStatement | cst.BaseSuite, new: Any) -> cst.Module:
    """The module with one compound statement or block, found by identity, replaced."""

    class Replacer(cst.CSTTransformer):
        def on_visit(self, node: cst.CSTNode) -> bool:
            return node is not old and _holds_statements(node)

        def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
            return new if original_node is old else updated_node

    result = module.visit(Replacer())
    assert isinstance(result, cst.Module)
    return result


def names_in(node: cst.CSTNode) -> set[str]:
    """Identifiers read or written in a node, without attribute and keyword-argument names."""
    found: set[str] = set()

    class Collector(cst.CSTVisitor):
        def visit_Attribute(self, node: cst.Attribute) -> bool:
            node.value.visit(self)
            return False

        def visit_Arg(self, node: cst.Arg) -> bool:
            node.value.visit(self)
            return False

        def visit_Name(self, node: cst.Name) -> None:
            found.add(node.value)

    node.visit(Collector())
    return found


class Substitute(cst.CSTTransformer):
    """Renames variables, and replaces tile counts and program ids by names.

    Args:
        names: variable to new name.
        counts: (extent, block) to the name of the tile count; ``cdiv(extent, block)`` and
            ``(extent + block - 1) // block`` become it.
        program_ids, num_programs: grid dimension to name.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        counts: Mapping[tuple[str, str], str] | None = None,
        program_ids: Mapping[int, str] | None = None,
        num_programs: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__()
        self.names = names
        self.counts = counts or {}
        self.program_ids = program_ids or {}
        self.num_programs = num_programs or {}
        self.changes = 0

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        new = self.names.get(original_node.value)
        if new is None:
            return updated_node
        self.changes += 1
        return updated_node.with_changes(value=new)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        callee = original_node.func
        name = callee.attr.value if isinstance(callee, cst.Attribute) else getattr(callee, "value", "")
        if name == "cdiv" and len(original_node.args) == 2:
            pair = tuple(getattr(a.value, "value", "") for a in original_node.args)
            return self._count(pair, updated_node)
        if name in ("program_id", "num_programs") and len(original_node.args) <= 1:
            grid = self.program_ids if name == "program_id" else self.num_programs
            dim = int(original_node.args[0].value.value) if original_node.args else 0  # type: ignore[attr-defined]
            if dim in grid:
                self.changes += 1
                return cst.Name(grid[dim])
        return updated_node

    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        ceiling = m.BinaryOperation(
            left=m.BinaryOperation(
                left=m.BinaryOperation(left=m.Name(), operator=m.Add(), right=m.Name()),
                operator=m.Subtract(),
                right=m.Integer("1"),
            ),
            operator=m.FloorDivide(),
            right=m.Name(),
        )
        if m.matches(original_node, ceiling):
            extent = original_node.left.left.left.value  # type: ignore[attr-defined]
            block = original_node.right.value  # type: ignore[attr-defined]
            return self._count((extent, block), updated_node)
        return updated_node

    def _count(self, pair: tuple[str, ...], node: cst.BaseExpression) -> cst.BaseExpression:
        name = self.counts.get((pair[0], pair[1]))
        if name is None:
            return node
        self.changes += 1
        return cst.Name(name)
