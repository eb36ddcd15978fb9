"""Stores every tile of a communicated result where it goes: into the slots of other ranks, and into the rank's own part.

Before::

    tl.store(c_ptrs, c, mask=mask)

After::

    # Where the tile goes: slots of other ranks, the own part; one place, but on the edges of chunks.
    for ol_way in range(ol.ways(ol_table, ol_run)):
        ol_shift = ol.shift(ol_table, ol_run, ol_way, ol_slots)
        tl.store(c_ptrs + ol_shift, c, mask=mask)

The address is the user's own; the places differ from the result's memory by a shift alone. Kernels whose tiles leave by
other means pass through; those that store through descriptors are `push_async`'s.
"""

from __future__ import annotations

import libcst as cst

from overlap.annotate.model import Access
from overlap.backends import backends
from overlap.errors import UnsupportedError

from ..context import Context
from ..locate import find_function, replaced, statements
from ..spread import communicated_stores, spread

WRITER = "load/store"
_HELP = "write tl.store(pointers, value, mask=...) on a line of its own"


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.pushing or context.storer.writer != WRITER:
        return module
    names = context.names
    table, way = names.local("table"), names.local("way")
    shift, slots = names.local("shift"), names.local("slots")

    def moved(call: cst.Call, access: Access) -> tuple[list[cst.BaseStatement], cst.Call]:
        run = names.local("run", access.region or 0)
        before = statements(f"{shift} = {names.language}.shift({table}, {run}, {way}, {slots})\n")
        at = next((i for i, a in enumerate(call.args) if a.keyword is not None and a.keyword.value == "pointer"), 0)
        pointer = call.args[at]
        value = pointer.value
        if not isinstance(value, (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.BinaryOperation)) or (
            isinstance(value, cst.BinaryOperation) and not isinstance(value.operator, cst.Add)
        ):
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        sum_ = cst.BinaryOperation(value, cst.Add(), cst.Name(shift))
        args = [*call.args[:at], pointer.with_changes(value=sum_), *call.args[at + 1 :]]
        return before, call.with_changes(args=args)

    over = f"range({names.language}.ways({table}, {{run}}))"
    kernel = find_function(module, context.program.kernel.name)
    return replaced(module, kernel, spread(module, context, _stores(context), ["store"], over, moved, _HELP))


def _stores(context: Context) -> list[Access]:
    """The stores to rewrite.

    Raises:
        UnsupportedError: several results, or a store that takes no pointer.
    """
    stores = communicated_stores(context)
    for access in stores:
        if access.kind != "pointer" or access.mode == "reduce":
            by_descriptor = access.kind in ("device_descriptor", "host_descriptor") and access.mode != "reduce"
            how = "adds to" if access.mode == "reduce" else "stores by descriptor or block pointer into"
            also = [b.name for b in backends.values() if by_descriptor and b.inline and b.writer != WRITER]
            others = " or ".join(f'backend="{name}"' for name in ("copy_engine", *also))
            raise UnsupportedError(
                f"{context.storer.name} needs plain stores to pointers; this one {how} `{access.tensor}`",
                where=access.span,
                help=f"{others}, or tl.store(pointers, value, mask=...)",
            )
    return stores
