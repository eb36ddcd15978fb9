"""Lifts a kernel and host function defined inside another function to the module's top level.

What they use of the enclosing function comes along if it is a nested function, an import or a literal;
anything else is known only when the enclosing function runs, and is refused with its line. Modules
whose kernel is at top level pass through.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from overlap.annotate.model import ProgramModel
from overlap.errors import CodegenError, UnsupportedError

from ..context import Context
from ..locate import find_function, names_in

_LITERAL = m.Integer() | m.Float() | m.SimpleString() | m.Name("True") | m.Name("False") | m.Name("None")


def run(module: cst.Module, context: Context) -> cst.Module:
    return lift(module, context.program)


def lift(module: cst.Module, program: ProgramModel) -> cst.Module:
    """The module with kernel and host function at its top level."""
    path = program.kernel.qualname.split(".")
    host = program.host
    if len(path) == 1:
        find_function(module, path[0])
        return module
    assert host is not None
    outer = find_function(module, ".".join(path[:-1]))
    if not isinstance(outer.body, cst.IndentedBlock):
        raise CodegenError(f"`{outer.name.value}` has no block")
    wanted = {path[-1], host.name}
    local: dict[str, cst.CSTNode] = {}
    for parameter in (*outer.params.params, *outer.params.kwonly_params):
        local[parameter.name.value] = parameter
    for statement in outer.body.body:
        for name in _bound(statement):
            local[name] = statement
    if host.name not in local:
        _hosted_outside(host.name, program)
        wanted.discard(host.name)
    needed: set[str] = set()
    pending = list(wanted)
    while pending:
        name = pending.pop()
        if name in needed or name not in local:
            continue
        needed.add(name)
        node = local[name]
        _check_known(name, node, program)
        pending += sorted(names_in(node) & set(local))
    lifted: list[cst.BaseStatement] = []
    for parameter in (*outer.params.params, *outer.params.kwonly_params):
        if parameter.name.value in needed and parameter.default is not None:
            lifted.append(
                cst.SimpleStatementLine(
                    [cst.Assign([cst.AssignTarget(cst.Name(parameter.name.value))], parameter.default)]
                )
            )
    for statement in outer.body.body:
        if set(_bound(statement)) & needed:
            blank = [cst.EmptyLine(), cst.EmptyLine()] if isinstance(statement, cst.FunctionDef) else []
            lines = [*blank, *getattr(statement, "leading_lines", ())]
            lifted.append(statement.with_changes(leading_lines=lines))
    lifted[0] = lifted[0].with_changes(leading_lines=_two_blank(lifted[0]))  # type: ignore[call-arg]
    top = next(i for i, s in enumerate(module.body) if isinstance(s, cst.FunctionDef) and s.name.value == path[0])
    body = list(module.body)
    return module.with_changes(body=[*body[:top], *lifted, *body[top + 1 :]])


def _two_blank(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    lines = [line for line in getattr(statement, "leading_lines", ()) if line.comment is not None]
    return (
        [cst.EmptyLine(), cst.EmptyLine(), *lines]
        if isinstance(statement, cst.FunctionDef)
        else [cst.EmptyLine(), *lines]
    )


def _bound(statement: cst.CSTNode) -> list[str]:
    """Names a statement of the enclosing function binds."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return [statement.name.value]
    found: list[str] = []
    if isinstance(statement, cst.SimpleStatementLine):
        for small in statement.body:
            if isinstance(small, cst.Assign):
                found += [n for target in small.targets for n in names_in(target)]
            elif isinstance(small, cst.AnnAssign):
                found += sorted(names_in(small.target))
            elif isinstance(small, (cst.Import, cst.ImportFrom)) and not isinstance(small.names, cst.ImportStar):
                for alias in small.names:
                    name = alias.evaluated_alias or alias.evaluated_name.split(".")[0]
                    found.append(name)
    return found


def _check_known(name: str, node: cst.CSTNode, program: ProgramModel) -> None:
    if isinstance(node, cst.FunctionDef):
        return
    if isinstance(node, cst.Param):
        if node.default is not None and m.matches(node.default, _LITERAL):
            return
    elif isinstance(node, cst.SimpleStatementLine) and all(
        isinstance(s, (cst.Import, cst.ImportFrom))
        or (
            isinstance(s, cst.Assign)
            and (
                m.matches(s.value, _LITERAL)
                or m.matches(s.value, m.Call(func=m.OneOf(m.Name("constexpr"), m.Attribute(attr=m.Name("constexpr")))))
            )
        )
        for s in node.body
    ):
        return
    raise UnsupportedError(
        f"the nested kernel or its host function uses `{name}`, which is known only when the enclosing function runs",
        where=program.kernel.span,
        help=f"pass `{name}` as an argument (constexpr for the kernel), or move both functions to the top level",
    )


def _hosted_outside(name: str, program: ProgramModel) -> None:
    raise UnsupportedError(
        f"the host function `{name}` is not in the function that defines `{program.kernel.name}`",
        where=program.kernel.span,
        help="define kernel and host function side by side",
    )
