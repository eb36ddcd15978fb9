"""Turns the user's host function into the operator's body: one more parameter, and its launch goes through the call.

Before::

    def matmul(a, b):
        kernel[grid](a, b)

After::

    def ol_body_matmul(ol_call, a, b):
        ol_call.kernel(kernel)[grid](a, b)
"""

from __future__ import annotations

import libcst as cst

from overlap.errors import CodegenError

from ..context import Context
from ..locate import find_function, replaced


def run(module: cst.Module, context: Context) -> cst.Module:
    host = context.program.host
    assert host is not None
    call = context.names.local("call")
    function = find_function(module, host.name)
    launches = _Launches(context.program.kernel.name, call)
    changed = function.visit(launches)
    if not launches.count:
        raise CodegenError(f"no launch of `{context.program.kernel.name}` in `{host.name}`")
    assert isinstance(changed, cst.FunctionDef)
    first = cst.Param(cst.Name(call), comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    params = changed.params
    rest = bool(params.params or params.kwonly_params or params.star_kwarg or params.posonly_params)
    if not rest:
        first = first.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    if params.posonly_params:
        params = params.with_changes(posonly_params=[first, *params.posonly_params])
    else:
        params = params.with_changes(params=[first, *params.params])
    changed = changed.with_changes(
        name=cst.Name(context.names.local(f"body_{host.name}")),
        params=params,
    )
    return replaced(module, function, changed)


class _Launches(cst.CSTTransformer):
    """``kernel[grid](...)`` and ``kernel.run(..., grid=...)``."""

    def __init__(self, kernel: str, call: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.call = call
        self.count = 0

    def _through(self) -> cst.BaseExpression:
        self.count += 1
        return cst.parse_expression(f"{self.call}.kernel({self.kernel})")

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        if isinstance(original_node.value, cst.Name) and original_node.value.value == self.kernel:
            return updated_node.with_changes(value=self._through())
        return updated_node

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        value = original_node.value
        if original_node.attr.value == "run" and isinstance(value, cst.Name) and value.value == self.kernel:
            return updated_node.with_changes(value=self._through())
        return updated_node
