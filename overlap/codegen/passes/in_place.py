"""Has tiles access the rank's own part of a communicated tensor where its caller has it, through a descriptor of that.

Before::

    pid_m = ol.after_async(pid_m, ol_seen)
    ...
    for k in range(k_tiles):
        a = a_desc.load([off_m, k * BLOCK_K])

After, where tiles lie side by side along the dimension that is shared out::

    # Where the rank's own part of a begins in what this kernel sees.
    ol_begin = ol.own_begin(ol_origin, 0)
    ...
    pid_m = ol.after_async(pid_m, ol_seen)
    # The rank's own part of a is read where its caller has it.
    if ol.own(ol_table, ol_run):
        ol_a_desc = ol_own
        ol_before = ol_begin
    else:
        ol_a_desc = a_desc
        ol_before = 0
    ...
    for k in range(k_tiles):
        a = ol_a_desc.load([off_m - ol_before, k * BLOCK_K])

and where each tile reads all of it, a block an iteration::

    for k in range(k_tiles):
        # The rank's own part of a is read where its caller has it.
        if ol.within(k * BLOCK_K, ol_begin, ol_end):
            ...
        a = ol_a_desc.load([off_m, k * BLOCK_K - ol_before])

Which descriptor it is is chosen, and the load or store stays one: branches around loads would cost a pipeline its stages. A
launch that uses the tensor as it lies in symmetric memory passes the same descriptor twice, and begins and ends of 0. Kernels
that access it otherwise than by descriptors of the host, or whose programs move or store chunks, pass through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst
import libcst.matchers as m

from overlap.annotate.model import Access, LoopBlock, RangeLoop
from overlap.annotate.on import OnSpec
from overlap.errors import CodegenError

from ..context import Context
from ..locate import comment, find_function, pragma_of, replaced, statements

_FUNCTIONS = {"load_tensor_descriptor": "read", "store_tensor_descriptor": "write"}
_METHODS = {"load": "read", "store": "write"}
_ADDED = {"own", "origin", "begin", "end", "before"}
_HEAD = m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])


@dataclass(frozen=True)
class Site:
    """How a kernel accesses the communicated tensor ``on``.

    ``dim``: the dimension along which ranks hold other parts; ``region``: the dispatch region of all its accesses; ``loop``: the
    in-tile loop that takes ``dim`` block by block, None where a tile axis spans it.
    """

    on: OnSpec
    dim: int
    region: int
    loop: RangeLoop | None = None


def marked(module: cst.Module, context: Context, kernel: str) -> Context:
    """The context of a kernel, found at the dotted path ``kernel``, with ``in_place`` set if this pass applies to it."""
    site = site_of(context)
    if site is None:
        return context
    node = find_function(module, kernel)
    change = _Accesses(context, site)
    _inside(node).visit(change)
    found = _blocks_of_regions(node)
    there = {id(call) for block in found for call in m.findall(block, m.Call())}
    accesses = [a for a in context.program.kernel.accesses if a.tensor == site.on.param]
    fits = len(change.calls) == len(accesses) and not change.others and all(id(c) in there for c in change.calls)
    return replace(context, in_place=True) if fits else context


def site_of(context: Context) -> Site | None:
    """How the kernel accesses its communicated tensor, as far as the model tells; None: not as this pass needs it."""
    carriers, kernel = context.carriers, context.program.kernel
    if len(context.ons) != 1 or carriers.chosen != "copy_engine" or carriers.moving or carriers.storing:
        return None
    if context.finishing:
        return None  # such tiles have a loop of their own
    (on,) = context.ons
    if on.ranged or on.kind == "all_reduce":
        return None
    dim = on.to_dim if on.produced and on.kind == "all_to_all" else on.dim
    mode = "write" if on.produced else "read"
    accesses = [a for a in kernel.accesses if a.tensor == on.param]
    regions = {a.region for a in accesses}
    fit = all(a.kind == "host_descriptor" and a.mode == mode and not (a.helper or a.guard) for a in accesses)
    if dim is None or len(regions) != 1 or None in regions or not fit or any(dim >= len(a.axes) for a in accesses):
        return None
    taken = {name for region in kernel.regions for s in region.slice for name in s.targets}
    taken |= {axis.count_name or "" for axis in kernel.axes} | {tile.name for tile in kernel.tile_ids}
    if taken & {*_ADDED, on.param}:
        return None
    (region,) = regions
    tiles = {axis.name for axis in context.axes}
    if all(a.axes[dim] in tiles and not (a.wraps or (False,) * len(a.axes))[dim] for a in accesses):
        return Site(on, dim, region or 0)
    loops = {_loop_of(a, dim) for a in accesses}
    if on.produced or len(loops) != 1 or None in loops:
        return None
    (taken_by,) = loops
    loop = next((x for x in kernel.loops if taken_by is not None and x.number == taken_by.loop), None)
    return None if loop is None else Site(on, dim, region or 0, loop)


def _loop_of(access: Access, dim: int) -> LoopBlock | None:
    return access.loops[dim] if dim < len(access.loops) else None


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.in_place:
        return module
    site = site_of(context)
    assert site is not None
    kernel = find_function(module, context.program.kernel.name)
    change = _Accesses(context, site)
    changed = kernel.with_changes(body=_inside(kernel).visit(change))
    if not change.calls:
        raise CodegenError(f"`{kernel.name.value}` accesses `{site.on.param}` nowhere")
    if site.loop is None:
        select = _Select(context, site)
        selected = changed.visit(select)
        assert isinstance(selected, cst.FunctionDef)
        changed = selected
        if select.done != 1:
            raise CodegenError(f"found {select.done} places to choose a descriptor of `{site.on.param}` in, not one")
    return replaced(module, kernel, _with_ends(changed, context, site))


def _inside(kernel: cst.FunctionDef) -> cst.IndentedBlock:
    if not isinstance(kernel.body, cst.IndentedBlock):
        raise CodegenError(f"`{kernel.name.value}` has no block to rewrite")
    return kernel.body


def _with_ends(kernel: cst.FunctionDef, context: Context, site: Site) -> cst.FunctionDef:
    """The kernel with the part's place read at its top, once."""
    names = context.names
    ends = ("begin",) if site.loop is None else ("begin", "end")
    lines = [f"{names.local(e)} = {names.language}.own_{e}({names.local('origin')}, {site.dim})" for e in ends]
    what = " and ".join(f"{e}s" for e in ends)
    head = statements("\n".join(lines) + "\n")
    work = "makes" if site.on.produced else "sees"
    said = comment(f"Where the rank's own part of {site.on.tensor} {what} in what this kernel {work}.")
    head[0] = head[0].with_changes(leading_lines=[said])
    body = list(_inside(kernel).body)
    at = 1 if body and m.matches(body[0], _HEAD) else 0
    return kernel.with_changes(body=kernel.body.with_changes(body=[*body[:at], *head, *body[at:]]))


