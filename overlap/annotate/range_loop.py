"""In-tile loops over a range axis: which blocks their loads take, and whether blocks may be taken in any order.

    for k in range(0, tl.cdiv(K, BLOCK_K)):          loop over blocks of K
        a = tl.load(a_ptrs, ...)                     loads block k: the entry plus k steps of BLOCK_K * stride_ak
        acc = tl.dot(a, b, acc)                      a sum: the order of its terms is free
        a_ptrs += BLOCK_K * stride_ak                an advance: its value in block k is known

A gather along K cuts such a loop into parts, one a chunk, and runs them in the order in which chunks arrive. Whatever else
one iteration hands to the next, or to what follows, would depend on that order, and is refused with its line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .access import AccessContext, _affine_atoms, _bases, _inside_block, by_dimension
from .discover import KernelSource
from .evaluate import Walk
from .flow import behind, exposed, names_of, single_update
from .grid import read_params
from .index import Atom, IndexExpr, size_expr
from .model import Advance, Axis, LoopBlock, RangeLoop, Refusal
from .names import statements, writes
from .source import SourceUnit
from .values import RawAccess

_ZERO = IndexExpr()
_ONE = IndexExpr.constant(1)
_SUMS = {"dot": (2, "acc"), "dot_scaled": (6, "acc"), "fma": (2, "z")}
"""Functions that add to an argument: its position and keyword."""
_EXTREMES = frozenset({"maximum", "minimum"})


def read_range_loops(
    unit: SourceUnit, kernel: KernelSource, axes: Sequence[Axis], walk: Walk, tile_names: frozenset[str]
) -> tuple[RangeLoop, ...]:
    """Every loop over all blocks of a range axis, in source order."""
    constexprs = frozenset(p.name for p in read_params(kernel.node) if p.is_constexpr)
    ranged = [a for a in axes if a.block is None]
    loops = [s for s in statements(kernel.node) if isinstance(s, ast.For)]
    found = []
    for number, node in enumerate(loops):
        if isinstance(node.target, ast.Name) and node.target.id in tile_names:
            continue
        for axis in ranged:
            form = _form(walk.bounds.get(id(node), ()), axis, constexprs)
            if form is None:
                continue
            block, elements = form
            checker = _Checker(unit, kernel.node, node, axis.name)
            refusal = checker.refusal()
            found.append(
                RangeLoop(
                    axis=axis.name,
                    block=block,
                    number=number,
                    elements=elements,
                    advances=checker.advances,
                    span=unit.span(node.lineno, node.col_offset + 1, 3),
                    bounds=tuple(sorted({name.id for name in names_of(node.iter)})),
                    end_line=node.end_lineno or node.lineno,
                    refusal=refusal,
                )
            )
            break
    return tuple(found)


def _form(bounds: tuple[IndexExpr, ...], axis: Axis, constexprs: frozenset[str]) -> tuple[str, bool] | None:
    """(block, whether the variable counts elements) of ``range(cdiv(K, BLOCK))`` and ``range(0, K, BLOCK)``."""
    extent = IndexExpr.of(Atom("param", axis.extent))
    if not bounds or len(bounds) > 3 or (len(bounds) > 1 and bounds[0] != _ZERO):
        return None
    stop = bounds[0] if len(bounds) == 1 else bounds[1]
    step = bounds[2] if len(bounds) == 3 else _ONE
    if stop == extent:
        block, elements = _size(step), True
    else:
        atom = stop.as_atom()
        if step != _ONE or atom is None or atom.kind != "cdiv" or atom.args[0] != extent:
            return None
        block, elements = _size(atom.args[1]), False
    known = block is not None and (block in constexprs or block.isdecimal())
    return (block, elements) if block is not None and known else None


def _size(step: IndexExpr) -> str | None:
    """A parameter or a number above zero, as text."""
    number, atom = step.as_int(), step.as_atom()
    if number is not None:
        return str(number) if number > 0 else None
    return atom.name if atom is not None and atom.kind == "param" else None


def loop_blocks(
    context: AccessContext, raw: RawAccess, loops: Mapping[int, RangeLoop]
) -> list[tuple[LoopBlock | None, ...]]:
    """For each access that `access.resolve` makes of ``raw``, the loop whose blocks a dimension is read by.

    Args:
        loops: by line.
    """
    found: list[tuple[LoopBlock | None, ...]] = []
    for param, offset in _bases(context, raw):
        dims = by_dimension(context, raw, param, offset)
        if dims is None or raw.escapes:
            rank = len(context.declared[param].dims) if param in context.declared else 0
            found.append((None,) * rank)
            continue
        found.append(tuple(_loop_block(dim.index, dim.size, loops) for dim in dims))
    return found


def _loop_block(index: IndexExpr, size: IndexExpr | None, loops: Mapping[int, RangeLoop]) -> LoopBlock | None:
    """The loop whose iteration k takes exactly elements of ``[k * block, (k + 1) * block)`` by this index."""
    if (whole := index.as_atom()) is not None and whole.kind == "mod":
        return None
    atoms = {a for a in _affine_atoms(index) if a.kind == "loop" and a.line in loops}
    for atom in atoms:
        loop = loops[atom.line]
        block = size_expr(loop.block)
        rest = index - IndexExpr.of(atom) * block
        if not any(leaf == atom for leaf in rest.leaves()) and _inside_block(rest, size, block):
            return LoopBlock(loop.number, loop.block)
    return None


@dataclass(frozen=True)
class _Update:
    """One statement of the loop that binds a carried variable: the class of what it does, or None if it is no sum."""

    node: ast.stmt
    kind: str | None


class _Checker:
    """What keeps the iterations of one loop from being run in another order."""

    def __init__(self, unit: SourceUnit, kernel: ast.FunctionDef, node: ast.For, axis: str) -> None:
        self.unit = unit
        self.kernel = kernel
        self.node = node
        self.axis = axis
        self.advances: tuple[Advance, ...] = ()

    def refusal(self) -> Refusal | None:
        """The first reason, or None; sets ``advances``."""
        return next(self._reasons(), None)

    def _refuse(self, node: ast.AST, message: str, help: str) -> Refusal:
        return Refusal(message, self.unit.span_of(node), help)

    def _reasons(self) -> Iterator[Refusal]:
        node = self.node
        where = f"the loop over {self.axis} on line {node.lineno}"
        if not isinstance(node.target, ast.Name):
            yield self._refuse(node.target, f"{where} has no single variable", "write `for k in range(...)`")
            return
        name = ast.unparse(node.iter.func).split(".")[-1] if isinstance(node.iter, ast.Call) else ""
        if name not in ("range",):
            yield self._refuse(
                node.iter,
                f"{where} is unrolled, and how many blocks a chunk has is known at launch only",
                "write `range` or `tl.range`",
            )
        if node.orelse:
            yield self._refuse(node.orelse[0], f"{where} has an `else`", "write the statement behind the loop")
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Break, ast.Continue, ast.Return)):
                kind = type(inner).__name__.lower()
                yield self._refuse(inner, f"`{kind}` in {where}", "mask the work instead of leaving the iteration")
        written = {name for s in node.body for name in writes(s)}
        carried = sorted(exposed(node.body, frozenset({node.target.id})) & written)
        advances = []
        for variable in carried:
            if self._accumulates(variable):
                continue
            advance = self._advance(variable, written | {node.target.id})
            if advance is None:
                yield self._order_matters(variable, where)
            else:
                advances.append(advance)
        self.advances = tuple(advances)
        sums = {v for v in carried if v not in {a.name for a in advances}}
        for read in behind(self.kernel, node, frozenset((written - sums) | {node.target.id})):
            yield self._refuse(
                read,
                f"`{read.id}` is read here as the last iteration of {where} left it",
                "compute it again behind the loop: the block that is taken last is not the last block",
            )

    def _updates(self, variable: str) -> list[_Update]:
        found = []
        for statement in (s for s in statements(self.node) if not hasattr(s, "body")):
            if variable in writes(statement):
                found.append(_Update(statement, _sum_kind(statement, variable)))
        for inner in ast.walk(self.node):
            if isinstance(inner, (ast.For, ast.With, ast.NamedExpr)) and inner is not self.node:
                target = inner.items if isinstance(inner, ast.With) else inner.target  # type: ignore[attr-defined]
                for part in target if isinstance(target, list) else [target]:
                    if variable in writes(part):
                        found.append(_Update(self.node, None))
        return found

    def _accumulates(self, variable: str) -> bool:
        """Whether all the loop does with a variable is to add to it (or take its maximum), in any order alike."""
        updates = self._updates(variable)
        kinds = {u.kind for u in updates}
        if len(kinds) != 1 or None in kinds:
            return False
        inside = {id(n) for u in updates for n in ast.walk(u.node)}
        return all(id(n) in inside for n in names_of(self.node) if n.id == variable)

    def _advance(self, variable: str, changing: set[str]) -> Advance | None:
        """A variable that the loop's own block moves on once, by an amount that the loop does not change."""
        updates = self._updates(variable)
        if len(updates) != 1 or updates[0].node not in self.node.body:
            return None
        update = single_update(updates[0].node, variable)
        if update is None:
            return None
        steps = update.steps
        for step in steps:
            names = {n.id for n in names_of(step)}
            calls = any(isinstance(n, ast.Call) for n in ast.walk(step))
            if names & changing or calls:
                return None
        return Advance(variable, tuple(self.unit.text_of(s) for s in steps), update.function)

    def _order_matters(self, variable: str, where: str) -> Refusal:
        updates = self._updates(variable)
        node: ast.AST = updates[0].node if updates and updates[0].node is not self.node else self.node.target
        return self._refuse(
            node,
            f"`{variable}` goes from one iteration of {where} to the next, so blocks of {self.axis} cannot be taken as they "
            "arrive",
            "carry sums (acc = tl.dot(a, b, acc), acc += ...) and pointers that one statement of the loop moves on by the same "
            "amount each time; compute everything else from the loop's variable",
        )


