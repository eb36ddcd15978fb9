"""From evaluated loads and stores to `Access`: which parameter, which axis spans which dimension.

A pointer's offset is a sum of ``index * stride`` (`offsets`). An axis *spans* a dimension only where the index is exactly
the tile's own interval (``coordinate * BLOCK + lanes``, wrapped or not); anything else reads the whole dimension.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from overlap.errors import PragmaError, SourceSpan

from .index import Atom, IndexExpr, size_expr
from .model import Access, Axis
from .offsets import DimIndex, OffsetContext, split_offset
from .source import SourceUnit
from .values import RawAccess

_NUMERIC = (ast.Mult, ast.FloorDiv, ast.Mod, ast.Div, ast.Pow, ast.BitAnd, ast.BitOr, ast.LShift, ast.RShift)
_NUMERIC_CALLS = frozenset(
    {"cdiv", "arange", "range", "static_range", "min", "max", "minimum", "maximum", "zeros", "full"}
)


@dataclass(frozen=True)
class Declared:
    """The dimensions a pragma gives a tensor parameter; ``span`` is that pragma."""

    dims: tuple[str, ...]
    span: SourceSpan


@dataclass(frozen=True)
class AccessContext(OffsetContext):
    """What access analysis knows beside the evaluated kernel.

    ``pointers`` are parameters that may be tensors, ``known`` those that a pragma names.
    """

    unit: SourceUnit
    pointers: tuple[str, ...]
    known: frozenset[str]
    declared: Mapping[str, Declared]

    @property
    def tile_axes(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a.block is not None)


def pointer_params(kernel: ast.FunctionDef, candidates: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """Parameters that may be tensors: those a pragma names, and those that are never used as a number."""
    numeric: set[str] = set()

    def mark(node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            numeric.add(node.id)

    for node in ast.walk(kernel):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (*_NUMERIC, ast.Sub)):
            mark(node.left)
            mark(node.right)
        elif isinstance(node, ast.Compare):
            if not all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
                for side in (node.left, *node.comparators):
                    mark(side)
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _NUMERIC_CALLS:
                for argument in node.args:
                    for part in ast.walk(argument):
                        mark(part)
    return tuple(p for p in candidates if p in known or p not in numeric)


def resolve(context: AccessContext, raw: RawAccess) -> list[Access]:
    """The accesses a load or store stands for: one, or one a tensor that its address may point into.

    Raises:
        PragmaError: the index contradicts the declared dimensions.
    """
    accesses = []
    for param, offset in _bases(context, raw):
        dims = by_dimension(context, raw, param, offset)
        declared = context.declared.get(param)
        span = context.unit.span_of(raw.node)
        if dims is None or raw.escapes:
            rank = len(declared.dims) if declared else 0
            deps = frozenset(_leaves(raw))
            unknown = tuple(IndexExpr.of(Atom("opaque", "?", line=span.line, deps=deps)) for _ in range(rank))
            region = next((leaf.region for leaf in sorted(_leaves(raw), key=str) if leaf.region is not None), None)
            found = Access(param, raw.mode, raw.kind, (None,) * rank, unknown, (False,) * rank, region, span)
            accesses.append(
                replace(
                    found,
                    operation=raw.operation,
                    helper=raw.escapes,
                    guard=raw.guard,
                    picks=raw.picks,
                    understood=False,
                )
            )
            continue
        axes, wraps, regions = [], [], []
        for d, dim in enumerate(dims):
            axis, wrap, region = _spanning(context, dim.index, dim.size)
            if declared and axis not in (declared.dims[d], None) and declared.dims[d] != "_":
                axis, wrap = None, False  # a range axis beside a dimension of its own, such as groups of K
            axes.append(axis)
            wraps.append(wrap)
            regions.append(region)
        region = next((r for r in regions if r is not None), None)
        if region is None:
            region = next((leaf.region for leaf in sorted(_leaves(raw), key=str) if leaf.region is not None), None)
        offsets = tuple(_first_element(dim.index) for dim in dims)
        found = Access(param, raw.mode, raw.kind, tuple(axes), offsets, tuple(wraps), region, span)
        accesses.append(replace(found, operation=raw.operation, guard=raw.guard, picks=raw.picks))
    return accesses


def _leaves(raw: RawAccess) -> set[Atom]:
    return {leaf for e in (raw.base, *(raw.offsets or ())) for leaf in e.leaves()}


def _bases(context: AccessContext, raw: RawAccess) -> list[tuple[str, IndexExpr]]:
    """(tensor parameter, offset from it) of an address; several where the address is not understood."""
    direct = [
        f[0]
        for f, c in raw.base.terms
        if c == 1 and len(f) == 1 and f[0].kind == "param" and f[0].name in context.pointers
    ]
    known = [a for a in direct if a.name in context.known] or direct
    if raw.escapes and not known:
        return []
    if known:
        atom = min(known, key=lambda a: context.pointers.index(a.name))
        return [(atom.name, raw.base - IndexExpr.of(atom))]
    deps = {leaf.parameter for leaf in raw.base.leaves() if leaf.kind == "param" and leaf.parameter in context.pointers}
    return [(name, raw.base) for name in sorted(deps & context.known or deps)]


def by_dimension(context: AccessContext, raw: RawAccess, param: str, offset: IndexExpr) -> list[DimIndex] | None:
    """How each dimension is indexed, or None where the address is not understood."""
    declared = context.declared.get(param)
    rank = len(declared.dims) if declared else None
    if raw.kind == "pointer":
        split = split_offset(context, param, offset, rank)
        return split if split is None or declared is None else _place(context, raw, param, declared, split)
    if raw.offsets is None:
        return None
    dims = [DimIndex(index, _at(raw.strides, d), _at(raw.block, d)) for d, index in enumerate(raw.offsets)]
    if declared and len(dims) < len(declared.dims) and offset.terms:
        return _of_batch(context, raw, param, declared, offset, dims)
    if offset.terms:
        return None
    if declared and len(dims) != len(declared.dims):
        raise PragmaError(
            f"{param} has {len(declared.dims)} dimensions here, but the kernel indexes {len(dims)} (line {raw.node.lineno})",
            where=declared.span,
            help="name every dimension",
        )
    for d, dim in enumerate(dims):
        _check_dim(context, raw, param, d, dim.index)
    return dims


def _of_batch(
    context: AccessContext, raw: RawAccess, param: str, declared: Declared, offset: IndexExpr, dims: list[DimIndex]
) -> list[DimIndex] | None:
    """A matrix of a batch: the base says which, block and offsets speak of its own dimensions.

    None where the base may go on along one of those, as from the first row of a sequence.
    """
    split = split_offset(context, param, offset, None)
    strides = [dim.stride for dim in dims]
    if split is None or None in strides:
        return None
    single = {a.name for a in context.tile_axes if a.name in declared.dims and a.block_expr == IndexExpr.constant(1)}
    if any(dim.stride in strides or _spanning(context, dim.index, None)[0] not in (None, *single) for dim in split):
        return None
    ordered = sorted(dims, key=lambda dim: dim.stride == IndexExpr.constant(1))  # as `split_offset` has them
    return _place(context, raw, param, declared, [*split, *ordered])


def _at(given: Sequence[IndexExpr] | None, d: int) -> IndexExpr | None:
    return given[d] if given and d < len(given) else None


def _place(
    context: AccessContext, raw: RawAccess, param: str, declared: Declared, split: Sequence[DimIndex]
) -> list[DimIndex] | None:
    """Puts each index at its dimension."""
    rank = len(declared.dims)
    placed: dict[int, DimIndex] = {}
    rest: list[DimIndex] = []
    for dim in split:
        index, atom = dim.index, dim.stride.as_atom() if dim.stride else None
        owner, d = context.strides.get(atom.name, ("", 0)) if atom else ("", 0)
        d = d % rank if rank and owner == param else -1
        if d < 0:
            named = _named_axis(context, index)
            if named is not None and named not in declared.dims:
                if _spanning(context, index, None)[0] == named:
                    raise _contradiction(context, raw, param, declared, named, "")
                named = None  # by the tile and not by its elements, as a table of experts is
            d = declared.dims.index(named) if named else -1
        if d < 0:
            rest.append(dim)
            continue
        _check_dim(context, raw, param, d, index)
        if d in placed:
            return None
        placed[d] = dim
    free = [d for d in range(rank) if d not in placed]
    if len(rest) > len(free):
        return None
    if len(rest) == 1 and len(free) > 1:
        return None
    if rest and len(rest) != len(free):
        return None
    for d, dim in zip(free, rest, strict=False):
        _check_dim(context, raw, param, d, dim.index)
        placed[d] = dim
        if not _is_outside(context, d, dim, placed):
            return None
    if any(_is_behind(context, declared.dims[d], dim.index) for d, dim in placed.items()):
        return None
    return [placed.get(d, DimIndex(IndexExpr())) for d in range(rank)]


def _is_behind(context: AccessContext, name: str, index: IndexExpr) -> bool:
    """Whether an index is never below its dimension's extent, and so means another row: ``rn + N`` along N."""
    axis = next((a for a in context.axes if a.name == name), None)
    extent = size_expr(axis.extent if axis else name)
    return extent.terms[0] in index.terms and all(c > 0 for _, c in index.terms) if extent.terms else False


