"""Gives the tiles of the rank's own part a loop of their own, in which what other ranks have sent is added ahead of the store.

Before::

    for tile in tl.range(tl.program_id(0), tiles, NUM_PROGRAMS, flatten=True):
        ...
        c_desc.store([off_m, off_n], c)
        # Count the tile into the chunks of c that it is part of.
        ol.produced_once(ol_table, ol_run, ol_state, tile, NUM_PROGRAMS)

After::

    ol_own_tiles = ol.own_tiles(ol_table)
    # The tiles that other ranks add up.
    for tile in tl.range(tl.program_id(0), min(tiles, ol_own_tiles), NUM_PROGRAMS, flatten=True):
        ... as before
    # The tiles of the rank's own part: what other ranks have sent is added here, none of it is sent.
    ol_next_tile = ol.next_tile(tl.program_id(0), ol_own_tiles, NUM_PROGRAMS)
    for tile in tl.range(ol_next_tile, tiles, NUM_PROGRAMS, flatten=True):
        ...
        # Wait for what other ranks send of the tile; its summands' loads depend on the wait through pid_m.
        ol_seen = ol.wait_summands(ol_table, ol_run, ol_state, ol_epoch, ol_summands)
        pid_m = ol.after(pid_m, ol_seen)
        ...
        ol.finish_tile(ol_result, c, ol_table, ol_run, ol_sums, ol_summands, off_m, off_n)

Two loops, because in a flattened one the wait of the first own tile would stand ahead of the count of the last tile that is
sent, and ranks would wait in a circle. Runs behind all passes that add to a tile. Other kernels pass through.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from overlap.annotate.model import Access
from overlap.errors import CodegenError, UnsupportedError
from overlap.schedule.table import MOST_DIMS

from ..context import Context
from ..locate import comment, find_function, pragma_of, replaced, statements
from ..spread import communicated_stores
from .push_async import store_parts

_HELP = "leave out tile_sums: a kernel behind this one adds"
_COUNTS = m.SimpleStatementLine(
    body=[
        m.Expr(m.Call(func=m.Attribute(attr=m.Name("produced") | m.Name("produced_async") | m.Name("produced_once"))))
    ]
)


def run(module: cst.Module, context: Context) -> cst.Module:
    if not context.finishing:
        return module
    store = _store(context)
    kernel = find_function(module, context.program.kernel.name)
    loop = _tile_loop(kernel, context, store)
    names = context.names
    ol, table, first = names.language, names.local("table"), names.local("own_tiles")
    start, stop, step = (_code(argument.value) for argument in loop.iter.args[:3])  # type: ignore[attr-defined]
    begin = names.local("next_tile")
    ahead = statements(f"{first} = {ol}.own_tiles({table})\n")
    between = statements(f"{begin} = {ol}.next_tile({start}, {first}, {step})\n")
    sent = _over(loop, start, f"min({stop}, {first})")
    lines = [comment("The tiles that other ranks add up."), *loop.leading_lines]
    change = _Own(context, store)
    own = _over(loop, begin, stop).visit(change)
    if not isinstance(own, cst.For) or change.stored != 1:
        raise CodegenError(f"{change.stored} stores of the tiles of `{store.tensor}` were rewritten")
    said = "The tiles of the rank's own part: what other ranks have sent is added here, and none of it is sent."
    between[0] = between[0].with_changes(leading_lines=[comment(said)])
    loops = [*ahead, sent.with_changes(leading_lines=lines), *between, own.with_changes(leading_lines=[])]
    return replaced(module, loop, cst.FlattenSentinel(loops))


def _store(context: Context) -> Access:
    """The one store of a tile.

    Raises:
        UnsupportedError: there are several, they add, or go through something else than a descriptor of the host; what is
            communicated is another thing than a reduce-scattered result, or carried by programs of the kernel.
    """
    name = "tile_sums"
    kinds, chosen = [on.kind for on in context.ons], context.carriers.chosen
    if kinds != ["reduce_scatter"] or chosen != "copy_engine" or context.moving or context.pushing:
        by = "" if chosen == "copy_engine" else f" by {chosen}"
        raise UnsupportedError(
            f"{name} is for one reduce-scattered result by copy_engine, not for {' and '.join(map(str, context.ons))}{by}",
            where=context.program.kernel.span,
            help=_HELP,
        )
    stores = communicated_stores(context)
    (on,) = context.produced
    for access in stores:
        if access.kind != "host_descriptor" or access.mode == "reduce":
            how = "adds to" if access.mode == "reduce" else "does not store through a descriptor of the host's into"
            raise UnsupportedError(
                f"{name}: the kernel {how} `{access.tensor}`",
                where=access.span,
                help=f"pass a TensorDescriptor and write desc.store([row, column], value), or {_HELP}",
            )
    if len(stores) > 1 or len(context.writes(on)) > 1:
        raise UnsupportedError(f"{name}: a tile is stored by several statements", where=stores[-1].span, help=_HELP)
    if not 2 <= len(stores[0].axes) <= MOST_DIMS:
        raise UnsupportedError(
            f"{name} takes results of 2 or {MOST_DIMS} dimensions, `{on.tensor}` has {len(stores[0].axes)}",
            where=stores[0].span,
            help=_HELP,
        )
    return stores[0]


def _tile_loop(kernel: cst.FunctionDef, context: Context, store: Access) -> cst.For:
    """The loop over tiles.

    Raises:
        UnsupportedError: programs do not walk over tiles, the loop counts something else, or does not name start, end and step.
    """
    found: list[cst.For] = []

    class Finder(cst.CSTVisitor):
        def leave_For(self, original_node: cst.For) -> None:
            if not found and any((pragma_of(line) or ("",))[0] == "dispatch" for line in _lines(original_node)):
                found.append(original_node)

    kernel.visit(Finder())
    if not found or not isinstance(found[0].iter, cst.Call) or found[0].orelse is not None:
        raise UnsupportedError(
            "tile_sums needs a kernel whose programs walk over tiles in a `for` loop", where=store.span, help=_HELP
        )
    tiles = {tile.name for tile in context.program.kernel.tile_ids if tile.form == "persistent_for"}
    if not m.matches(found[0].target, m.Name()) or _code(found[0].target) not in tiles:
        raise UnsupportedError(
            f"tile_sums needs a loop over tiles, and no tile_id names `{_code(found[0].target)}`, which this one is over",
            where=context.program.kernel.span,
            help=f"for tile in tl.range(tl.program_id(0), tiles, programs), or {_HELP}",
        )
    plain = [argument for argument in found[0].iter.args[:3] if argument.keyword is None]
    if len(plain) < 3:
        raise UnsupportedError(
            "tile_sums needs a tile loop that names its start, end and step",
            where=context.program.kernel.span,
            help=f"tl.range(start, end, step), or {_HELP}",
        )
    return found[0]


def _lines(node: cst.CSTNode) -> list[cst.EmptyLine]:
    found: list[cst.EmptyLine] = []

    class Lines(cst.CSTVisitor):
        def visit_EmptyLine(self, node: cst.EmptyLine) -> None:
            found.append(node)

    node.visit(Lines())
    return found


def _over(loop: cst.For, start: str, stop: str) -> cst.For:
    """The loop from another start to another end."""
    assert isinstance(loop.iter, cst.Call)
    first, end, *rest = loop.iter.args
    arguments = [
        first.with_changes(value=cst.parse_expression(start)),
        end.with_changes(value=cst.parse_expression(stop)),
        *rest,
    ]
    return loop.with_changes(iter=loop.iter.with_changes(args=arguments))


class _Own(cst.CSTTransformer):
    """The loop over the own tiles: waits behind the dispatch region, another store, nothing counted."""

    def __init__(self, context: Context, store: Access) -> None:
        super().__init__()
        self.context, self.access = context, store
        self.region = store.region or 0
        ol, names = context.names.language, context.names
        region = context.program.kernel.regions[self.region]
        (on,) = context.produced
        self.pids = dict(region.pid_map)
        self.through = self.pids[on.axis] if on.axis in self.pids else next(iter(self.pids.values()))
        self.placed = m.SimpleStatementLine(
            body=[m.Assign(value=m.Call(func=m.Attribute(value=m.Name(ol), attr=m.Name("place"))))]
        )
        desc = m.Name(store.tensor)
        by_method = m.Call(func=m.Attribute(value=desc, attr=m.Name("store")))
        by_function = m.Call(
            func=m.Attribute(attr=m.Name("store_tensor_descriptor")), args=[m.Arg(value=desc), m.ZeroOrMore()]
        )
        self.store = m.SimpleStatementLine(body=[m.Expr(by_method | by_function)])
        seen, run = names.local("seen", self.region), names.local("run", self.region)
        self.run, self.seen = run, seen
        said = f"# Wait for what other ranks send of the tile; its summands' loads depend on the wait through {self.through}.\n"
        given = ", ".join([names.local("table"), run, *map(names.local, ("state", "epoch", "summands"))])
        self.wait = statements(
            f"{said}{seen} = {ol}.wait_summands({given})\n{self.through} = {ol}.after({self.through}, {seen})\n"
        )
        self.stored = 0

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body: list[cst.BaseStatement] = []
        last = max((i for i, s in enumerate(updated_node.body) if m.matches(s, self.placed)), default=-1)
        for number, statement in enumerate(updated_node.body):
            if m.matches(statement, _COUNTS):
                continue
            body.append(self._finished(statement) if m.matches(statement, self.store) else statement)
            if number == last:
                body += self.wait
        return updated_node.with_changes(body=body)

    def leave_EmptyLine(
        self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine
    ) -> cst.EmptyLine | cst.RemovalSentinel:
        # What pragmas say they say in the first loop.
        return cst.RemoveFromParent() if pragma_of(updated_node) else updated_node

    def _finished(self, statement: cst.BaseStatement) -> cst.BaseStatement:
        assert isinstance(statement, cst.SimpleStatementLine)
        expression = statement.body[0]
        assert isinstance(expression, cst.Expr) and isinstance(expression.value, cst.Call)
        _, offsets, value = store_parts(expression.value, self.access)
        names = self.context.names
        ol = names.language
        given = [
            names.local("result"),
            _code(value),
            names.local("table"),
            self.run,
            names.local("sums"),
            names.local("summands"),
        ]
        given += [_code(element.value) for element in offsets]
        (changed,) = statements(f"{ol}.finish_tile(\n    " + ",\n    ".join(given) + ",\n)\n")
        said = "Add what other ranks have sent of the tile, and store it where the result goes."
        self.stored += 1
        return changed.with_changes(leading_lines=[*_plain(statement), comment(said)])


def _plain(statement: cst.SimpleStatementLine) -> Sequence[cst.EmptyLine]:
    return [line for line in statement.leading_lines if pragma_of(line) is None]


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)
