"""The backward slice of a dispatch region: every statement that feeds its pid map.

It starts at the pid-map variables and goes back through the region, then through what stands before it, and stops at
counts, tile ids, parameters, globals and ``program_id``. Rebasing recomputes exactly these statements on a run's own
counts and extents, so anything whose meaning that would change is refused here.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from overlap.errors import PragmaError, UnsupportedError

from .expressions import Evaluator
from .model import Axis, SliceStatement
from .names import callee, reads, writes
from .regions import RegionSource
from .source import SourceUnit


@dataclass(frozen=True)
class SliceContext:
    """What the slice of any region of a kernel stops at."""

    unit: SourceUnit
    kernel: ast.FunctionDef
    params: frozenset[str]
    locals: frozenset[str]
    axes: tuple[Axis, ...]
    tile_ids: frozenset[str]
    counts: frozenset[str]
    evaluator: Evaluator


def slice_region(context: SliceContext, region: RegionSource) -> tuple[SliceStatement, ...]:
    """The slice, outside statements first, each part in source order.

    Raises:
        PragmaError: a program id read beside the tile id.
        UnsupportedError: a statement in a loop, a load, or a helper that reads program ids.
    """
    wanted = {variable for _, variable in region.pid_map.pairs}
    inside: list[ast.stmt] = []
    for statement in reversed(region.body):
        if writes(statement) & wanted:
            inside.insert(0, statement)
            if not hasattr(statement, "body") or _always_writes(statement, writes(statement) & wanted):
                wanted -= writes(statement)
            wanted |= _inputs(context, statement)
        elif isinstance(statement, ast.Assign) and writes(statement) == {region.tile_id}:
            inside.insert(0, statement)  # the tile id's own assignment belongs to the map where it stands inside
    outside = _before(context, region, wanted & context.locals - context.params)
    for statement in (*outside, *inside):
        _check(context, region, statement)
    return tuple(_noun(context, s, inside=False) for s in outside) + tuple(
        _noun(context, s, inside=True) for s in inside
    )


def _inputs(context: SliceContext, statement: ast.stmt) -> set[str]:
    return {
        n for n in reads(statement) if n in context.locals and n not in context.tile_ids and n not in context.counts
    }


def _before(context: SliceContext, region: RegionSource, wanted: set[str]) -> list[ast.stmt]:
    """Statements before the region that define ``wanted``, in source order."""
    found: list[ast.stmt] = []
    block, position = region.block, region.block.index(region.body[0])
    parents = list(region.parents)
    while True:
        for statement in reversed(block[:position]):
            hit = writes(statement) & wanted
            if not hit:
                continue
            if isinstance(statement, (ast.For, ast.While)):
                raise UnsupportedError(
                    f"`{min(hit)}`, which feeds the tile coordinates, is computed in a loop",
                    where=context.unit.span_of(statement),
                    help="compute it without a loop, or inside the dispatch region",
                )
            found.insert(0, statement)
            if not hasattr(statement, "body") or _always_writes(statement, hit):
                wanted = wanted - hit
            wanted = wanted | (_inputs(context, statement) & context.locals - context.params)
        if not parents:
            return found
        parent = parents.pop()
        if isinstance(parent, (ast.For, ast.While)):
            _check_carried(context, region, parent, wanted)
        outer = parents[-1] if parents else context.kernel
        block = next(b for b in _bodies(outer) if parent in b)
        position = block.index(parent)  # type: ignore[arg-type]


def _bodies(node: ast.AST) -> list[list[ast.stmt]]:
    return [b for name in ("body", "orelse", "finalbody") if (b := getattr(node, name, None))]


def _always_writes(statement: ast.stmt, names: set[str]) -> bool:
    """Whether every branch of an ``if`` assigns all of ``names``."""
    if not isinstance(statement, ast.If):
        return False
    for body in (statement.body, statement.orelse):
        sure = {n for s in body for n in (writes(s) if not hasattr(s, "body") else ())}
        sure |= {n for s in body if isinstance(s, ast.If) for n in names if _always_writes(s, {n})}
        if not names <= sure:
            return False
    return True


def _check_carried(context: SliceContext, region: RegionSource, loop: ast.For | ast.While, wanted: set[str]) -> None:
    """Refuses values that the loop itself makes."""
    if isinstance(loop, ast.For) and (hit := writes(loop.target) & wanted):
        raise UnsupportedError(
            f"the tile coordinates depend on `{min(hit)}`, the target of a loop that is no tile loop",
            where=context.unit.span_of(loop),
            help="mark the tile loop with `# @overlap.tile_id persistent`; a region in any other loop is not supported",
        )
    for statement in loop.body:
        if hit := writes(statement) & wanted - {n for s in region.body for n in writes(s)}:
            raise UnsupportedError(
                f"`{min(hit)}`, which feeds the tile coordinates, is carried from one iteration to the next",
                where=context.unit.span_of(statement),
                help="compute it from the tile id, before the dispatch region",
            )


def _check(context: SliceContext, region: RegionSource, statement: ast.stmt) -> None:
    """Refuses statements that cannot be recomputed on a run's counts."""
    unit = context.unit
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call):
            continue
        called = callee(node, context.locals, context.evaluator.names)
        helper = context.evaluator.helpers.get(called.name) if called.kind == "function" else None
        if (
            called.name in ("load", "gather")
            or called.name.startswith("atomic_")
            or (helper and context.evaluator.calls(helper, "load", "gather", "atomic"))
        ):
            raise UnsupportedError(
                "the tile coordinates depend on loaded data",
                where=unit.span_of(node),
                help="this version needs a map computed from the tile id and the tile counts alone",
            )
        if writes(statement) == {region.tile_id}:
            continue
        is_grid = called.name in ("program_id", "num_programs")
        if is_grid and region.tile_id is not None:
            raise PragmaError(
                f"the dispatch region reads {ast.unparse(node)} beside its tile id `{region.tile_id}`",
                where=unit.span_of(node),
                help="compute the coordinates from the tile id and the tile counts",
            )
        if helper and context.evaluator.calls(helper, "program_id", "num_programs"):
            raise UnsupportedError(
                f"helper `{called.name}` reads program ids",
                where=unit.span_of(node),
                help="read tl.program_id in the kernel and pass it to the helper",
            )


