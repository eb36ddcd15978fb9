"""Stores every tile of a communicated result where it goes: into the slots of other ranks, and into the rank's own part.

Before::

    tl.store(c_ptrs, c, mask=mask)

After::

    # Where the tile goes: slots of other ranks, the own part; one place, but on the edges of chunks.
    for ol_way in range(ol.ways(ol_table, ol_run)):
        ol_shift = ol.shift(ol_table, ol_run, ol_way, ol_slots)
        tl.store(c_ptrs + ol_shift, c, mask=mask)

The address is the user's own; the places differ from the result's memory by a shift alone. Kernels whose tiles leave by
other means pass through.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider

from overlap.annotate.model import Access
from overlap.errors import CodegenError, UnsupportedError

from ..context import Context
from ..locate import comment, find_function, replaced, statements

NOTE = "Where the tile goes: slots of other ranks, the own part; one place, but on the edges of chunks."
_STORE = m.SimpleStatementLine(body=[m.Expr(m.Call(func=m.Attribute(attr=m.Name("store"))))])


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.pushing:
        return module
    stores = _stores(context)
    positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    kernel = find_function(module, context.program.kernel.name)
    shift = context.program.kernel.span.line - positions[kernel].start.line
    lines = {access.span.line: access for access in stores}
    change = _Spread(context, {line - shift: access for line, access in lines.items()}, positions)
    changed = kernel.visit(change)
    missing = sorted(set(lines) - {line + shift for line in change.done})
    if missing:
        access = lines[missing[0]]
        raise UnsupportedError(
            f"this store to `{access.tensor}` is no statement of its own, so its tile cannot be stored in several places",
            where=access.span,
            help="write tl.store(pointers, value, mask=...) on a line of its own",
        )
    return replaced(module, kernel, changed)


def _stores(context: Context) -> list[Access]:
    """The stores to rewrite.

    Raises:
        UnsupportedError: several results, or a store that takes no pointer.
    """
    if len(context.produced) > 1:
        raise UnsupportedError(
            f"{context.storer.name} stores one communicated result, this kernel makes {len(context.produced)}",
            where=context.program.kernel.span,
            help='backend="copy_engine"',
        )
    (on,) = context.produced
    stores = [a for a in context.program.kernel.accesses if a.tensor == on.param and a.mode != "read"]
    for access in stores:
        if access.kind != "pointer" or access.mode == "reduce":
            how = "adds to" if access.mode == "reduce" else "stores by descriptor or block pointer into"
            raise UnsupportedError(
                f"{context.storer.name} needs plain stores to pointers; this one {how} `{on.param}`",
                where=access.span,
                help='backend="copy_engine", or tl.store(pointers, value, mask=...)',
            )
    if not stores:
        raise CodegenError(f"no store to `{on.param}` was found")
    return stores


class _Spread(cst.CSTTransformer):
    """Puts every store of certain lines into a loop over the places of its tile."""

    def __init__(self, context: Context, lines: dict[int, Access], positions) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.context = context
        self.lines = lines
        self.positions = positions
        self.done: set[int] = set()

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement:
        where = self.positions[original_node]
        line = next((n for n in range(where.start.line, where.end.line + 1) if n in self.lines), None)
        if line is None or not m.matches(original_node, _STORE):
            return updated_node
        access = self.lines[line]
        self.done.add(line)
        names = self.context.names
        table, run = names.local("table"), names.local("run", access.region or 0)
        way = names.local("way")
        shift = names.local("shift")
        (moved,) = statements(f"{shift} = {names.language}.shift({table}, {run}, {way}, {names.local('slots')})\n")
        expression = updated_node.body[0]
        assert isinstance(expression, cst.Expr) and isinstance(expression.value, cst.Call)
        call = expression.value
        at = next((i for i, a in enumerate(call.args) if a.keyword is not None and a.keyword.value == "pointer"), 0)
        pointer = call.args[at]
        value = pointer.value
        if not isinstance(value, (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.BinaryOperation)) or (
            isinstance(value, cst.BinaryOperation) and not isinstance(value.operator, cst.Add)
        ):
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        sum_ = cst.BinaryOperation(value, cst.Add(), cst.Name(shift))
        args = [*call.args[:at], pointer.with_changes(value=sum_), *call.args[at + 1 :]]
        store = updated_node.with_changes(
            body=[expression.with_changes(value=call.with_changes(args=args))], leading_lines=[]
        )
        return cst.For(
            target=cst.Name(way),
            iter=cst.parse_expression(f"range({names.language}.ways({table}, {run}))"),
            body=cst.IndentedBlock(body=[moved, store]),
            leading_lines=[*updated_node.leading_lines, comment(NOTE)],
        )
