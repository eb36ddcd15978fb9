"""Adds ``ol_tile_map``: the dispatch region as a plain function of position and counts.

The runtime evaluates it on every run's counts when tables are built, to prove it a bijection. It stands
right behind the kernel.
"""

from __future__ import annotations

import libcst as cst

from ..context import Context
from ..locate import names_in, statements
from ..placement import insert_behind
from ..rebase import Rebase

DOC = '"""Position in a run to tile coordinates, as in the kernel; evaluated on the host to prove it a bijection."""'


def run(module: cst.Module, context: Context) -> cst.Module:
    region = context.program.kernel.regions[0]
    rebase = Rebase(context, region)
    substitute = rebase.substitute()
    body = rebase.virtual_lines(rebase.tile) + rebase.moved_lines()
    for statement in region.slice:
        if statement.inside:
            node = cst.parse_statement(statement.text)
            if not rebase.keeps(node):
                body.append(cst.Module([node.visit(substitute)]).code.rstrip("\n"))  # type: ignore[list-item]
    pids = dict(region.pid_map)
    result = ", ".join(pids[a.name] for a in context.axes)
    positional = [rebase.tile, *(rebase.counts[a.name] for a in context.axes)]
    constants = _constants(body, positional, context)
    parameters = ", ".join([*positional, *(["*", *constants] if constants else [])])
    trailing = "," if len(context.axes) == 1 else ""
    lines = [f"def {context.names.local('tile_map')}({parameters}):", f"    {DOC}"]
    lines += [f"    {line}" for text in body for line in text.splitlines()]
    lines.append(f"    return {result}{trailing}")
    (function,) = statements("\n".join(lines) + "\n")
    assert isinstance(function, cst.FunctionDef)
    function = function.with_changes(leading_lines=[cst.EmptyLine(), cst.EmptyLine()])
    return insert_behind(module, [context.program.kernel.name], [function])


def _constants(body: list[str], bound: list[str], context: Context) -> list[str]:
    """Kernel parameters that the mapping reads, in parameter order."""
    used = set().union(*(names_in(cst.parse_module(text)) for text in body)) if body else set()
    return [p.name for p in context.program.kernel.params if p.name in used and p.name not in bound]
