"""From evaluated loads and stores to `Access`: which parameter, which axis spans which dimension.

A pointer's offset is a sum of ``index * stride``; strides are the parameters that the host passes as ``x.stride(d)``,
or else what multiplies the lanes of ``tl.arange``. An axis *spans* a dimension only where the index is exactly the
tile's own interval (``coordinate * BLOCK + lanes``, wrapped or not); anything else reads the whole dimension.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from overlap.errors import PragmaError, SourceSpan

from .index import Atom, IndexExpr
from .model import Access, Axis
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
class AccessContext:
    """What access analysis knows beside the evaluated kernel.

    ``pointers`` are parameters that may be tensors, ``known`` those that a pragma names, ``strides`` maps a stride
    parameter to (tensor parameter, dimension).
    """

    unit: SourceUnit
    params: tuple[str, ...]
    axes: tuple[Axis, ...]
    pointers: tuple[str, ...]
    known: frozenset[str]
    declared: Mapping[str, Declared]
    strides: Mapping[str, tuple[str, int]]

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
        groups = _groups(context, raw, param, offset)
        declared = context.declared.get(param)
        span = context.unit.span_of(raw.node)
        if groups is None or raw.escapes:
            rank = len(declared.dims) if declared else 0
            deps = frozenset(_leaves(raw))
            unknown = tuple(IndexExpr.of(Atom("opaque", "?", line=span.line, deps=deps)) for _ in range(rank))
            region = next((leaf.region for leaf in sorted(_leaves(raw), key=str) if leaf.region is not None), None)
            found = Access(param, raw.mode, raw.kind, (None,) * rank, unknown, (False,) * rank, region, span)
            accesses.append(replace(found, operation=raw.operation, helper=raw.escapes, guard=raw.guard))
            continue
        axes, wraps, regions = [], [], []
        for d, index in enumerate(groups):
            size = raw.block[d] if raw.block and d < len(raw.block) else None
            axis, wrap, region = _spanning(context, index, size)
            if declared and axis not in (declared.dims[d], None) and declared.dims[d] != "_":
                axis, wrap = None, False  # a range axis beside a dimension of its own, such as groups of K
            axes.append(axis)
            wraps.append(wrap)
            regions.append(region)
        region = next((r for r in regions if r is not None), None)
        if region is None:
            region = next((leaf.region for leaf in sorted(_leaves(raw), key=str) if leaf.region is not None), None)
        offsets = tuple(_first_element(index) for index in groups)
        found = Access(param, raw.mode, raw.kind, tuple(axes), offsets, tuple(wraps), region, span)
        accesses.append(replace(found, operation=raw.operation, guard=raw.guard))
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
    deps = {leaf.name for leaf in raw.base.leaves() if leaf.kind == "param" and leaf.name in context.pointers}
    return [(name, raw.base) for name in sorted(deps & context.known or deps)]


def _groups(context: AccessContext, raw: RawAccess, param: str, offset: IndexExpr) -> list[IndexExpr] | None:
    """One index expression a dimension, or None where the address is not understood."""
    declared = context.declared.get(param)
    if raw.kind != "pointer":
        if raw.offsets is None or offset.terms:
            return None
        if declared and len(raw.offsets) != len(declared.dims):
            raise PragmaError(
                f"{param} has {len(declared.dims)} dimensions here, but the kernel indexes {len(raw.offsets)} "
                f"(line {raw.node.lineno})",
                where=declared.span,
                help="name every dimension",
            )
        for d, index in enumerate(raw.offsets):
            _check_dim(context, raw, param, d, index)
        return list(raw.offsets)
    split = _split(context, param, offset, len(declared.dims) if declared else None)
    if split is None:
        return None
    if declared is None:
        return [index for _, index in split]
    return _place(context, raw, param, declared, split)


def _split(
    context: AccessContext, param: str, offset: IndexExpr, rank: int | None
) -> list[tuple[IndexExpr, IndexExpr]] | None:
    """``offset`` as (stride, index) pairs, in the order of the stride parameters, the unit stride last."""
    one = IndexExpr.constant(1)
    if rank == 1 and not any(leaf.name in context.strides for leaf in offset.leaves()):
        return [(one, offset)]
    candidates: list[IndexExpr] = []
    parts: list[tuple[IndexExpr, IndexExpr]] = []
    for factors, coefficient in offset.terms:
        fixed = IndexExpr((((tuple(a for a in factors if a.kind in ("param", "count"))), 1),))
        varying = IndexExpr(((tuple(a for a in factors if a.kind not in ("param", "count")), coefficient),))
        parts.append((fixed, varying))
        stride = [a for a in factors if a.kind == "param" and context.strides.get(a.name, ("",))[0] == param]
        if len(stride) == 1:
            candidate = IndexExpr.of(stride[0])
        elif any(leaf.kind == "lanes" for leaf in varying.leaves()):
            candidate = fixed
        elif (of_tile := _stride_of_tile(context, factors, fixed)) is not None:
            candidate = of_tile
        else:
            continue
        if candidate not in candidates:
            candidates.append(candidate)
    if not candidates:
        return [] if not offset.terms else None
    indices = {c: IndexExpr() for c in candidates}
    for fixed, varying in parts:
        fitting = [(len(c.terms[0][0]), c, q) for c in candidates if (q := fixed.divided_by(c)) is not None]
        best = max((f[0] for f in fitting), default=-1)
        chosen = [f for f in fitting if f[0] == best]
        if len(chosen) != 1:
            return None
        indices[chosen[0][1]] += chosen[0][2] * varying
    return sorted(indices.items(), key=lambda pair: (pair[0] == one, _order(context, pair[0])))


def _stride_of_tile(context: AccessContext, factors: tuple[Atom, ...], fixed: IndexExpr) -> IndexExpr | None:
    """What multiplies ``coordinate * BLOCK`` in a term without lanes, such as the index of a matrix in a batch."""
    coords = [a for a in factors if a.kind == "coord"]
    axis = next((a for a in context.tile_axes if len(coords) == 1 and a.name == coords[0].axis), None)
    return fixed.divided_by(axis.block_expr) if axis else None


def _order(context: AccessContext, stride: IndexExpr) -> tuple[int, int]:
    """Dimensions the host gives, else the order of the stride parameters."""
    names = [leaf.name for leaf in stride.leaves()]
    known = [context.strides[n][1] for n in names if n in context.strides]
    return (known[0] if known else 99, min((context.params.index(n) for n in names if n in context.params), default=0))


def _place(
    context: AccessContext, raw: RawAccess, param: str, declared: Declared, split: list[tuple[IndexExpr, IndexExpr]]
) -> list[IndexExpr] | None:
    """Puts each (stride, index) at its dimension."""
    rank = len(declared.dims)
    placed: dict[int, IndexExpr] = {}
    rest: list[IndexExpr] = []
    for stride, index in split:
        atom = stride.as_atom()
        owner, d = context.strides.get(atom.name, ("", 0)) if atom else ("", 0)
        d = d % rank if rank and owner == param else -1
        if d < 0:
            named = _named_axis(context, index)
            if named is not None and named not in declared.dims:
                if _spanning(context, index, None)[0] == named:
                    raise _contradiction(context, raw, param, declared, f"by axis {named}")
                named = None  # by the tile and not by its elements, as a table of experts is
            d = declared.dims.index(named) if named else -1
        if d < 0:
            rest.append(index)
            continue
        _check_dim(context, raw, param, d, index)
        if d in placed:
            return None
        placed[d] = index
    free = [d for d in range(rank) if d not in placed]
    if len(rest) > len(free):
        return None
    if len(rest) == 1 and len(free) > 1:
        return None
    if rest and len(rest) != len(free):
        return None
    for d, index in zip(free, rest, strict=False):
        _check_dim(context, raw, param, d, index)
        placed[d] = index
    return [placed.get(d, IndexExpr()) for d in range(rank)]


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
        raise _contradiction(context, raw, param, declared, f"in dimension {d} by axis {axis}")


def _contradiction(context: AccessContext, raw: RawAccess, param: str, declared: Declared, how: str) -> PragmaError:
    return PragmaError(
        f"{param}[{','.join(declared.dims)}] contradicts the kernel, which indexes it {how} (line {raw.node.lineno})",
        where=declared.span,
        help="write the axes in the order of the tensor's dimensions",
    )


def _range_axis(context: AccessContext, index: IndexExpr) -> str | None:
    loops = {a for a in _affine_atoms(index) if a.kind == "loop"}
    others = {a for a in _affine_atoms(index) if a.kind not in ("loop", "lanes", "param", "count")}
    if len(loops) != 1 or others:
        return None
    bounds = {leaf.name for leaf in next(iter(loops)).leaves() if leaf.kind == "param"}
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