def _sum_kind(statement: ast.stmt, variable: str) -> str | None:
    """``sum``, ``maximum`` or ``minimum`` where a statement combines a variable with something it is no part of."""
    if isinstance(statement, ast.AugAssign):
        plain = isinstance(statement.target, ast.Name) and not _reads(statement.value, variable)
        return "sum" if plain and isinstance(statement.op, (ast.Add, ast.Sub)) else None
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if value is None or len(targets) != 1 or not isinstance(targets[0], ast.Name):
        return None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        sides = [value.left, value.right]
        own = [s for s in sides if isinstance(s, ast.Name) and s.id == variable]
        return "sum" if len(own) == 1 and sum(_reads(s, variable) for s in sides) == 1 else None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
        own_left = isinstance(value.left, ast.Name) and value.left.id == variable
        return "sum" if own_left and not _reads(value.right, variable) else None
    if isinstance(value, ast.Call):
        return _sum_call(value, variable)
    return None


def _sum_call(call: ast.Call, variable: str) -> str | None:
    """``acc = tl.dot(a, b, acc)`` and its like."""
    name = callee_name(call)
    arguments: list[tuple[int | str, ast.expr]] = [
        *enumerate(call.args),
        *((k.arg or "", k.value) for k in call.keywords),
    ]
    own = [place for place, value in arguments if _reads(value, variable)]
    whole = [place for place, value in arguments if isinstance(value, ast.Name) and value.id == variable]
    if len(own) != 1 or own != whole:
        return None
    if name in _SUMS:
        return "sum" if own[0] in _SUMS[name] else None
    return name if name in _EXTREMES else None


def callee_name(call: ast.Call) -> str:
    """Last component of what a call calls."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _reads(node: ast.AST, variable: str) -> bool:
    return any(n.id == variable for n in names_of(node))
