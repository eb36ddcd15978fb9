"""Refusals that need the evaluated kernel.

Tile ids that are none, stream-K, split-K, program ids in addresses, regions that disagree, launch options.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from overlap.errors import PragmaError, UnsupportedError

from .discover import KernelSource
from .evaluate import Walk
from .grid import read_params
from .index import Atom, IndexExpr
from .model import Axis, HostEntry, TileId
from .names import Names, writes
from .regions import RegionSource
from .source import SourceUnit
from .values import RawAccess, leaves


def check_tile_ids(
    unit: SourceUnit, axes: Sequence[Axis], tile_ids: Sequence[TileId], regions: Sequence[RegionSource], walk: Walk
) -> None:
    """Every tile id starts as ``program_id(0)``, steps by an invariant, and every region reads one.

    Raises:
        UnsupportedError: stream-K.
        PragmaError: any other value.
    """
    inner = {a.extent: a.name for a in axes if a.block is None}
    for region in regions:
        if region.index not in walk.region_values:
            raise PragmaError(
                "the dispatch region is never reached", where=region.begin.span, help="remove the return above"
            )
        for variable, value in walk.region_values[region.index].items():
            if hit := {leaf.name for leaf in leaves(value)} & set(inner):
                raise _stream_k(unit, region.body[-1], f"`{variable}` depends on {min(hit)}")
    for (name, line), value in walk.tile_values.items():
        tile = next(t for t in tile_ids if t.name == name)
        if hit := {leaf.name for leaf in leaves(value)} & set(inner):
            raise _stream_k(unit, line, f"tile id `{name}` depends on {min(hit)}")
        quotient = value.as_atom() if isinstance(value, IndexExpr) else None
        if quotient is not None and quotient.kind == "floordiv":
            raise _stream_k(unit, line, f"tile id `{name}` is a quotient, {value}")
        start = IndexExpr.of(Atom("tile_id", name))
        program = IndexExpr.of(Atom("program_id", "program_id(0)", args=(IndexExpr(),)))
        if not isinstance(value, IndexExpr):
            ok = False
        elif tile.form == "persistent_assign":
            ok = (value - start).is_invariant or (value - program).is_invariant
        else:
            ok = value == program
        if not ok:
            raise PragmaError(
                f"tile id `{name}` is {value}, not program_id(0)",
                where=unit.span(line, len(unit.lines[line - 1]) - len(unit.lines[line - 1].lstrip()) + 1, len(name)),
                help="a tile id is tl.program_id(0), or starts there and advances by a fixed step",
            )
    _check_tile_loops(unit, axes, tile_ids, walk)
    if tile_ids:
        for region in regions:
            if region.tile_id is None:
                raise PragmaError(
                    "the dispatch region reads no tile id",
                    where=region.begin.span,
                    help=f"compute the pids from {', '.join(f'`{t.name}`' for t in tile_ids)}",
                )


def _check_tile_loops(unit: SourceUnit, axes: Sequence[Axis], tile_ids: Sequence[TileId], walk: Walk) -> None:
    """A tile loop runs over as many tiles as the axes have, less those that it leaves out, where that can be told."""
    tiles = IndexExpr.constant(1)
    for axis in axes:
        if axis.block is not None:
            tiles *= IndexExpr.of(Atom("param", axis.extent)).cdiv(axis.block_expr)
    by_name = {a.name: a for a in axes}
    left = {tile.name: tile.left for tile in tile_ids}
    for name, (node, bounds) in walk.tile_loops.items():
        if (
            len(bounds) < 2
            or not bounds[1].is_invariant
            or any(x.kind == "opaque" for f, _ in bounds[1].terms for x in f)
        ):
            continue
        stop = bounds[1].replaced(
            lambda atom: (
                IndexExpr.of(Atom("param", by_name[atom.axis].extent)).cdiv(by_name[atom.axis].block_expr)
                if atom.kind == "count" and atom.axis in by_name
                else None
            )
        )
        made = tiles - IndexExpr.of(Atom("param", left[name])) if left.get(name) else tiles
        if stop != made:
            but = f", of which `{left[name]}` are left out" if left.get(name) else ""
            raise PragmaError(
                f"the loop over `{name}` runs to {bounds[1]}, but the tile axes have {tiles} tiles{but}",
                where=unit.span_of(node),
                help="declare every axis that the tile id numbers",
            )


def _stream_k(unit: SourceUnit, where: ast.stmt | int, why: str) -> UnsupportedError:
    span = unit.span(where) if isinstance(where, int) else unit.span_of(where)
    return UnsupportedError(
        f"stream-K: {why}, so programs take ranges of iterations and not whole tiles",
        where=span,
        help="this version needs one program a tile; use a persistent or grouped kernel",
    )


def check_taint(unit: SourceUnit, raw: RawAccess, all_accesses: Sequence[RawAccess], axes: Sequence[Axis]) -> None:
    """Refuses addresses made from a tile or program id other than through the pid-map variables.

    Raises:
        UnsupportedError: split-K, by name.
        PragmaError: any other use.
    """
    if raw.escapes:
        return
    index = [raw.base, *(raw.offsets or ())]
    raw_ids = {leaf for e in index for leaf in e.leaves() if leaf.kind in ("tile_id", "program_id")}
    if not raw_ids:
        return
    name = min(str(leaf) for leaf in raw_ids)
    span = unit.span_of(raw.node)
    if _splits_k(index, raw_ids, all_accesses, axes):
        raise UnsupportedError(
            f"split-K: {name} partitions the K loop, so a tile is the sum of several programs",
            where=span,
            help="declare the split as a tile axis, # @overlap.axis_count K block=BLOCK_SPLIT, and put its coordinate into "
            "the pid_map; or use a kernel without split-K",
        )
    raise PragmaError(
        f"{name} is used in an address outside the dispatch region",
        where=span,
        help="addresses may use tile coordinates only; add the missing axis to the pid_map",
    )


def _splits_k(
    index: Sequence[IndexExpr], raw_ids: set[Atom], accesses: Sequence[RawAccess], axes: Sequence[Axis]
) -> bool:
    if any(a.mode == "reduce" for a in accesses):
        return True
    inner = {a.extent for a in axes if a.block is None}
    for e in index:
        loops = [leaf for leaf in e.leaves() if leaf.kind == "loop"]
        # The id decides where a K loop starts or ends, or stands beside it in one sum.
        if any(any(i in raw_ids for i in loop.leaves()) for loop in loops):
            return True
        if any({i.name for i in loop.leaves()} & inner for loop in loops):
            for factors, _ in e.terms:
                with_id = [a for a in factors if set(a.leaves()) & raw_ids]
                strides = {a for a in factors if a.kind == "param"}
                same = (f for f, _ in e.terms if any(a.kind == "loop" for a in f))
                if with_id and any(strides & {a for a in f if a.kind == "param"} for f in same):
                    return True
    return False


def check_regions_agree(unit: SourceUnit, regions: Sequence[RegionSource]) -> None:
    """All regions compute the same map of their own tile id.

    Raises:
        PragmaError: a region whose statements differ from the first one's.
    """
    wanted = _normalized(regions[0])
    for region in regions[1:]:
        if _normalized(region) != wanted:
            raise PragmaError(
                f"this dispatch region maps tiles otherwise than the one on line {regions[0].begin.line}",
                where=region.begin.span,
                help="all regions of a kernel compute the same map, each from its own tile id",
            )


def _normalized(region: RegionSource) -> str:
    """The region's statements with tile id, coordinates and helper variables renamed by role."""
    names: dict[str, str] = {variable: f"axis {axis}" for axis, variable in region.pid_map.pairs}
    if region.tile_id:
        names[region.tile_id] = "tile id"
    for statement in region.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in writes(statement):
                names.setdefault(node.id, f"value {len(names)}")

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:  # noqa: N802  the visitor's own spelling
            return ast.Name(names.get(node.id, node.id), node.ctx)

    copies = [ast.parse(ast.unparse(s)) for s in region.body]
    return "\n".join(ast.dump(Rename().visit(copy)) for copy in copies)