def _noun(context: SliceContext, statement: ast.stmt, *, inside: bool) -> SliceStatement:
    read = reads(statement)
    local = read & (context.locals | context.params)
    return SliceStatement(
        text=context.unit.text_of(statement),
        targets=tuple(sorted(writes(statement), key=lambda n: _position(statement, n))),
        reads=tuple(sorted(local, key=lambda n: _position(statement, n))),
        line=statement.lineno,
        inside=inside,
        globals=tuple(sorted(read - local, key=lambda n: _position(statement, n))),
    )


def _position(statement: ast.stmt, name: str) -> tuple[int, int]:
    return min((n.lineno, n.col_offset) for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name)


def check_leaks(
    context: SliceContext, regions: Sequence[RegionSource], slices: Sequence[tuple[SliceStatement, ...]]
) -> None:
    """Refuses values that are computed inside a region and used where their meaning would change.

    Raises:
        PragmaError: a helper variable of the region read after it, or a statement in it that is no part of the map.
    """
    for region, nouns in zip(regions, slices, strict=True):
        sliced = {s.line for s in nouns if s.inside}
        local = {name for s in region.body if s.lineno in sliced for name in writes(s)}
        changed = local | {region.tile_id} | set(context.counts)
        for statement in region.body:
            if statement.lineno not in sliced and (hit := reads(statement) & changed - {None}):
                raise PragmaError(
                    f"`{min(n for n in hit if n)}` is used in the dispatch region by a statement that makes no pid",
                    where=context.unit.span_of(statement),
                    help="move the statement below `# @overlap.dispatch end`",
                )
        mapped = {variable for _, variable in region.pid_map.pairs}
        for name in sorted(local - mapped):
            if reader := _first_reader(context, region, name):
                raise PragmaError(
                    f"`{name}` is computed in the dispatch region and used after it",
                    where=context.unit.span_of(reader),
                    help="only the pid_map variables keep their meaning; move the rest below `dispatch end`",
                )


def _first_reader(context: SliceContext, region: RegionSource, name: str) -> ast.AST | None:
    """The first use of ``name`` that a value from the region can reach."""
    chain: list[tuple[list[ast.stmt], int]] = [(region.block, region.block.index(region.body[-1]) + 1)]
    parents = [context.kernel, *region.parents]
    for outer, parent in zip(reversed(parents[:-1]), reversed(parents[1:]), strict=True):
        if isinstance(parent, (ast.For, ast.While)):
            chain.append((parent.body, 0))  # the next iteration
        block = next(b for b in _bodies(outer) if parent in b)
        chain.append((block, block.index(parent) + 1))  # type: ignore[arg-type]
    for block, start in chain:
        for statement in block[start:]:
            if statement is region.body[0]:
                break
            use = _use(statement, name)
            if use is not None:
                return use
            if name in writes(statement) and not hasattr(statement, "body"):
                return None
    return None


def _use(statement: ast.stmt, name: str) -> ast.AST | None:
    """Where a statement reads ``name`` before it can have assigned it."""
    if isinstance(statement, (ast.For, ast.While, ast.If, ast.With)):
        heads = [e for e in ast.iter_child_nodes(statement) if isinstance(e, ast.expr)]
        for head in heads:
            if name in reads(head):
                return head
        for body in _bodies(statement):
            for inner in body:
                use = _use(inner, name)
                if use is not None:
                    return use
                if name in writes(inner):
                    break
        return None
    return statement if name in reads(statement) else None
