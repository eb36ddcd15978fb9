"""An offset into a tensor, taken apart into one index a dimension, each with its stride.

    a_ptr + rm[:, None] * stride_am + rk[None, :]     ->   rm by stride_am, rk by 1

What multiplies is a stride where it is a parameter that the host passes as ``x.stride(d)``, or where lanes or a tile's
coordinate run along it; while the tensor has more dimensions than that, also where it is a size known at launch only, by
which a row is picked (``expert * D``). Whatever else is added belongs to the largest stride that divides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .index import INVARIANT, Atom, IndexExpr
from .model import Axis

_ONE = IndexExpr.constant(1)


@dataclass(frozen=True)
class DimIndex:
    """How an access indexes one dimension.

    ``stride`` is what multiplies the index (None: nothing does), ``size`` how many elements a block takes from it on (None: one,
    or as many as the index has lanes).
    """

    index: IndexExpr
    stride: IndexExpr | None = None
    size: IndexExpr | None = None


@dataclass(frozen=True)
class OffsetContext:
    """What splitting knows of a kernel.

    ``strides`` maps a stride parameter to (tensor parameter, dimension); ``constexprs`` are the parameters that are known when
    the kernel is compiled, block sizes among them.
    """

    params: tuple[str, ...]
    constexprs: frozenset[str]
    axes: tuple[Axis, ...]
    strides: Mapping[str, tuple[str, int]]


def split_offset(context: OffsetContext, param: str, offset: IndexExpr, rank: int | None) -> list[DimIndex] | None:
    """``offset`` from tensor ``param`` by dimension, in the order of the stride parameters, the unit stride last.

    Args:
        rank: the tensor's dimensions, where they are declared.

    Returns:
        None where a part fits no stride, or several.
    """
    if rank == 1 and not any(leaf.name in context.strides for leaf in offset.leaves()):
        return [DimIndex(offset, _ONE)]
    parts = [_parted(factors, coefficient) for factors, coefficient in offset.terms]
    if any(_is_scaled(varying) for _, _, varying in parts):
        return None
    candidates: list[IndexExpr] = []
    picked: list[IndexExpr] = []
    for factors, fixed, varying in parts:
        if (firm := _stride(context, param, factors, fixed, varying)) is not None:
            _add(candidates, firm)
        elif varying.depends_on("coord", "data", "loop"):
            _add(picked, _sizes(context, factors))
    if rank is None or len(candidates) < rank:
        for size in picked:
            if size != _ONE:
                _add(candidates, size)
        if _ONE in picked and not all(_fitting(candidates, fixed) for _, fixed, _ in parts):
            _add(candidates, _ONE)  # single elements show no stride
    if not candidates:
        return [] if not offset.terms else None
    indices = {c: IndexExpr() for c in candidates}
    hidden = {param, *(a.name for c in candidates for a in c.terms[0][0])}
    for _, fixed, varying in parts:
        fitting = _fitting(candidates, fixed)
        best = max((len(c.terms[0][0]) for c, _ in fitting), default=-1)
        chosen = [(c, q) for c, q in fitting if len(c.terms[0][0]) == best]
        if len(chosen) != 1 or _may_hold(chosen[0][1] * varying, hidden):
            return None
        indices[chosen[0][0]] += chosen[0][1] * varying
    if len(candidates) > 1 and _is_loose(indices.get(_ONE, IndexExpr())):
        return None
    ordered = sorted(indices.items(), key=lambda pair: (pair[0] == _ONE, _order(context, pair[0])))
    return [DimIndex(index, stride) for stride, index in ordered]


def _may_hold(index: IndexExpr, hidden: set[str]) -> bool:
    """Whether part of an index is a number that may hold multiples of a stride, or be an address, unseen.

    ``tl.where(f, stride, 0)`` moves on by a row. ``D // 2`` and ``K % BLOCK`` are less than what they are a part of.
    """
    for atom in {a for factors, _ in index.terms for a in factors}:
        if atom.kind in ("opaque", "either") and any(leaf.name in hidden for leaf in _parts(atom)):
            return True
        if atom.kind in ("mod", "floordiv", "cdiv"):
            whole = atom.args[0].as_atom()
            if whole is None or whole.kind != "param":
                if any(leaf.name in hidden for f, _ in atom.args[0].terms for a in f for leaf in _parts(a)):
                    return True
    return False


def _is_loose(index: IndexExpr) -> bool:
    """Whether a run of columns begins where a loaded or unknown number says, which may be in another row."""
    atoms = {a for factors, _ in index.terms for a in factors}
    along = {a for a in atoms if any(leaf.kind == "lanes" for leaf in a.leaves())}
    return bool(along) and any(a.kind in ("data", "opaque") for a in atoms - along)


def _parts(atom: Atom) -> Iterator[Atom]:
    """The names that a number may be made of: not those that decide which of two it is, or where it was loaded."""
    if atom.kind == "data":
        return
    if atom.args and atom.kind != "lanes":
        yield from (leaf for arg in atom.args for factors, _ in arg.terms for a in factors for leaf in _parts(a))
    else:
        yield from (atom, *atom.leaves())


def _parted(factors: tuple[Atom, ...], coefficient: int) -> tuple[tuple[Atom, ...], IndexExpr, IndexExpr]:
    """A term: its factors, the product of those that are fixed, and of the others."""
    fixed = _product(a for a in factors if _is_fixed(a))
    return factors, fixed, _product((a for a in factors if not _is_fixed(a)), coefficient)


def _is_scaled(varying: IndexExpr) -> bool:
    """Lanes times what differs between programs, so that nothing says how far apart they are."""
    atoms = varying.terms[0][0]
    return len(atoms) > 1 and any(leaf.kind == "lanes" for a in atoms for leaf in a.leaves())


def _add(candidates: list[IndexExpr], stride: IndexExpr) -> None:
    if stride not in candidates:
        candidates.append(stride)


def _product(factors: Iterable[Atom], coefficient: int = 1) -> IndexExpr:
    return IndexExpr(((tuple(factors), coefficient),))


def _is_fixed(atom: Atom) -> bool:
    """Whether a factor is one number for a whole launch: a parameter, or made of parameters, such as ``N // GROUP``."""
    if atom.kind in ("either", "opaque"):
        leaves = list(atom.leaves())
        return bool(leaves) and all(leaf.kind in INVARIANT for leaf in leaves)
    if atom.kind in ("floordiv", "cdiv", "mod"):
        return all(_is_fixed(a) for arg in atom.args for factors, _ in arg.terms for a in factors)
    return atom.kind in ("param", "count")


