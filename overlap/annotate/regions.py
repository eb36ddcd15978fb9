"""Dispatch regions as they stand in the file: begin, end, the statements between, the pid map."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from overlap.errors import PragmaError, UnsupportedError

from .discover import KernelSource
from .model import Axis, TileId
from .names import blocks, reads, writes
from .pragmas import Pragma, nearest
from .source import SourceUnit


@dataclass(frozen=True)
class RegionSource:
    """A region before its slice is known.

    ``body`` are its statements, ``block`` the whole statement list they stand in, ``parents`` the enclosing compound
    statements, outermost first.
    """

    index: int
    begin: Pragma
    end: Pragma
    pid_map: Pragma
    body: tuple[ast.stmt, ...]
    block: list[ast.stmt]
    parents: tuple[ast.AST, ...]
    tile_id: str | None


def read_regions(
    unit: SourceUnit, kernel: KernelSource, axes: Sequence[Axis], tile_ids: Sequence[TileId]
) -> tuple[RegionSource, ...]:
    """Pairs begin and end and finds what is between.

    Raises:
        PragmaError: unclosed, nested or empty regions, a region without a pid map or with two, an axis nobody declares,
            a variable the region does not assign, a region that reads two tile ids, or regions over different axes.
    """
    if not any(p.name == "dispatch" for p in kernel.pragmas):
        raise PragmaError(
            f"kernel `{kernel.node.name}` has no dispatch region",
            where=unit.span_of(kernel.node),
            help="put `# @overlap.dispatch begin` and `# @overlap.dispatch end` around what makes the pids",
        )
    regions: list[RegionSource] = []
    begin: Pragma | None = None
    maps: list[Pragma] = []
    for pragma in kernel.pragmas:
        if pragma.name == "pid_map":
            if begin is None:
                raise PragmaError("pid_map stands outside a dispatch region", where=pragma.span)
            maps.append(pragma)
        if pragma.name != "dispatch":
            continue
        if pragma.edge == "begin":
            if begin is not None:
                raise PragmaError(
                    f"dispatch begin inside the region that begins on line {begin.line}",
                    where=pragma.span,
                    help="close that region with `# @overlap.dispatch end` first",
                )
            begin, maps = pragma, []
        else:
            if begin is None:
                raise PragmaError("dispatch end without a begin", where=pragma.span)
            regions.append(_region(unit, kernel, len(regions), begin, pragma, maps, tile_ids))
            begin = None
    if begin is not None:
        raise PragmaError("dispatch begin is never closed", where=begin.span, help="add `# @overlap.dispatch end`")
    _check_axes(regions, axes)
    return tuple(regions)


def _region(
    unit: SourceUnit,
    kernel: KernelSource,
    index: int,
    begin: Pragma,
    end: Pragma,
    maps: list[Pragma],
    tile_ids: Sequence[TileId],
) -> RegionSource:
    if not maps:
        raise PragmaError(
            "the dispatch region has no pid_map",
            where=begin.span,
            help="add inside it: # @overlap.pid_map M=pid_m N=pid_n",
        )
    if len(maps) > 1:
        raise PragmaError(f"a second pid_map in one region (first on line {maps[0].line})", where=maps[1].span)
    body, block, parents = _between(unit, kernel, begin, end)
    assigned = {name for statement in body for name in writes(statement)}
    for axis, variable in maps[0].pairs:
        if variable not in assigned:
            raise PragmaError(
                f"pid_map: `{variable}` (axis {axis}) is not assigned in the region{nearest(variable, assigned)}",
                where=maps[0].span,
                help="put the statement that assigns it between dispatch begin and dispatch end",
            )
    used = {name for statement in body for name in reads(statement)} & {t.name for t in tile_ids}
    if len(used) > 1:
        raise PragmaError(f"the region reads two tile ids: {', '.join(sorted(used))}", where=begin.span)
    return RegionSource(index, begin, end, maps[0], body, block, parents, next(iter(used), None))


def _between(
    unit: SourceUnit, kernel: KernelSource, begin: Pragma, end: Pragma
) -> tuple[tuple[ast.stmt, ...], list[ast.stmt], tuple[ast.AST, ...]]:
    """The statements of a region: consecutive ones of one block."""

    def contains(statement: ast.stmt) -> bool:
        last = statement.end_lineno or statement.lineno
        return statement.lineno > begin.line and (last < end.line or (end.trailing and last == end.line))

    parent_of: dict[int, ast.AST] = {}
    for owner, block in blocks(kernel.node):
        parent_of.update({id(s): owner for s in block})
        body = tuple(s for s in block if contains(s))
        if not body:
            continue
        # Blocks come outermost first. A compound statement that holds one edge only is cut by the region.
        for cut in block:
            last = cut.end_lineno or cut.lineno
            edges = [
                e for e in (begin, end) if cut.lineno <= e.line <= last and not (e.trailing and e.line == cut.lineno)
            ]
            if len(edges) == 1 and cut not in body:
                raise PragmaError(
                    f"dispatch begin (line {begin.line}) and end (line {end.line}) are not in one block",
                    where=edges[0].span,
                    help="both comments belong to the same level of indentation",
                )
        parents: list[ast.AST] = []
        node: ast.AST = owner
        while node is not kernel.node:
            parents.insert(0, node)
            node = parent_of[id(node)]
        return body, block, tuple(parents)
    raise PragmaError(
        "the dispatch region is empty", where=begin.span, help="it goes around the statements that compute the pids"
    )


def _check_axes(regions: list[RegionSource], axes: Sequence[Axis]) -> None:
    declared = {axis.name: axis for axis in axes}
    for region in regions:
        for name, _ in region.pid_map.pairs:
            if name not in declared:
                raise PragmaError(
                    f"pid_map names axis {name}, which nobody declares{nearest(name, declared)}",
                    where=region.pid_map.span,
                    help=f"add: # @overlap.axis_count {name} block=BLOCK_{name}",
                )
            if declared[name].block is None:
                raise PragmaError(
                    f"pid_map names axis {name}, which has no block",
                    where=region.pid_map.span,
                    help=f"declare it a tile axis: # @overlap.axis_count {name} block=BLOCK_{name}",
                )
        mine = {name for name, _ in region.pid_map.pairs}
        first = {name for name, _ in regions[0].pid_map.pairs}
        if mine != first:
            raise PragmaError(
                f"this region maps axes {', '.join(sorted(mine))}, the one on line {regions[0].begin.line} "
                f"maps {', '.join(sorted(first))}",
                where=region.pid_map.span,
                help="all regions of a kernel map the same axes",
            )
    mapped = {name for region in regions for name, _ in region.pid_map.pairs}
    for axis in axes:
        if axis.block is not None and axis.name not in mapped:
            raise PragmaError(
                f"axis {axis.name} is a tile axis, but no pid_map gives its coordinate",
                where=axis.span,
                help=f"add {axis.name}=VARIABLE to the pid_map, or declare {axis.name}=range",
            )


def check_placement(unit: SourceUnit, regions: Sequence[RegionSource], invariant: frozenset[str]) -> None:
    """Refuses regions under a branch inside a loop: the coordinates would be carried from one iteration to the next.

    ``invariant`` are names that a branch may test.

    Raises:
        UnsupportedError: the fused form ``if ki == 0:`` around a region.
    """
    for region in regions:
        in_loop = False
        for parent in region.parents:
            in_loop = in_loop or isinstance(parent, (ast.For, ast.While))
            if in_loop and isinstance(parent, ast.If) and not reads(parent.test) <= invariant | {region.tile_id}:
                raise UnsupportedError(
                    f"a dispatch region under `if {ast.unparse(parent.test)}` inside a loop (a fused tile and K loop)",
                    where=unit.span_of(parent),
                    help="write it as a tile loop around a K loop",
                )
