"""The strides a kernel indexes a tensor with, one a dimension, as text over its parameters.

A kernel launched directly is told strides by its caller; the memory a tensor is gathered into must have exactly these.
"""

from __future__ import annotations

from .access import AccessContext, _bases, by_dimension
from .index import IndexExpr
from .values import RawAccess


def strides_of(context: AccessContext, raw: RawAccess) -> list[tuple[str | None, ...]]:
    """Strides a dimension (``stride_am``, ``sa[0]``, ``1``, ``H * D``), for each access that `access.resolve` makes of ``raw``.

    None where a dimension has no stride of its own, where it is not made of parameters alone, and for descriptors
    made on the host, which carry their own.
    """
    found: list[tuple[str | None, ...]] = []
    for param, offset in _bases(context, raw):
        dims = by_dimension(context, raw, param, offset)
        if dims is None or raw.escapes:
            rank = len(context.declared[param].dims) if param in context.declared else 0
            found.append((None,) * rank)
        else:
            found.append(tuple(_text(context, dim.stride) for dim in dims))
    return found


def _text(context: AccessContext, stride: IndexExpr | None) -> str | None:
    if stride is None or any(leaf.kind != "param" or leaf.parameter not in context.params for leaf in stride.leaves()):
        return None
    if any(atom.kind != "param" for factors, _ in stride.terms for atom in factors):
        return None
    return str(stride)
