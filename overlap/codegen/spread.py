"""Kernels that store each tile in all the places where it goes: finds the stores, and puts loops over the places around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider

from overlap.annotate.model import Access
from overlap.errors import CodegenError, UnsupportedError

from .context import Context
from .locate import comment, find_function

NOTE = "Where the tile goes: slots of other ranks, the own part; one place, but on the edges of chunks."

Store = tuple[cst.Call, Access]
Rewrite = Callable[[cst.Call, Access], tuple[Sequence[cst.BaseStatement], cst.Call]]
"""From a store to what stands in front of it inside the loop, and the store to one place."""


def communicated_stores(context: Context) -> list[Access]:
    """The stores to the one result that is communicated.

    Raises:
        UnsupportedError: several results.
    """
    if len(context.produced) > 1:
        raise UnsupportedError(
            f"{context.storer.name} stores one communicated result, this kernel makes {len(context.produced)}",
            where=context.program.kernel.span,
            help='backend="copy_engine"',
        )
    (on,) = context.produced
    stores = [a for a in context.program.kernel.accesses if a.tensor == on.param and a.mode != "read"]
    if not stores:
        raise CodegenError(f"no store to `{on.param}` was found")
    return stores


def spread(
    module: cst.Module,
    context: Context,
    stores: Sequence[Access],
    functions: Sequence[str],
    over: str,
    rewrite: Rewrite,
    help: str,
) -> cst.FunctionDef:
    """The kernel with each of ``stores`` in a loop over its tile's places.

    Args:
        functions: names of the functions and methods that store.
        over: what the loop runs over, as an expression with ``{run}`` for the run of the tile.
        rewrite: makes the store to one place.
        help: what to write where a store is no statement of its own.

    Raises:
        UnsupportedError: such a store.
    """
    positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    kernel = find_function(module, context.program.kernel.name)
    shift = context.program.kernel.span.line - positions[kernel].start.line
    lines = {access.span.line - shift: access for access in stores}
    change = _Spread(context, lines, positions, functions, over, rewrite)
    changed = kernel.visit(change)
    missing = sorted(set(lines) - change.done)
    if missing:
        access = lines[missing[0]]
        raise UnsupportedError(
            f"this store to `{access.tensor}` is no statement of its own, so its tile cannot be stored in several places",
            where=access.span,
            help=help,
        )
    assert isinstance(changed, cst.FunctionDef)
    return changed


class _Spread(cst.CSTTransformer):
    """Puts the store of certain lines into a loop over the places of its tile."""

    def __init__(self, context, lines, positions, functions, over, rewrite) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.context, self.lines, self.positions = context, lines, positions
        named = m.OneOf(*(m.Name(name) for name in functions))
        call = m.Call(func=m.Attribute(attr=named))
        self.store = m.SimpleStatementLine(body=[m.Expr(call)])
        self.over, self.rewrite = over, rewrite
        self.done: set[int] = set()

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement:
        where = self.positions[original_node]
        line = next((n for n in range(where.start.line, where.end.line + 1) if n in self.lines), None)
        if line is None or not m.matches(original_node, self.store):
            return updated_node
        access = self.lines[line]
        self.done.add(line)
        expression = updated_node.body[0]
        assert isinstance(expression, cst.Expr) and isinstance(expression.value, cst.Call)
        before, call = self.rewrite(expression.value, access)
        store = updated_node.with_changes(body=[expression.with_changes(value=call)], leading_lines=[])
        names = self.context.names
        over = self.over.format(run=names.local("run", access.region or 0))
        return cst.For(
            target=cst.Name(names.local("way")),
            iter=cst.parse_expression(over),
            body=cst.IndentedBlock(body=[*before, store]),
            leading_lines=[*updated_node.leading_lines, comment(NOTE)],
        )
