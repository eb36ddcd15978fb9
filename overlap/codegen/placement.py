"""Where added top-level statements go."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from overlap.errors import CodegenError


def insert_behind(module: cst.Module, functions: Sequence[str], added: Sequence[cst.BaseStatement]) -> cst.Module:
    """Inserts statements behind the last of these functions, so that all of them exist where the statements run.

    A function may also stand in a module-level ``if``, ``try`` or ``with``; the statements go behind that, at top level.
    """
    at = max((i for i, s in enumerate(module.body) if _defines(s, functions)), default=-1)
    if at < 0:
        raise CodegenError(f"none of {', '.join(functions)} is defined by the module itself")
    body = list(module.body)
    following = body[at + 1 :]
    if following:
        lines = list(getattr(following[0], "leading_lines", ()))
        if not lines or lines[0].comment is not None:
            following[0] = following[0].with_changes(leading_lines=[cst.EmptyLine(), cst.EmptyLine(), *lines])  # type: ignore[call-arg]
    return module.with_changes(body=[*body[: at + 1], *added, *following])


def _defines(statement: cst.CSTNode, functions: Sequence[str]) -> bool:
    """Whether a statement of the module defines one of the functions, not counting functions inside functions or classes."""
    if isinstance(statement, cst.FunctionDef):
        return statement.name.value in functions
    if isinstance(statement, (cst.If, cst.Else, cst.Try, cst.With, cst.IndentedBlock, cst.ExceptHandler, cst.Finally)):
        return any(_defines(child, functions) for child in statement.children)
    return False