def _selection(context: Context, site: Site, condition: str) -> list[cst.BaseStatement]:
    """The choice of a descriptor, and of what its coordinates are counted from."""
    names, param = context.names, site.on.param
    chosen, before = names.local(param), names.local("before")
    done = "stored where it belongs" if site.on.produced else "read where its caller has it"
    return statements(
        f"# The rank's own part of {site.on.tensor} is {done}.\n"
        f"if {condition}:\n"
        f"    {chosen} = {names.local('own')}\n"
        f"    {before} = {names.local('begin')}\n"
        f"else:\n"
        f"    {chosen} = {param}\n"
        f"    {before} = 0\n"
    )


class _Select(cst.CSTTransformer):
    """Chooses behind the wait of the region, or behind its coordinates where it waits for nothing."""

    def __init__(self, context: Context, site: Site) -> None:
        super().__init__()
        names = context.names
        self.context, self.site, self.done = context, site, 0
        self.run = names.local("run", site.region)
        mine = m.Name(self.run) | m.Name(names.local("seen", site.region))
        words = m.Name("place") | m.Name("wait_run") | m.Name("after") | m.Name("after_async")
        call = m.Call(
            func=m.Attribute(value=m.Name(names.language), attr=words),
            args=[m.ZeroOrMore(), m.Arg(mine), m.ZeroOrMore()],
        )
        self.last = m.SimpleStatementLine(body=[m.Assign(value=call)])

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        body = list(updated_node.body)
        at = max((i for i, statement in enumerate(body) if m.matches(statement, self.last)), default=-1)
        if at < 0:
            return updated_node
        self.done += 1
        names = self.context.names
        chosen = _selection(self.context, self.site, f"{names.language}.own({names.local('table')}, {self.run})")
        return updated_node.with_changes(body=[*body[: at + 1], *chosen, *body[at + 1 :]])