def _is_outside(context: AccessContext, at: int, dim: DimIndex, placed: Mapping[int, DimIndex]) -> bool:
    """Whether a row that is picked by a product of sizes leaves the index along each axis beneath it as it is.

    ``expert * M * K`` does so where rows of K go to M; ``segment * SIZE * K`` goes on along M.
    """
    if dim.stride is None or any(leaf.kind == "lanes" for leaf in dim.index.leaves()):
        return True
    for d, other in placed.items():
        by = dim.stride.divided_by(other.stride) if other.stride is not None and other is not dim else None
        axis = next((a for a in context.axes if a.name == _named_axis(context, other.index)), None)
        if by is None or by == IndexExpr.constant(1) or axis is None:
            continue
        if d < at or by.divided_by(size_expr(axis.extent)) is None:
            return False
    return True


def _named_axis(context: AccessContext, index: IndexExpr) -> str | None:
    """The axis an index clearly runs along: the only tile coordinate in it, or the range axis of its loop."""
    direct = {a.axis for a in _affine_atoms(index) if a.kind == "coord"}
    if len(direct) == 1:
        return next(iter(direct))
    return None if direct else _range_axis(context, index)


def _affine_atoms(index: IndexExpr) -> list[Atom]:
    """Atoms of the sum itself, and of the dividend where the sum is one wrapped index."""
    atoms = [a for factors, _ in index.terms for a in factors]
    if len(atoms) == 1 and atoms[0].kind == "mod":
        return _affine_atoms(atoms[0].args[0])
    return atoms


