"""Stores every tile of a communicated result where it goes, by TMA, through one descriptor that reaches all places.

Before::

    c_desc.store([off_m, off_n], c)

After::

    # Where the tile goes: slots of other ranks, the own part; one place, but on the edges of chunks.
    for ol_way in ol.static_range(ol_ways):
        ol_high, ol_low = ol.spot(ol_table, ol_run, ol_way, ol_slots)
        ol_anywhere.store([ol_high, ol_low, off_m, off_n], ol.shaped(c, ol_anywhere))

The loop is unrolled, so that it keeps no tile loop from being flattened; a tile with fewer places stores the rest nowhere.
Where the user's descriptor is a parameter, the other one is too. Where the kernel makes it, it makes the other one beside it::

    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[stride_cm, 1], block_shape=[BLOCK_M, BLOCK_N])

After::

    ol_anywhere = tl.make_tensor_descriptor(
        c_ptr + ol.lowest(ol_slots), shape=[ol.steps(ol_slots, 0), ol.steps(ol_slots, 1), M, N], ...
    )

Kernels whose tiles leave by other means pass through; those that store to pointers are `push`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from overlap.annotate.model import Access
from overlap.backends import backends
from overlap.errors import UnsupportedError

from ..context import Context
from ..locate import find_function, replaced, statements
from ..spread import communicated_stores, spread
from .dispatch import ASYNC_KINDS

WRITER = "tma store"
MOST_DIMS = 3
"""Dimensions of a result whose places two more can tell apart: descriptors have five."""
_FUNCTIONS = ("store", "store_tensor_descriptor")
_HELP = "write desc.store([row, column], value) on a line of its own"
_MADE = m.Call(func=m.Attribute(attr=m.Name("make_tensor_descriptor")) | m.Name("make_tensor_descriptor"))


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.pushing or context.storer.writer != WRITER:
        return module
    names = context.names
    table, slots, way = names.local("table"), names.local("slots"), names.local("way")
    high, low = names.local("high"), names.local("low")
    twins: dict[str, str] = {}

    def moved(call: cst.Call, access: Access) -> tuple[list[cst.BaseStatement], cst.Call]:
        run = names.local("run", access.region or 0)
        descriptor, offsets, value = store_parts(call, access)
        twin = names.local("anywhere", len(twins))
        if access.kind == "host_descriptor":
            # A parameter of this name, whichever store it is.
            twin = names.local("anywhere")
        else:
            twin = twins.setdefault(descriptor, twin)
        before = statements(f"{high}, {low} = {names.language}.spot({table}, {run}, {way}, {slots})\n")
        elements = [cst.Element(cst.Name(high)), cst.Element(cst.Name(low)), *offsets]
        shaped = cst.parse_expression(f"{names.language}.shaped({_code(value)}, {twin})")
        args = [cst.Arg(cst.List(elements)), cst.Arg(shaped)]
        return before, cst.Call(cst.Attribute(cst.Name(twin), cst.Name("store")), args)

    stores = _stores(context)
    over = f"{names.language}.static_range({names.local('ways')})"
    kernel = find_function(module, context.program.kernel.name)
    changed = spread(module, context, stores, _FUNCTIONS, over, moved, _HELP)
    for descriptor, twin in twins.items():
        changed = _with_twin(changed, context, descriptor, twin, stores[0])
    return replaced(module, kernel, changed)


def _stores(context: Context) -> list[Access]:
    """The stores to rewrite.

    Raises:
        UnsupportedError: several results, a store that takes no descriptor, or one that has too many dimensions.
    """
    stores = communicated_stores(context)
    name = context.storer.name
    for access in stores:
        if access.kind not in ASYNC_KINDS or access.mode == "reduce":
            by = "pointer" if access.kind == "pointer" else "block pointer"
            how = "adds to" if access.mode == "reduce" else f"stores by {by} into"
            plain = access.kind == "pointer" and access.mode != "reduce"
            also = [b.name for b in backends.values() if plain and b.inline and b.writer != WRITER]
            others = " or ".join(f'backend="{other}"' for other in (*also, "copy_engine"))
            raise UnsupportedError(
                f"{name} needs stores through tensor descriptors; this one {how} `{access.tensor}`",
                where=access.span,
                help=f"{others}, or desc.store([row, column], value)",
            )
        if len(access.axes) > MOST_DIMS:
            raise UnsupportedError(
                f"{name} stores results of up to {MOST_DIMS} dimensions, `{access.tensor}` has {len(access.axes)}: TMA takes "
                "five, and two are for the place",
                where=access.span,
                help='view it with fewer dimensions, or backend="copy_engine"',
            )
    kinds = {access.kind: access for access in stores}
    if len(kinds) > 1:
        raise UnsupportedError(
            f"{name}: `{stores[0].tensor}` is stored through descriptors of the host and of the kernel",
            where=stores[-1].span,
            help="store through one kind",
        )
    return stores


def store_parts(call: cst.Call, access: Access) -> tuple[str, Sequence[cst.BaseElement], cst.BaseExpression]:
    """Descriptor, coordinates and value of a store.

    Raises:
        UnsupportedError: one of them is not written out.
    """
    assert isinstance(call.func, cst.Attribute)
    given: dict[str, cst.BaseExpression] = {}
    order = ["offsets", "value"]
    if call.func.attr.value == "store":
        given["desc"] = call.func.value
    else:
        order = ["desc", *order]
    for i, argument in enumerate(call.args):
        given[argument.keyword.value if argument.keyword is not None else order[min(i, len(order) - 1)]] = (
            argument.value
        )
    descriptor, offsets = given.get("desc"), given.get("offsets")
    if not isinstance(descriptor, cst.Name) or not isinstance(offsets, cst.List | cst.Tuple) or "value" not in given:
        raise UnsupportedError(
            f"this store to `{access.tensor}` names no descriptor, or does not list its coordinates",
            where=access.span,
            help="desc = tl.make_tensor_descriptor(...), then desc.store([row, column], value)",
        )
    return descriptor.value, offsets.elements, given["value"]


def _with_twin(
    kernel: cst.FunctionDef, context: Context, descriptor: str, twin: str, access: Access
) -> cst.FunctionDef:
    """The kernel with the descriptor ``twin`` made where it makes ``descriptor``; in its place where that is not read any more.

    Raises:
        UnsupportedError: it is made in several places, or of lists that are not written out.
    """
    change = _Twin(context, descriptor, twin, sum(1 for _ in m.findall(kernel, m.Name(descriptor))) == 1)
    changed = kernel.visit(change)
    if change.done != 1:
        raise UnsupportedError(
            f"the descriptor `{descriptor}` of `{access.tensor}` is not made once, by a tl.make_tensor_descriptor whose shape, "
            "strides and block_shape are lists",
            where=access.span,
            help=f"{descriptor} = tl.make_tensor_descriptor(pointer, shape=[...], strides=[...], block_shape=[...])",
        )
    assert isinstance(changed, cst.FunctionDef)
    return changed


class _Twin(cst.CSTTransformer):
    """Makes the descriptor that reaches all places behind, or in the place of, the one it is made after."""

    def __init__(self, context: Context, descriptor: str, twin: str, alone: bool) -> None:
        super().__init__()
        self.context, self.twin, self.alone, self.done = context, twin, alone, 0
        self.statement = m.SimpleStatementLine(
            body=[m.Assign(targets=[m.AssignTarget(target=m.Name(descriptor))], value=_MADE)]
        )

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        if not m.matches(original_node, self.statement):
            return updated_node
        assign = updated_node.body[0]
        assert isinstance(assign, cst.Assign) and isinstance(assign.value, cst.Call)
        call = self._reaching(assign.value)
        if call is None:
            return updated_node
        self.done += 1
        target = cst.AssignTarget(cst.Name(self.twin))
        made = updated_node.with_changes(body=[assign.with_changes(targets=[target], value=call)])
        if self.alone:
            return made
        return cst.FlattenSentinel([updated_node, made.with_changes(leading_lines=[])])

    def _reaching(self, call: cst.Call) -> cst.Call | None:
        """The call that makes the descriptor, None where its lists are not written out."""
        order = ("base", "shape", "strides", "block_shape")
        names = [a.keyword.value if a.keyword is not None else order[min(i, 3)] for i, a in enumerate(call.args)]
        arguments = dict(zip(names, call.args, strict=True))
        if not set(order) <= set(arguments):
            return None
        ol, slots = self.context.names.language, self.context.names.local("slots")
        pointer = _code(arguments["base"].value)
        more = {
            "shape": [f"{ol}.steps({slots}, 0)", f"{ol}.steps({slots}, 1)"],
            "strides": [f"{ol}.stride({pointer}, 0)", f"{ol}.stride({pointer}, 1)"],
            "block_shape": ["1", "1"],
        }
        changed = []
        for name, argument in zip(names, call.args, strict=True):
            value: cst.BaseExpression = argument.value
            if name == "base":
                value = cst.parse_expression(f"{pointer} + {ol}.lowest({slots})")
            elif name in more:
                if not isinstance(value, cst.List | cst.Tuple):
                    return None
                value = value.with_changes(
                    elements=[*(cst.Element(cst.parse_expression(text)) for text in more[name]), *value.elements]
                )
            changed.append(argument.with_changes(value=value))
        return _in_lines(call.with_changes(args=changed))


def _in_lines(call: cst.Call) -> cst.Call:
    """The call with an argument a line."""

    def line(indented: bool) -> cst.ParenthesizedWhitespace:
        return cst.ParenthesizedWhitespace(
            first_line=cst.TrailingWhitespace(), indent=True, last_line=cst.SimpleWhitespace("    " if indented else "")
        )

    last = len(call.args) - 1
    commas = [cst.Comma(whitespace_after=line(i < last)) for i in range(last + 1)]
    arguments = zip(call.args, commas, strict=True)
    return call.with_changes(
        args=[argument.with_changes(comma=comma) for argument, comma in arguments], whitespace_before_args=line(True)
    )


def _code(node: cst.BaseExpression) -> str:
    return cst.Module([]).code_for_node(node)
