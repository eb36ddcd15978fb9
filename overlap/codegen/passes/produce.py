"""Counts every tile into the chunks it makes a part of, once its last store to a communicated result is done.

Before::

    # @overlap.dispatch end
    ...
    tl.store(c_ptrs, c, mask=mask)

After::

    # @overlap.dispatch end
    ...
    tl.store(c_ptrs, c, mask=mask)
    # Count the tile into the chunks of c that it is part of.
    ol.produced(ol_table, ol_run, ol_state)

or, in a loop over tiles that stores by descriptors, once for all tiles of a run that a program makes, behind its last::

    # Count the program's tiles of the run, behind the last of them, into the chunks of c that they are part of.
    ol.produced_once(ol_table, ol_run, ol_state, tile, NUM_PROGRAMS)

or, where results go in words (`words_inline`)::

    # Send the tile of c to the ranks that add it up, in words.
    ol.send_words(ol_table, ol_run, ol_slots, ol_words, ol_made, ol_unit, ol_lanes, 0, 1, pid_m * BLOCK_M, ...)

The place is behind the statement that holds the last store, in the block of the dispatch region: every tile gets
there, and ``ol_run`` still is its run. Runs before any pass that adds lines to the kernel. Kernels that make no
communicated result pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider

from overlap.annotate import last_store
from overlap.annotate.model import DispatchRegion
from overlap.errors import CodegenError, UnsupportedError
from overlap.schedule.words import DIMS

from ..context import Context
from ..locate import comment, find_function, names_in, replaced, statements
from .dispatch import ASYNC_KINDS

LONGEST = 80
"""Characters of arguments that stand on one line."""


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.produced:
        return module
    # Found again by identity: the module is not copied.
    positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    kernel = find_function(module, context.program.kernel.name)
    shift = context.program.kernel.span.line - positions[kernel].start.line
    store = last_store(context.program, [on.param for on in context.produced])
    region = context.program.kernel.regions[store.region or 0]

    def first(node: cst.CSTNode) -> int:
        return positions[node].start.line + shift

    search = _Search(positions, shift, region.begin_line, region.end_line)
    kernel.visit(search)
    if search.block is None:
        raise CodegenError(f"no block holds the dispatch region at line {region.begin_line}")
    body = list(search.block.body)
    at = next(
        (
            i
            for i, s in enumerate(body)
            if first(s) > region.end_line and first(s) <= store.span.line <= positions[s].end.line + shift
        ),
        None,
    )
    if at is None:
        raise CodegenError(
            f"no store to `{store.tensor}` on line {store.span.line}, behind the dispatch region at line {region.begin_line}"
        )
    asynchronous = search.flattened or any(
        a.kind in ASYNC_KINDS
        for on in context.produced
        for a in context.program.kernel.accesses
        if a.tensor == on.param and a.mode != "read"
    )
    names = context.names
    arguments = [names.local("table"), names.local("run", region.index), names.local("state")]
    tensors = " and ".join(on.tensor for on in context.produced)
    said = f"Count the tile into the chunks of {tensors} that it is part of"
    if context.sending:
        word, said = "send_words", f"Send the tile of {tensors} to the ranks that add it up, in words."
        if any(_by_descriptor(context)):
            word = "send_words_async"
        names_of = ("slots", "words", "made", "unit", "lanes")
        arguments = [*arguments[:2], *map(names.local, names_of), *_box(context, region)]
        _check_coordinates(context, region, [s for s in body[: at + 1] if first(s) > region.end_line])
    elif context.pushing:
        word, said = "pushed", f"{said}; the last of a chunk tells the rank that gets it."
        arguments.append(names.local("slots"))
        if context.pushing_async:
            word = "pushed_async"
            arguments.append(names.local("ways"))
    else:
        word, said = "produced_async" if asynchronous else "produced", f"{said}."
        walk = _walk(kernel, search.loop, context, region) if asynchronous else None
        if walk is not None:
            word, said = (
                "produced_once",
                "Count the program's tiles of the run, behind the last of them, into the chunks of",
            )
            said = f"{said} {tensors} that they are part of."
            arguments += walk
    given = ", ".join(arguments)
    if len(given) > LONGEST:
        given = f"\n    {given}\n"
    (counted,) = statements(f"{names.language}.{word}({given})\n")
    counted = counted.with_changes(leading_lines=[comment(said)])
    changed = search.block.with_changes(body=[*body[: at + 1], counted, *body[at + 1 :]])
    return replaced(module, search.block, changed)


def _walk(kernel: cst.FunctionDef, loop: cst.For | None, context: Context, region: DispatchRegion) -> list[str] | None:
    """The tile that a program is at, and how far the next one is; None where it makes one, or the loop does not say so.

    Programs that move chunks take part in no count and change the step of the others, so their kernels count every tile. So
    do those of loops whose end or step is another for each program: which tile is a program's last they alone say.
    """
    if loop is None or context.moving or not isinstance(loop.target, cst.Name) or not isinstance(loop.iter, cst.Call):
        return None
    walked = {tile.name for tile in context.program.kernel.tile_ids if tile.form == "persistent_for" and not tile.left}
    if loop.target.value not in walked or region.tile_id != loop.target.value:
        return None  # another number says which tile it is
    arguments = loop.iter.args
    step = next((a for a in arguments if a.keyword is not None and a.keyword.value == "step"), None)
    if step is None and len(arguments) > 2 and arguments[2].keyword is None:
        step = arguments[2]
    if step is None:
        return None
    differing = _by_program(kernel)
    if any(differing(each) for each in (arguments[1].value, step.value)):
        return None
    targets = m.AssignTarget() | m.AugAssign() | m.AnnAssign() | m.For()
    changed = {name for node in m.findall(loop.body, targets) for name in names_in(node.target)}  # type: ignore[attr-defined]
    if changed & {loop.target.value, *names_in(step.value)}:
        return None
    return [loop.target.value, cst.Module([]).code_for_node(step.value)]


def _by_program(kernel: cst.FunctionDef) -> Callable[[cst.CSTNode], bool]:
    """Whether an expression's value may be another in each program, by what its names are made of."""
    differing: set[str] = set()

    def differs(node: cst.CSTNode) -> bool:
        called = m.findall(node, m.Attribute(attr=m.Name("program_id")))
        return bool(called) or not differing.isdisjoint(names_in(node))

    made: list[tuple[set[str], cst.BaseExpression]] = []
    for node in m.findall(kernel, m.Assign() | m.AugAssign() | m.AnnAssign() | m.For()):
        if isinstance(node, cst.Assign):
            made.append((set().union(*(names_in(each.target) for each in node.targets)), node.value))
        elif isinstance(node, cst.For):
            made.append((names_in(node.target), node.iter))
        elif isinstance(node, cst.AugAssign | cst.AnnAssign) and node.value is not None:
            made.append((names_in(node.target), node.value))
    while more := {name for names, value in made if differs(value) for name in names} - differing:
        differing |= more
    return differs


