"""Has every tile record when it begins, waits and ends, in kernels that are compiled with ``trace=1``; others pass through.

Before::

    ol_run = ol.find_run(ol_table, tile)
    ...
    ol_seen = ol.wait_run(ol_table, ol_run, ol_state, ol_epoch)
    pid_m = ol.after(pid_m, ol_seen)
    ...
    tl.store(c_ptrs, c, mask=mask)

After::

    ol_run = ol.find_run(ol_table, tile)
    ol_line = ol.log_tile(ol_log, tile)
    ...
    ol.log_waits(ol_log, ol_line)
    ol_seen = ol.wait_run(ol_table, ol_run, ol_state, ol_epoch)
    ol.log_ready(ol_log, ol_line)
    pid_m = ol.after(pid_m, ol_seen)
    ...
    tl.store(c_ptrs, c, mask=mask)
    ol.log_ends(ol_log, ol_line)

A loop over parts inside the tile records each part's wait, and several such loops each their own.
Records are stores into memory that nothing else touches: what stands around polls, barriers and releases stays as it is. Runs
behind the passes that wait, count and move.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from overlap.errors import CodegenError, UnsupportedError

from ..context import Context
from ..locate import comment, find_function, replaced, statements

NOTE = "When this tile began, waited and ended (trace=1)."


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.realization.trace:
        return module
    kernel = find_function(module, context.program.kernel.name)
    marks = _Marks(context)
    changed = kernel.visit(marks)
    if not marks.tiles:
        raise CodegenError(f"no tile of `{kernel.name.value}` begins")
    return replaced(module, kernel, changed)


class _Marks(cst.CSTTransformer):
    """Puts the words around the statements of the first dispatch region."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.tiles = 0
        self._context = context
        names = context.names
        self._ol, self._log, self._line = names.language, names.local("log"), names.local("line")
        self._run, self._table, self._parts = names.local("run"), names.local("table"), names.local("parts")
        loops = range(len(context.ranged_loops))
        self._loops = {names.local("part_seen", number): number for number in loops}

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        body: list[cst.BaseStatement] = []
        begun = False
        for statement in updated_node.body:
            call = self._assigned(statement)
            if call is None:
                body.append(statement)
                continue
            target, word, arguments = call
            if word == "find_run" and target == self._run:
                self.tiles += 1
                begun = True
                begin = self._words(f"{self._line} = {self._ol}.log_tile({self._log}, {arguments[1]})")
                body += [statement, begin[0].with_changes(leading_lines=[comment(NOTE)])]
            elif word == "wait_run" and arguments[:2] == [self._table, self._run]:
                body += self._around(statement, self._line)
            elif word == "wait_run" and target in self._loops:
                number = self._loops[target]
                line, part = (self._context.names.local(name, number) for name in ("part_line", "part"))
                if number:
                    part = f"{part} + {number} * {self._ol}.runs({self._parts})"
                parts = f"{self._parts}, {len(self._loops)}"
                given = ", ".join((self._log, self._table, parts, self._line, part))
                body += self._words(f"{line} = {self._ol}.log_part({given})")
                body += self._around(statement, line)
            else:
                body.append(statement)
        if begun:
            self._refuse_jumps(body)
            at = len(body)
            while at and self._last(body[at - 1]):
                at -= 1
            body[at:at] = self._words(f"{self._ol}.log_ends({self._log}, {self._line})")
        return updated_node.with_changes(body=body)

    def _assigned(self, statement: cst.BaseStatement) -> tuple[str, str, list[str]] | None:
        """Of ``name = ol.word(...)``: the name, the word and its arguments as text."""
        call = m.Call(func=m.Attribute(value=m.Name(self._ol)))
        assign = m.Assign(targets=[m.AssignTarget(target=m.Name())], value=call)
        if not m.matches(statement, m.SimpleStatementLine(body=[assign])):
            return None
        assert isinstance(statement, cst.SimpleStatementLine)
        (node,) = statement.body
        assert isinstance(node, cst.Assign) and isinstance(node.value, cst.Call)
        target, function = node.targets[0].target, node.value.func
        assert isinstance(target, cst.Name) and isinstance(function, cst.Attribute)
        return target.value, function.attr.value, [cst.Module([]).code_for_node(a.value) for a in node.value.args]

    def _around(self, wait: cst.BaseStatement, line: str) -> list[cst.BaseStatement]:
        """The wait between its two marks; what was said above it stands above both."""
        assert isinstance(wait, cst.SimpleStatementLine)
        (before,) = self._words(f"{self._ol}.log_waits({self._log}, {line})")
        (after,) = self._words(f"{self._ol}.log_ready({self._log}, {line})")
        return [
            before.with_changes(leading_lines=wait.leading_lines),
            wait.with_changes(leading_lines=[]),
            after,
        ]

    def _last(self, statement: cst.BaseStatement) -> bool:
        """Whether a statement stands behind the tile's end: a return, the program's moves of other ranks' chunks, its sums."""
        returns = m.SimpleStatementLine(body=[m.ZeroOrMore(), m.Return()])
        named = m.Name("move_rest") | m.Name("move_rest_async") | m.Name("move_rest_boxes") | m.Name("sum_words")
        moves = m.SimpleStatementLine(body=[m.Expr(m.Call(func=m.Attribute(value=m.Name(self._ol), attr=named)))])
        return m.matches(statement, returns | moves)

    def _refuse_jumps(self, body: list[cst.BaseStatement]) -> None:
        """Refuses tiles that are left in their middle.

        Raises:
            UnsupportedError: a ``continue`` or ``break`` of the tile loop.
        """
        for statement in body:
            jumps = _Jumps()
            statement.visit(jumps)
            if jumps.found:
                raise UnsupportedError(
                    f"trace=1: `{self._context.program.kernel.name}` may leave a tile at a `{jumps.found}`, and nobody "
                    "would record its end",
                    where=self._context.program.kernel.span,
                    help="mask what follows with the condition, or leave trace out",
                )

    @staticmethod
    def _words(line: str) -> list[cst.BaseStatement]:
        return statements(f"{line}\n")


class _Jumps(cst.CSTVisitor):
    """The first ``continue`` or ``break`` that does not belong to a loop further inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def visit_For(self, node: cst.For) -> bool:
        return False

    def visit_While(self, node: cst.While) -> bool:
        return False

    def visit_Continue(self, node: cst.Continue) -> None:
        self.found = self.found or "continue"

    def visit_Break(self, node: cst.Break) -> None:
        self.found = self.found or "break"
