"""Imports the language and the runtime, and makes relative imports absolute, since the new file may stand elsewhere."""

from __future__ import annotations

import os

import libcst as cst
import libcst.matchers as m

from overlap.annotate.model import ProgramModel
from overlap.errors import UnsupportedError

from ..context import Context
from ..locate import statements


def run(module: cst.Module, context: Context) -> cst.Module:
    module = absolute(module, context.program)
    added = statements(
        f"import overlap.language as {context.names.language}\nimport overlap.runtime as {context.names.runtime}\n"
    )
    added[0] = added[0].with_changes(leading_lines=[cst.EmptyLine()])
    body = list(module.body)
    at = 0
    if body and m.matches(body[0], m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])):
        at = 1
    for index, statement in enumerate(body):
        if not isinstance(statement, cst.SimpleStatementLine):
            break
        if any(isinstance(s, (cst.Import, cst.ImportFrom)) for s in statement.body):
            at = index + 1
    return module.with_changes(body=[*body[:at], *added, *body[at:]])


def absolute(module: cst.Module, program: ProgramModel) -> cst.Module:
    """The module with its relative imports made absolute, by the package its file is in.

    Raises:
        UnsupportedError: a relative import in a file outside any package.
    """
    return module.visit(_Absolute(program))


class _Absolute(cst.CSTTransformer):
    def __init__(self, program: ProgramModel) -> None:
        super().__init__()
        self.program = program

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.ImportFrom:
        level = len(original_node.relative)
        if not level:
            return updated_node
        package = package_of(self.program.path)
        parts = package.split(".") if package else []
        if len(parts) < level:
            raise UnsupportedError(
                "a relative import outside a package",
                where=self.program.kernel.span,
                help="compile the file inside its package, or import by absolute name",
            )
        base = ".".join(parts[: len(parts) - level + 1])
        module = cst.Module([]).code_for_node(original_node.module) if original_node.module else ""
        target = f"{base}.{module}" if module else base
        return updated_node.with_changes(relative=[], module=cst.parse_expression(target))


def package_of(path: str) -> str:
    """Dotted name of the package a file is in: the folders above it that hold an ``__init__.py``."""
    parts: list[str] = []
    folder = os.path.dirname(os.path.abspath(path))
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        parts.insert(0, os.path.basename(folder))
        folder = os.path.dirname(folder)
    return ".".join(parts)