def _by_descriptor(context: Context) -> list[bool]:
    """Of each store to the communicated results, whether it is one by TMA."""
    stored = {on.param for on in context.produced}
    kernel = context.program.kernel
    return [a.kind in ASYNC_KINDS for a in kernel.accesses if a.tensor in stored and a.mode != "read"]


def _box(context: Context, region: DispatchRegion) -> list[str]:
    """First element and block of a tile along each dimension of the result, as text; missing dimensions in front.

    Raises:
        UnsupportedError: tiles write it in several ways, add to it, or it has too many dimensions.
    """
    (on, *others) = context.produced
    found = context.writes(on)
    adds = [a for a in context.program.kernel.accesses if a.tensor == on.param and a.mode == "reduce"]
    dims = max(map(len, found))
    if others or len(found) > 1 or adds or dims > DIMS:
        what = (
            f"{1 + len(others)} results" if others else "a result of several kinds of store" if len(found) > 1 else ""
        )
        what = what or ("a result that tiles add to" if adds else f"a result of {dims} dimensions")
        raise UnsupportedError(
            f"{context.storer.name} sends one result of up to {DIMS} dimensions that every tile stores one box of; this kernel "
            f"makes {what}",
            where=(adds[0].span if adds else context.program.kernel.span),
            help='backend="copy_engine"',
        )
    pids, blocks = dict(region.pid_map), {axis.name: axis.block for axis in context.axes}
    text = ["0", "1"] * (DIMS - dims)
    for name in found[0]:
        whole = ["0", f"{context.names.language}.WHOLE"]
        text += whole if name is None else [f"{pids[name]} * {blocks[name]}", str(blocks[name])]
    return text


def _check_coordinates(context: Context, region: DispatchRegion, tile: Sequence[cst.BaseStatement]) -> None:
    """Refuses a tile whose coordinates are other numbers by the time that it is stored.

    Args:
        tile: the statements behind the dispatch region, as far as the tile's last store.

    Raises:
        UnsupportedError: one is assigned to.
    """
    names = {pid for _, pid in region.pid_map}
    targets = m.AssignTarget(target=m.Name()) | m.AugAssign(target=m.Name()) | m.AnnAssign(target=m.Name())
    for node in (node for statement in tile for node in m.findall(statement, targets)):
        assert isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign) and isinstance(node.target, cst.Name)
        if node.target.value in names:
            raise UnsupportedError(
                f"`{node.target.value}` is assigned to behind the dispatch region, and {context.storer.name} sends the tile "
                "that it names there",
                where=region.span,
                help="give what is made of it a name of its own",
            )


class _Search(cst.CSTVisitor):
    """The block a dispatch region stands in, and whether the loop around it asks to be flattened."""

    def __init__(self, positions, shift: int, begin: int, end: int) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.positions, self.shift, self.begin, self.end = positions, shift, begin, end
        self.block: cst.IndentedBlock | None = None
        self.flattened = False
        self.loop: cst.For | None = None
        """Around the region, the innermost."""
        self._loops: list[cst.For] = []

    def visit_For(self, node: cst.For) -> None:
        self._loops.append(node)

    def leave_For(self, original_node: cst.For) -> None:
        self._loops.pop()

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> bool:
        inside = any(self.begin < self.positions[s].start.line + self.shift <= self.end for s in node.body)
        if inside and self.block is None:
            self.block = node
            self.loop = self._loops[-1] if self._loops else None
            self.flattened = self.loop is not None and asks_to_flatten(self.loop) is not None
        return self.block is None


def asks_to_flatten(loop: cst.For) -> cst.Arg | None:
    """The ``flatten=`` of a loop's range, unless it is plainly False."""
    if not isinstance(loop.iter, cst.Call):
        return None
    for argument in loop.iter.args:
        if m.matches(argument, m.Arg(keyword=m.Name("flatten"))):
            return None if m.matches(argument.value, m.Name("False") | m.Name("None")) else argument
    return None