def _check_dim(context: AccessContext, raw: RawAccess, param: str, d: int, index: IndexExpr) -> None:
    declared = context.declared.get(param)
    axis = next((a.axis for a in _affine_atoms(index) if a.kind == "coord"), None)
    if declared is None or axis is None or declared.dims[d] in (axis, "_"):
        return
    if _spanning(context, index, None)[0] == axis:
        raise _contradiction(context, raw, param, declared, axis, f"in dimension {d} ")


def _contradiction(
    context: AccessContext, raw: RawAccess, param: str, declared: Declared, axis: str, where: str
) -> PragmaError:
    return PragmaError(
        f"{param}[{','.join(declared.dims)}] contradicts the kernel, which indexes it {where}by axis {axis} "
        f"(line {raw.node.lineno})",
        where=declared.span,
        help="write the axes in the order of the tensor's dimensions"
        if axis in declared.dims
        else f"write the axes in the order of the tensor's dimensions, {axis} among them; where the kernel is given a view "
        f"with other dimensions, say which: # @overlap.tensor {param}[...]",
    )


def _range_axis(context: AccessContext, index: IndexExpr) -> str | None:
    loops = {a for a in _affine_atoms(index) if a.kind == "loop"}
    others = {a for a in _affine_atoms(index) if a.kind not in ("loop", "lanes", "param", "count")}
    if len(loops) != 1 or others:
        return None
    loop = next(iter(loops))
    stop = loop.args[1 if len(loop.args) > 1 else 0].as_atom() if loop.args else None
    if index.as_atom() == loop and stop is not None and stop.kind == "cdiv":
        return None  # the number of a block, such as the row of a table of scales
    bounds = {leaf.name for leaf in loop.leaves() if leaf.kind == "param"}
    names = [a.name for a in context.axes if a.block is None and a.extent in bounds]
    return names[0] if len(names) == 1 else None