def check_launch_options(unit: SourceUnit, kernel: KernelSource, names: Names, host: HostEntry | None) -> None:
    """Refuses warp specialisation and clusters: only some threads of the program would wait.

    Raises:
        UnsupportedError: ``warp_specialize=True`` in a loop, ``num_ctas`` above 1 in a configuration.
    """
    passed = {p.name: p.default for p in read_params(kernel.node)} | (dict(host.kernel_args) if host else {})
    for node in ast.walk(kernel.node):
        if isinstance(node, ast.keyword) and node.arg == "warp_specialize":
            value = node.value
            on = isinstance(value, ast.Constant) and bool(value.value)
            if isinstance(value, ast.Name):
                on = passed.get(value.id) == "True"
            if on:
                raise UnsupportedError(
                    "warp_specialize: a wait in a warp-specialised loop holds one partition only",
                    where=unit.span_of(value),
                    help="write warp_specialize=False",
                )
    sources: list[ast.AST] = list(kernel.node.decorator_list)
    used = {n.id for d in sources for n in ast.walk(d) if isinstance(n, ast.Name)}
    sources += [
        s
        for s in ast.walk(unit.tree)
        if isinstance(s, (ast.Assign, ast.FunctionDef)) and (writes(s) | {getattr(s, "name", "")}) & used
    ]
    for source in sources:
        for node in ast.walk(source):
            if isinstance(node, ast.keyword) and node.arg == "num_ctas":
                if not (isinstance(node.value, ast.Constant) and node.value.value in (1, None)):
                    raise UnsupportedError(
                        "num_ctas above 1: only the first program of a cluster would wait",
                        where=unit.span_of(node.value),
                        help="configure num_ctas=1",
                    )


def returns_after_dispatch(unit: SourceUnit, kernel: str, first_end_line: int) -> tuple[int, ...]:
    """Lines of ``return`` statements of a kernel below its first dispatch region and before its last statement.

    ``kernel`` is the model's ``qualname``. A program that leaves there would never raise its flags.
    """
    from .names import functions

    node = next(n for path, n in functions(unit.tree) if ".".join((*path, n.name)) == kernel)
    last = node.body[-1]
    return tuple(
        sorted(
            r.lineno
            for r in ast.walk(node)
            if isinstance(r, ast.Return) and r.lineno > first_end_line and r is not last
        )
    )
