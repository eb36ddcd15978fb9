"""Marks what the rewriting left unread: the original tile counts and group widths stay as written, linters are told why.

A kernel where everything is still read passes through unchanged.
"""

from __future__ import annotations

import libcst as cst

from ..context import Context
from ..locate import find_function, replaced

NOTE = "# noqa: F841"


def run(module: cst.Module, context: Context) -> cst.Module:
    kernel = find_function(module, context.program.kernel.name)
    moved = {t for region in context.program.kernel.regions for s in region.slice if not s.inside for t in s.targets}
    counts = {a.count_name for a in context.program.kernel.axes if a.count_name}
    bounds = {name for loop in context.ranged_loops for name in loop.bounds}
    candidates = moved | counts | bounds
    reads = _Reads()
    kernel.visit(reads)
    unread = candidates - reads.names
    if not unread:
        return module
    return replaced(module, kernel, kernel.visit(_Mark(unread)))


def _target(statement: cst.SimpleStatementLine) -> str | None:
    if len(statement.body) == 1 and isinstance(statement.body[0], cst.Assign):
        targets = statement.body[0].targets
        if len(targets) == 1 and isinstance(targets[0].target, cst.Name):
            return targets[0].target.value
    return None


class _Reads(cst.CSTVisitor):
    """Names that are read: every name but the targets of plain assignments and attribute or keyword names."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_AssignTarget(self, node: cst.AssignTarget) -> bool:
        return not isinstance(node.target, cst.Name)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Param(self, node: cst.Param) -> bool:
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)


class _Mark(cst.CSTTransformer):
    def __init__(self, unread: set[str]) -> None:
        super().__init__()
        self.unread = unread

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        if _target(original_node) not in self.unread:
            return updated_node
        trailing = updated_node.trailing_whitespace
        old = trailing.comment.value if trailing.comment else ""
        if "noqa" in old:
            return updated_node
        text = f"{old}  {NOTE}" if old else NOTE
        return updated_node.with_changes(
            trailing_whitespace=trailing.with_changes(whitespace=cst.SimpleWhitespace("  "), comment=cst.Comment(text))
        )
