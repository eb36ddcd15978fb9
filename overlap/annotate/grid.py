"""Tile axes and tile ids: what `axis_count`, `tile_id` and `num_tiles` say about the statements under them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from overlap.errors import PragmaError, SourceSpan

from .discover import KernelSource
from .expressions import Evaluator
from .index import Atom, IndexExpr, size_expr
from .model import Axis, Param, TileId
from .names import Names, blocks, parameters, statements, writes
from .pragmas import Pragma, nearest
from .source import SourceUnit


def read_params(node: ast.FunctionDef) -> tuple[Param, ...]:
    """Parameters with annotation and default as written."""
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults: dict[str, ast.expr] = {}
    if args.defaults:
        defaults = {a.arg: d for a, d in zip(positional[-len(args.defaults) :], args.defaults, strict=True)}
    defaults |= {a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None}
    return tuple(
        Param(
            a.arg,
            ast.unparse(a.annotation) if a.annotation else "",
            ast.unparse(defaults[a.arg]) if a.arg in defaults else None,
        )
        for a in parameters(node)
    )


def anchor(kernel: KernelSource, pragma: Pragma) -> ast.stmt | None:
    """The statement a pragma stands over: the one on its line for a trailing comment, else the next one."""
    for statement in statements(kernel.node):
        if pragma.trailing and statement.lineno <= pragma.line <= (statement.end_lineno or statement.lineno):
            if not hasattr(statement, "body"):
                return statement
        elif statement.lineno > pragma.line and not pragma.trailing:
            return statement
    return None


def read_axes(
    unit: SourceUnit, kernel: KernelSource, names: Names, host_axes: Sequence[tuple[str, SourceSpan]]
) -> tuple[tuple[Axis, ...], dict[tuple[str, int], str]]:
    """The declared axes, then the range axes that only ``host_entry`` names.

    The second result maps (variable, line) of an assignment to the axis whose number of tiles it holds.

    Raises:
        PragmaError: an axis declared twice, an extent or block that is no parameter, a count of something else.
    """
    params = [p.name for p in read_params(kernel.node)]
    axes: dict[str, Axis] = {}
    counts: dict[tuple[str, int], str] = {}
    for pragma in (p for p in kernel.pragmas if p.name == "axis_count"):
        number = names.constant(pragma.block or "") if pragma.block not in params else None
        if number is not None:
            pragma = replace(pragma, block=str(number))
        if pragma.axis in axes:
            first = axes[pragma.axis].span.line
            raise PragmaError(f"axis {pragma.axis} is declared twice (first on line {first})", where=pragma.span)
        extent = pragma.extent or pragma.axis
        if extent not in params and (pragma.extent or not pragma.range):
            raise PragmaError(
                f"axis {pragma.axis}: `{extent}` is no parameter of {kernel.node.name}{nearest(extent, params)}",
                where=pragma.span,
                help=f"an axis has the name of the parameter with its extent; else write {pragma.axis}=PARAMETER",
            )
        if pragma.block and not pragma.block.isdecimal() and pragma.block not in params:
            raise PragmaError(
                f"axis {pragma.axis}: block `{pragma.block}` is no parameter of {kernel.node.name}"
                f"{nearest(pragma.block, params)}",
                where=pragma.span,
                help="write the kernel parameter that holds the block size, or a number, such as block=1 for one row a tile",
            )
        if pragma.block:
            _check_unchanged(unit, kernel, names, pragma, (extent, pragma.block))
        assigned = _count(unit, kernel, names, pragma, extent) if pragma.block else None
        if assigned:
            counts[assigned] = pragma.axis
            _check_once(unit, kernel, pragma, assigned)
        axes[pragma.axis] = Axis(pragma.axis, extent, pragma.block, assigned[0] if assigned else None, pragma.span)
    for name, span in host_axes:
        if name not in axes and name in params:
            axes[name] = Axis(name, name, None, None, span)
    return tuple(axes.values()), counts


def _count(unit: SourceUnit, kernel: KernelSource, names: Names, pragma: Pragma, extent: str) -> tuple[str, int] | None:
    """Where the number of tiles is assigned: under the pragma, or else the one place that divides extent by block."""
    assert pragma.block
    params = frozenset(p.name for p in read_params(kernel.node))
    block = size_expr(pragma.block)
    wanted = _param(extent).cdiv(block)
    found: list[tuple[str, int]] = []
    under = anchor(kernel, pragma)
    for statement in statements(kernel.node):
        target = single_target(statement)
        if target is None or not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        value = Evaluator(names, frozenset(), params, {}).value(statement.value)
        if value == wanted:
            found.append((target.id, target.lineno))
            if statement is under:
                return found[-1]
        elif statement is under and isinstance(value, IndexExpr) and (atom := value.as_atom()) and atom.kind == "cdiv":
            if (atom.args[0] == _param(extent)) != (atom.args[1] == block):
                raise PragmaError(
                    f"axis {pragma.axis} has extent {extent} and block {pragma.block}, but `{target.id}` is {value}",
                    where=unit.span_of(statement),
                    help=f"correct the pragma on line {pragma.line} or the statement",
                )
    return found[0] if len(found) == 1 else None


def _check_unchanged(
    unit: SourceUnit, kernel: KernelSource, names: Names, pragma: Pragma, params: tuple[str, str]
) -> None:
    """Extent and block keep the value they were passed; ``M = tl.multiple_of(M, 8)`` does, ``M = M // 2`` does not."""
    for statement in statements(kernel.node):
        if hasattr(statement, "body"):
            continue
        for name in writes(statement) & set(params):
            value = None
            if isinstance(statement, ast.Assign) and single_target(statement) is not None:
                value = Evaluator(names, frozenset(), frozenset(params), {}).value(statement.value)
            if value != _param(name):
                raise PragmaError(
                    f"axis {pragma.axis}: the kernel changes `{name}`, so its tiles cannot be counted at launch",
                    where=unit.span_of(statement),
                    help="compute the value in the host function and pass it as the parameter",
                )