class _Accesses(cst.CSTTransformer):
    """Has accesses of the tensor go by the chosen descriptor. ``calls``: those found; ``others``: uses that are no attribute."""

    def __init__(self, context: Context, site: Site) -> None:
        super().__init__()
        self.context, self.site = context, site
        self.calls: list[cst.Call] = []
        self.others = 0
        self._param = m.Name(site.on.param)
        self._mode = "write" if site.on.produced else "read"
        self._index: str | None = None
        self._on_line = False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return not m.matches(node.value, self._param)

    def visit_Name(self, node: cst.Name) -> None:
        self.others += m.matches(node, self._param)

    def visit_Arg(self, node: cst.Arg) -> bool:
        if node.keyword is not None:
            node.value.visit(self)  # the name of a parameter is no use of ours
            return False
        return True

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        function = original_node.func
        if not isinstance(function, cst.Attribute | cst.Name):
            return updated_node
        name = function.attr.value if isinstance(function, cst.Attribute) else function.value
        args = list(updated_node.args)
        if isinstance(function, cst.Attribute) and m.matches(function.value, self._param):
            if _METHODS.get(name) != self._mode:
                self.others += name in (*_METHODS, "atomic_add", "gather", "scatter")
                return updated_node
            first = 0
        elif _FUNCTIONS.get(name) == self._mode and args and m.matches(original_node.args[0].value, self._param):
            self.others -= 1  # seen as an argument
            first = 1
        else:
            return updated_node
        at = next((i for i, a in enumerate(args) if a.keyword is not None and a.keyword.value == "offsets"), first)
        if at >= len(args) or not isinstance(args[at].value, cst.List | cst.Tuple):
            self.others += 1
            return updated_node
        listed = args[at].value
        assert isinstance(listed, cst.List | cst.Tuple)
        elements = list(listed.elements)
        if self.site.dim >= len(elements) or any(isinstance(e, cst.StarredElement) for e in elements):
            self.others += 1
            return updated_node
        if self.site.loop is not None and not self._on_line:
            self.others += 1  # behind a colon, or ahead of one: the choice has no place in front of it
            return updated_node
        self.calls.append(original_node)
        names, element = self.context.names, elements[self.site.dim]
        index = element.value
        self._index = cst.Module([]).code_for_node(index)
        moved = cst.BinaryOperation(_operand(index), cst.Subtract(), cst.Name(names.local("before")))
        elements[self.site.dim] = element.with_changes(value=moved)
        args[at] = args[at].with_changes(value=listed.with_changes(elements=elements))
        chosen = cst.Name(names.local(self.site.on.param))
        if first:
            args[0] = args[0].with_changes(value=chosen)
            return updated_node.with_changes(args=args)
        return updated_node.with_changes(func=function.with_changes(value=chosen), args=args)

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        self._on_line = True

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        index, self._index, self._on_line = self._index, None, False
        if index is None or self.site.loop is None:
            return updated_node
        names = self.context.names
        condition = f"{names.language}.within({index}, {names.local('begin')}, {names.local('end')})"
        chosen = _selection(self.context, self.site, condition)
        lines = [*updated_node.leading_lines, *chosen[0].leading_lines]  # type: ignore[attr-defined]
        chosen[0] = chosen[0].with_changes(leading_lines=lines)
        return cst.FlattenSentinel([*chosen, updated_node.with_changes(leading_lines=[])])


def _operand(node: cst.BaseExpression) -> cst.BaseExpression:
    """An expression as the left side of a subtraction."""
    plain = cst.Name | cst.Attribute | cst.Subscript | cst.Call | cst.Integer
    operators = cst.Add | cst.Subtract | cst.Multiply | cst.FloorDivide | cst.Modulo
    if (
        isinstance(node, plain)
        or node.lpar
        or (isinstance(node, cst.BinaryOperation) and isinstance(node.operator, operators))
    ):
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _blocks_of_regions(kernel: cst.FunctionDef) -> list[cst.IndentedBlock]:
    """The blocks that dispatch regions begin in."""
    found = []
    for block in m.findall(kernel, m.IndentedBlock()):
        assert isinstance(block, cst.IndentedBlock)
        lines = (line for s in block.body for line in getattr(s, "leading_lines", ()))
        if any((pragma_of(line) or ("", ""))[0] == "dispatch" for line in lines):
            found.append(block)
    return found
