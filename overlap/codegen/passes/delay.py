"""Counts tiles that TMA stores where they go one tile late: they land while the next is computed, and no tile waits for it.

Before::

    for tile in ...:
        ...
        c_desc.store([off_m, off_n], c)
        # Count the tile ...
        ol.pushed_async(ol_table, ol_run, ol_state, ol_slots, ol_ways)

After::

    ol_counted = ol.no_run(ol_table)
    for tile in ...:
        ...
        # Count the tile before this one, which has landed meanwhile ...
        ol.pushed_async(ol_table, ol_counted, ol_state, ol_slots, ol_ways)
        c_desc.store([off_m, off_n], c)
        ol_counted = ol_run
    # Count the last tile.
    ol.pushed_async(ol_table, ol_counted, ol_state, ol_slots, ol_ways)

Kernels that wait for anything pass through: a tile's wait would come before the count of the tile before it, and ranks could
wait in a circle. So do kernels whose programs make one tile, and loops that ask to be flattened: there Triton hands on such a
variable ahead of the tail (`overlap.build.flattened`, which finds kernels that would read it there), so tiles were counted ahead
of their own stores, which two H200s showed. Runs behind the passes that count and store.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from overlap.errors import CodegenError

from ..context import Context
from ..locate import comment, find_function, replaced, statements
from .produce import asks_to_flatten

_COUNT = "pushed_async"


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.pushing_async or context.waits:
        return module
    kernel = find_function(module, context.program.kernel.name)
    search = _Search(context)
    kernel.visit(search)
    if search.block is None:
        raise CodegenError(f"no tile of `{kernel.name.value}` is counted")
    if search.loop is None or asks_to_flatten(search.loop) is not None:
        return module
    names, body = context.names, list(search.block.body)
    at = next(i for i, statement in enumerate(body) if m.matches(statement, search.count))
    start = next(i for i, statement in enumerate(body) if m.findall(statement, search.spread))
    late = names.local("counted")
    counted = body[at]
    (call,) = m.findall(counted, search.call)
    assert isinstance(call, cst.Call)
    run = call.args[1].value
    tensors = " and ".join(on.tensor for on in context.produced)
    again = counted.deep_replace(run, cst.Name(late))
    inside = again.with_changes(
        leading_lines=[
            comment(f"Count the tile before this one, which has landed meanwhile, into the chunks of {tensors}"),
            comment("that it is part of; the last of a chunk tells the rank that gets it."),
        ]
    )
    (before,) = statements(f"{late} = {names.language}.no_run({names.local('table')})\n")
    (kept,) = statements(f"{late} = {cst.Module([]).code_for_node(run)}\n")
    behind = again.with_changes(leading_lines=[comment("Count the last tile.")])
    block = search.block.with_changes(body=[*body[:start], inside, *body[start:at], kept, *body[at + 1 :]])
    loop = search.loop.deep_replace(search.block, block)
    return replaced(module, search.loop, cst.FlattenSentinel([before, loop, behind]))


class _Search(cst.CSTVisitor):
    """The block in which tiles are counted, and the loop around it."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.call = m.Call(func=m.Attribute(value=m.Name(context.names.language), attr=m.Name(_COUNT)))
        self.count = m.SimpleStatementLine(body=[m.Expr(self.call)])
        self.spread = m.For(target=m.Name(context.names.local("way")))
        self.block: cst.IndentedBlock | None = None
        self.loop: cst.For | None = None
        self._loops: list[cst.For] = []

    def visit_For(self, node: cst.For) -> None:
        self._loops.append(node)

    def leave_For(self, original_node: cst.For) -> None:
        self._loops.pop()

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        if any(m.matches(statement, self.count) for statement in node.body):
            self.block, self.loop = node, self._loops[-1] if self._loops else None