def _check_once(unit: SourceUnit, kernel: KernelSource, pragma: Pragma, assigned: tuple[str, int]) -> None:
    name, line = assigned
    for statement in statements(kernel.node):
        if name in writes(statement) and not hasattr(statement, "body") and statement.lineno != line:
            raise PragmaError(
                f"axis {pragma.axis}: `{name}` counts its tiles on line {line} and is assigned again here",
                where=unit.span_of(statement),
                help="use another name for the other value",
            )


def _param(name: str) -> IndexExpr:
    return IndexExpr.of(Atom("param", name))


def single_target(statement: ast.stmt) -> ast.Name | None:
    """The variable of ``x = ...`` or ``x: T = ...``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target
    return None


def read_tile_ids(unit: SourceUnit, kernel: KernelSource) -> tuple[TileId, ...]:
    """Tile ids and how each advances.

    Raises:
        PragmaError: the pragma stands over no assignment or loop, or the variable does not advance as it says.
    """
    found: dict[str, TileId] = {}
    params = [p.name for p in read_params(kernel.node)]
    for pragma in (p for p in kernel.pragmas if p.name == "tile_id"):
        statement = anchor(kernel, pragma)
        span = pragma.span
        if pragma.left and pragma.left not in params:
            raise PragmaError(
                f"tile_id left={pragma.left}: `{pragma.left}` is no parameter of {kernel.node.name}"
                f"{nearest(pragma.left, params)}",
                where=span,
                help="the parameter says how many of the last tiles another launch makes",
            )
        if isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            tile = TileId(statement.target.id, "persistent_for", span, pragma.left)
        elif statement is not None and (target := single_target(statement)):
            advances = _advances(kernel.node, target.id, statement)
            if pragma.persistent and not advances:
                raise PragmaError(
                    f"tile_id persistent: `{target.id}` never advances in a loop",
                    where=span,
                    help="drop `persistent` for one tile a program, or put the pragma over the tile loop itself",
                )
            tile = TileId(target.id, "persistent_assign" if advances else "assign", span)
        else:
            raise PragmaError(
                "tile_id stands over neither an assignment to one variable nor a `for` with one",
                where=span,
                help="put it right above `pid = tl.program_id(0)` or above the tile loop",
            )
        if pragma.left and tile.form != "persistent_for":
            raise PragmaError(
                f"tile_id left={pragma.left}: the tiles of `{tile.name}` are not those of a `for` loop",
                where=span,
                help="put the pragma over `for tile in tl.range(tl.program_id(0), tiles - left, programs)`",
            )
        if tile.name in found:
            raise PragmaError(
                f"`{tile.name}` is declared a tile id twice (first on line {found[tile.name].span.line})", where=span
            )
        found[tile.name] = tile
    for pragma in (p for p in kernel.pragmas if p.name == "num_tiles"):
        statement = anchor(kernel, pragma)
        if statement is None or single_target(statement) is None:
            raise PragmaError("num_tiles stands over no assignment", where=pragma.span)
    return tuple(found.values())


def _advances(node: ast.FunctionDef, name: str, first: ast.stmt) -> bool:
    """Whether ``name`` is assigned again inside a loop."""
    for owner, body in blocks(node):
        if isinstance(owner, (ast.For, ast.While)):
            for inner in ast.walk(ast.Module(body, [])):
                if isinstance(inner, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and inner is not first:
                    targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                    if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                        return True
    return False