def _spanning(context: AccessContext, index: IndexExpr, size: IndexExpr | None) -> tuple[str | None, bool, int | None]:
    """(axis, wrapped, region) where an axis spans the dimension exactly."""
    atom = index.as_atom()
    if atom is not None and atom.kind == "mod":
        inner, divisor = atom.args
        name, _, region = _spanning(context, inner, size)
        extent = next((a.extent for a in context.axes if a.name == name), None)
        by = divisor.as_atom()
        if by is None or by.name != extent:
            return None, False, region
        return name, True, region
    for axis in context.tile_axes:
        coords = {a for factors, _ in index.terms for a in factors if a.kind == "coord"}
        if len(coords) != 1 or (coord := next(iter(coords))).axis != axis.name:
            continue
        block = axis.block_expr
        rest = index - IndexExpr.of(coord) * block
        if _inside_block(rest, size, block):
            return axis.name, False, coord.region
        return None, False, coord.region
    return _range_axis(context, index), False, None


def _inside_block(rest: IndexExpr, size: IndexExpr | None, block: IndexExpr) -> bool:
    """Whether ``rest`` (plus ``size`` elements) stays within one block of the axis."""
    if size is not None and (atom := size.as_atom()) is not None and atom.kind == "either":
        return all(_inside_block(rest, one, block) for one in atom.args)
    lanes = [(f, c) for f, c in rest.terms if len(f) == 1 and f[0].kind == "lanes"]
    if len(lanes) > 1 or any(c != 1 for _, c in lanes):
        return False
    if lanes:
        size = lanes[0][0][0].args[0]
        rest = rest - IndexExpr.of(lanes[0][0][0])
    if not rest.terms:
        return size is None or size == block or _share(size, block) is not None
    # Sub-tiles of an epilogue: the j-th of n equal parts.
    if len(rest.terms) == 1 and len(rest.terms[0][0]) == 1:
        part = IndexExpr.of(rest.terms[0][0][0])
        parts = _share(part, block)
        return parts is not None and 0 <= rest.terms[0][1] < parts and (size is None or size == part)
    return False


def _share(size: IndexExpr, block: IndexExpr) -> int | None:
    """n where size is ``block // n``."""
    atom = size.as_atom()
    if atom is None or atom.kind != "floordiv" or atom.args[0] != block:
        return None
    return atom.args[1].as_int()


def _first_element(index: IndexExpr) -> IndexExpr:
    """The index with all lanes at 0."""
    atom = index.as_atom()
    if atom is not None and atom.kind == "mod":
        return _first_element(atom.args[0]) % atom.args[1]
    return IndexExpr(tuple((f, c) for f, c in index.terms if not any(a.kind == "lanes" for a in f)))


def merged_read(accesses: Sequence[Access], param: str) -> tuple[tuple[str | None, ...], tuple[bool, ...]]:
    """(axes, wraps) of all reads of a tensor together: an axis spans a dimension only if it does in every read."""
    reads = [a for a in accesses if a.tensor == param and a.mode == "read"]
    if not reads:
        return (), ()
    rank = max(len(a.axes) for a in reads)
    axes = tuple(
        next(iter(found)) if len(found := {a.axes[d] if d < len(a.axes) else None for a in reads}) == 1 else None
        for d in range(rank)
    )
    return axes, tuple(any(a.wraps[d] for a in reads if d < len(a.wraps)) for d in range(rank))
