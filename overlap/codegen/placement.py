"""Where added top-level statements go."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from overlap.errors import CodegenError


def insert_behind(module: cst.Module, functions: Sequence[str], added: Sequence[cst.BaseStatement]) -> cst.Module:
    """Inserts statements behind the last of these top-level functions, so that all of them exist where the statements run."""
    at = -1
    for index, statement in enumerate(module.body):
        if isinstance(statement, cst.FunctionDef) and statement.name.value in functions:
            at = index
    if at < 0:
        raise CodegenError(f"none of {', '.join(functions)} is at the module's top level")
    body = list(module.body)
    following = body[at + 1 :]
    if following:
        lines = list(getattr(following[0], "leading_lines", ()))
        if not lines or lines[0].comment is not None:
            following[0] = following[0].with_changes(leading_lines=[cst.EmptyLine(), cst.EmptyLine(), *lines])  # type: ignore[call-arg]
    return module.with_changes(body=[*body[: at + 1], *added, *following])