def _fitting(candidates: Sequence[IndexExpr], fixed: IndexExpr) -> list[tuple[IndexExpr, IndexExpr]]:
    return [(c, quotient) for c in candidates if (quotient := fixed.divided_by(c)) is not None]


def _stride(
    context: OffsetContext, param: str, factors: tuple[Atom, ...], fixed: IndexExpr, varying: IndexExpr
) -> IndexExpr | None:
    """The stride that one term of an offset shows."""
    own = [a for a in factors if a.kind == "param" and context.strides.get(a.name, ("",))[0] == param]
    if len(own) == 1:
        return IndexExpr.of(own[0])
    if any(leaf.kind == "lanes" for leaf in varying.leaves()):
        return fixed
    return _stride_of_tile(context, factors, fixed)


def _stride_of_tile(context: OffsetContext, factors: tuple[Atom, ...], fixed: IndexExpr) -> IndexExpr | None:
    """What multiplies ``coordinate * BLOCK`` in a term without lanes, such as the index of a matrix in a batch."""
    coords = [a for a in factors if a.kind == "coord"]
    tiles = (a for a in context.axes if a.block is not None)
    axis = next((a for a in tiles if len(coords) == 1 and a.name == coords[0].axis), None)
    return fixed.divided_by(axis.block_expr) if axis else None


def _sizes(context: OffsetContext, factors: tuple[Atom, ...]) -> IndexExpr:
    """What multiplies one number, such as ``head // group`` or a row's number that was loaded.

    Constexpr factors are blocks of that dimension, as in ``page * BLOCK + lanes``.
    """
    later = set(context.params) - context.constexprs
    return _product(
        a for a in factors if _is_fixed(a) and any(x.kind == "count" or x.parameter in later for x in a.leaves())
    )


def _order(context: OffsetContext, stride: IndexExpr) -> tuple[int, tuple[int, int]]:
    """Dimensions the host gives, else the order of the stride parameters, and of the items of one."""
    leaves = list(stride.leaves())
    known = [context.strides[leaf.name][1] for leaf in leaves if leaf.name in context.strides]
    places = [(context.params.index(x.parameter), x.item) for x in leaves if x.parameter in context.params]
    return (known[0] if known else 99, min(places, default=(0, 0)))
