"""Statements at every end of a kernel: behind its last statement, and ahead of every ``return``."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from overlap.errors import CodegenError

_RETURNS = m.SimpleStatementLine(body=[m.ZeroOrMore(), m.Return()])


def at_every_end(kernel: cst.FunctionDef, added: cst.SimpleStatementLine, note: cst.EmptyLine) -> cst.FunctionDef:
    """The kernel with ``added`` at every end, the comment ``note`` above it.

    Raises:
        CodegenError: it has no block.
    """
    insert = _Ends(added.with_changes(leading_lines=[note]), note)
    changed = kernel.visit(insert)
    if not isinstance(changed, cst.FunctionDef) or not isinstance(changed.body, cst.IndentedBlock):
        raise CodegenError(f"`{kernel.name.value}` has no block to rewrite")
    body = list(changed.body.body)
    if not m.matches(body[-1], _RETURNS):
        body.append(insert.added)
    return changed.with_changes(body=changed.body.with_changes(body=body))


class _Ends(cst.CSTTransformer):
    """Puts a statement ahead of every return."""

    def __init__(self, added: cst.SimpleStatementLine, note: cst.EmptyLine) -> None:
        super().__init__()
        self.added = added
        self._note = note

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        # if pid >= tiles: return
        if not any(isinstance(small, cst.Return) for small in original_node.body):
            return updated_node
        line = cst.SimpleStatementLine(updated_node.body, trailing_whitespace=updated_node.trailing_whitespace)
        return cst.IndentedBlock(self._ahead(line))

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        if not any(isinstance(small, cst.Return) for small in original_node.body):
            return updated_node
        return cst.FlattenSentinel(self._ahead(updated_node))

    def _ahead(self, line: cst.SimpleStatementLine) -> list[cst.BaseStatement]:
        """The statements of a line that returns, with what is added before the return."""
        before, last = line.body[:-1], line.body[-1]
        if not before:
            ahead = self.added.with_changes(leading_lines=[*line.leading_lines, self._note])
            return [ahead, line.with_changes(leading_lines=[])]
        ends = [*before[:-1], before[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]
        first = line.with_changes(body=ends, trailing_whitespace=cst.TrailingWhitespace())
        return [first, self.added, line.with_changes(body=[last], leading_lines=[])]
