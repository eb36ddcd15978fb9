"""Takes ``flatten=True`` from the tile loop, where in flattened order ranks would wait for each other for ever.

In a flattened loop the wait of a program's next tile stands before the count of its last one. Kernels whose order
is safe either way pass through. So does not a kernel that stores each tile in a loop over its places (`push`): Triton flattens
a tile loop over one inner loop.
"""

from __future__ import annotations

import libcst as cst

from overlap.errors import CodegenError

from ..context import Context
from ..locate import comment, find_function, pragma_of, replaced
from .produce import asks_to_flatten

NOTE = (
    "Not flattened: a tile's wait would come before the count of the tile before it, and ranks would wait in a circle."
)

PUSHING = "Not flattened: the loop over the places of a tile stands behind the inner one."


def run(module: cst.Module, context: Context) -> cst.Module:
    if context.flatten:
        return module
    kernel = find_function(module, context.program.kernel.name)
    change = _Unflatten(PUSHING if context.pushing and not context.pushing_async else NOTE)
    changed = kernel.visit(change)
    if not change.done:
        raise CodegenError(f"no flattened tile loop in `{context.program.kernel.name}`")
    return replaced(module, kernel, changed)


class _Unflatten(cst.CSTTransformer):
    """Loops that hold a dispatch region and ask to be flattened no longer do."""

    def __init__(self, note: str) -> None:
        super().__init__()
        self.note = note
        self.done = 0

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:
        argument = asks_to_flatten(updated_node)
        if argument is None or not _has_region(original_node):
            return updated_node
        self.done += 1
        call = updated_node.iter
        assert isinstance(call, cst.Call)
        kept = [a for a in call.args if a is not argument]
        if kept and argument is call.args[-1]:
            kept[-1] = kept[-1].with_changes(comma=argument.comma)
        return updated_node.with_changes(
            iter=call.with_changes(args=kept), leading_lines=[*updated_node.leading_lines, comment(self.note)]
        )


def _has_region(loop: cst.For) -> bool:
    class Finder(cst.CSTVisitor):
        found = False

        def visit_EmptyLine(self, node: cst.EmptyLine) -> None:
            self.found = self.found or (pragma_of(node) or ("",))[0] == "dispatch"

    finder = Finder()
    loop.visit(finder)
    return finder.found
