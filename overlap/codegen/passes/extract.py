"""Keeps one kernel of a module and nothing else, for modules made of a decorated kernel.

The names it uses are given to the new module when it is loaded, as the running program has them, so that neither
its imports (`__future__` apart) nor any other statement of the user's file runs twice. Decorators above the ones to
keep fall away.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from ..locate import find_function

_FUTURE = m.SimpleStatementLine(body=[m.ImportFrom(module=m.Name("__future__"))])


def extract(module: cst.Module, qualname: str, decorators: int) -> cst.Module:
    """The module with only the kernel ``qualname`` at its top level, under its ``decorators`` innermost decorators."""
    kernel = find_function(module, qualname)
    kept = kernel.decorators[len(kernel.decorators) - decorators :]
    lines = [line for line in kernel.leading_lines if line.comment is not None]
    function = kernel.with_changes(decorators=kept, leading_lines=[cst.EmptyLine(), cst.EmptyLine(), *lines])
    future = [statement for statement in module.body if m.matches(statement, _FUTURE)]
    return module.with_changes(header=[], footer=[], body=[*future, function])
