"""Gives the kernel its extra parameters and, where it waits, reads the launch's epoch at its top.

Before::

    def kernel(a_ptr, M, BLOCK_M: tl.constexpr):
        pid = tl.program_id(0)

After::

    def kernel(a_ptr, M, BLOCK_M: tl.constexpr, ol_table, ol_state):
        ol_epoch = ol.now(ol_state)
        pid = tl.program_id(0)
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from overlap.errors import CodegenError

from ..context import Context
from ..locate import replace_function, statements


def run(module: cst.Module, context: Context) -> cst.Module:
    names = context.names
    added = list(context.ours)
    constants = {names.local(name) for name in ("ways", "unit", "lanes", "sum", "summands")}

    def change(node: cst.FunctionDef) -> cst.FunctionDef:
        if not isinstance(node.body, cst.IndentedBlock):
            raise CodegenError(f"`{node.name.value}` has no block to rewrite")
        now = f"{names.local('epoch')} = {names.language}.now({added[1]})\n"
        epoch = statements(now) if context.waits or context.finishing else []
        body = list(node.body.body)
        at = 1 if body and m.matches(body[0], m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])) else 0
        return node.with_changes(
            params=_with_parameters(node.params, added, {n: f"{names.language}.constexpr" for n in constants}),
            body=node.body.with_changes(body=[*body[:at], *epoch, *body[at:]]),
        )

    return replace_function(module, context.program.kernel.name, change)


def _with_parameters(params: cst.Parameters, added: list[str], annotations: dict[str, str]) -> cst.Parameters:
    """Ours stand before the first parameter with a default, or last; launches bind by name, so their place is free."""
    old = list(params.params)
    at = next((i for i, p in enumerate(old) if p.default is not None), len(old))
    separator = _separator(old)
    new = [cst.Param(cst.Name(name), comma=separator) for name in added]
    new = [p.with_changes(annotation=_annotation(annotations.get(p.name.value))) for p in new]
    head = old[:at]
    if head and not isinstance(head[-1].comma, cst.Comma):
        last = new[-1]
        new[-1] = last.with_changes(comma=cst.MaybeSentinel.DEFAULT)
        head[-1] = head[-1].with_changes(comma=separator)
    elif head and at == len(old):
        # The list ended in a comma of its own: what follows it (a newline) must stay at the end.
        new[-1] = new[-1].with_changes(comma=head[-1].comma)
        head[-1] = head[-1].with_changes(comma=separator)
    return params.with_changes(params=[*head, *new, *old[at:]])


def _annotation(text: str | None) -> cst.Annotation | None:
    return None if text is None else cst.Annotation(cst.parse_expression(text))


def _separator(params: list[cst.Param]) -> cst.Comma:
    for param in params[:-1]:
        if isinstance(param.comma, cst.Comma):
            return param.comma
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
