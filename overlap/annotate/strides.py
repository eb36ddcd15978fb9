"""The strides a kernel indexes a tensor with, one a dimension, as text over its parameters.

A kernel launched directly is told strides by its caller; the memory a tensor is gathered into must have exactly these. Those of
a host function's launch are the tensor's own where it passes ``x.stride(d)``; any others are compared when it launches.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from .access import AccessContext, _bases, by_dimension
from .host import stride_params
from .index import Atom, IndexExpr, size_expr
from .model import Axis, ProgramModel
from .values import RawAccess

_PLAIN = (
    ast.IfExp,
    ast.Compare,
    ast.BoolOp,
    ast.BinOp,
    ast.UnaryOp,
    ast.Name,
    ast.Constant,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)


def strides_of(context: AccessContext, raw: RawAccess) -> list[tuple[IndexExpr | None, ...]]:
    """Strides a dimension, for each access that `access.resolve` makes of ``raw``.

    None where a dimension has no stride of its own, and for descriptors made on the host, which carry their own.
    """
    found: list[tuple[IndexExpr | None, ...]] = []
    for param, offset in _bases(context, raw):
        dims = by_dimension(context, raw, param, offset)
        if dims is None or raw.escapes:
            rank = len(context.declared[param].dims) if param in context.declared else 0
            found.append((None,) * rank)
        else:
            found.append(tuple(dim.stride for dim in dims))
    return found


def stride_text(params: Sequence[str], stride: IndexExpr | None) -> str | None:
    """``stride_am``, ``sa[0]``, ``1``, ``H * D``; None where it is not made of parameters alone."""
    if stride is None or any(leaf.kind != "param" or leaf.parameter not in params for leaf in stride.leaves()):
        return None
    if any(atom.kind != "param" for factors, _ in stride.terms for atom in factors):
        return None
    return str(stride)


def compared_strides(program: ProgramModel, param: str) -> tuple[tuple[str | None, ...], ...]:
    """Strides of ``param`` that the launch does not take from the tensor that it passes, an access each, to be compared.

    Each is an expression over kernel parameters (None: nothing to compare).
    """
    own, kernel = stride_params(program.host), program.kernel
    names = [p.name for p in kernel.params]
    found: list[tuple[str | None, ...]] = []
    for access in kernel.accesses:
        if access.tensor != param:
            continue
        rank = len(access.by)
        texts: list[str | None] = []
        for d, stride in enumerate(access.by):
            text = stride_expression(names, kernel.axes, stride) if stride is not None else None
            same = text == "1" and d == rank - 1 or own.get(text or "") in ((param, d), (param, d - rank))
            texts.append(None if same else text)
        if any(texts) and tuple(texts) not in found:
            found.append(tuple(texts))
    return tuple(found)


def column_starts(program: ProgramModel, param: str) -> tuple[tuple[int, str], ...]:
    """(dimension, start) where columns of ``param`` begin other than at 0 or a tile's own: within a row, or the row is another.

    Whatever fits no other stride is taken for columns, such as ``x_ptr + start``.
    """
    kernel = program.kernel
    names = [p.name for p in kernel.params]
    found: list[tuple[int, str]] = []
    for access in kernel.accesses:
        d = len(access.by) - 1
        if access.tensor != param or access.kind != "pointer" or d < 1 or access.axes[d] is not None:
            continue
        fixed = IndexExpr(tuple(t for t in access.offsets[d].terms if IndexExpr((t,)).is_invariant))
        text = stride_expression(names, kernel.axes, fixed) if fixed.terms else None
        if text is not None and (d, text) not in found:
            found.append((d, text))
    return tuple(found)


def read_alike(program: ProgramModel, tensor: str, param: str) -> dict[str, tuple[tuple[str | None, ...], ...]]:
    """Other parameters that ``tensor`` is passed as, through which tiles read no other rows than through ``param``.

    Each with the strides that it does so by, as `compared_strides` has them, none left out.
    """
    kernel, host = program.kernel, program.host
    tiled = {a.name for a in kernel.axes if a.block is not None}
    own = [a for a in kernel.accesses if a.tensor == param]
    names = [p.name for p in kernel.params]
    found: dict[str, tuple[tuple[str | None, ...], ...]] = {}
    for name, text in host.kernel_args if host else ():
        mine = [a for a in kernel.accesses if a.tensor == name]
        named = any(isinstance(n, ast.Name) and n.id == tensor for n in ast.walk(ast.parse(text)))
        if name == param or not named or not mine or len({a.axes for a in own}) != 1:
            continue
        wanted = [axis if axis in tiled else None for axis in own[0].axes]
        rows: list[tuple[str | None, ...]] = []
        for access in mine:
            plain = access.mode == "read" and access.understood and not any(access.wraps)
            inside = all(axis is not None or not at.terms for axis, at in zip(access.axes, access.offsets, strict=True))
            by = {axis: stride for axis, stride in zip(access.axes, access.by, strict=True) if axis is not None}
            texts = {
                axis: stride_expression(names, kernel.axes, stride)
                for axis in wanted
                if axis is not None and (stride := by.get(axis)) is not None
            }
            if not plain or not inside or any(axis is not None and texts.get(axis) is None for axis in wanted):
                break
            rows.append(tuple(texts.get(axis) if axis is not None else None for axis in wanted))
        else:
            found[name] = tuple(dict.fromkeys(rows))
    return found


def stride_expression(
    params: Sequence[str], axes: Sequence[Axis], stride: IndexExpr, assigned: Collection[str] = ()
) -> str | None:
    """A stride as Python has it, over the launch's arguments; None where they do not say what it is.

    ``assigned``: parameters that the kernel assigns to.
    """

    def of(expr: IndexExpr) -> str | None:
        terms = []
        for factors, coefficient in expr.terms:
            texts = [of_atom(atom) for atom in factors]
            if None in texts:
                return None
            terms.append(
                " * ".join([*([str(coefficient)] if coefficient != 1 or not texts else []), *filter(None, texts)])
            )
        return " + ".join(terms) or "0"

    def of_atom(atom: Atom) -> str | None:
        if atom.kind == "param":
            return atom.name if atom.parameter in params else None
        if atom.kind == "count":
            axis = next((a for a in axes if a.name == atom.axis and a.block is not None), None)
            return of_atom(Atom("cdiv", "cdiv", (size_expr(axis.extent), axis.block_expr))) if axis else None
        if atom.kind == "opaque":
            return _as_written(params, atom, assigned)
        args = [of(arg) for arg in atom.args]
        if len(args) != 2 or None in args or atom.kind not in ("either", "floordiv", "mod", "cdiv"):
            return None
        if atom.kind == "either":
            return f"({args[0]} if {atom.test} else {args[1]})"
        if atom.kind == "cdiv":
            return f"-(-({args[0]}) // ({args[1]}))"
        return f"(({args[0]}) {'//' if atom.kind == 'floordiv' else '%'} ({args[1]}))"

    return of(stride)


def _as_written(params: Sequence[str], atom: Atom, assigned: Collection[str]) -> str | None:
    """A choice by a size as the kernel has it, where it is made of parameters alone."""
    try:
        tree = ast.parse(atom.name, mode="eval")
    except SyntaxError:
        return None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    plain = all(isinstance(node, _PLAIN) for node in ast.walk(tree.body))
    same = names == {leaf.name for leaf in atom.leaves()} and names <= set(params) and not names & set(assigned)
    return f"({atom.name})" if plain and same and isinstance(tree.body, ast.IfExp) else None
