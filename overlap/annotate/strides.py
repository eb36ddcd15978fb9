"""The strides a kernel indexes a tensor with, one a dimension, as text over its parameters.

A kernel launched directly is told strides by its caller; the memory a tensor is gathered into must have exactly these.
"""

from __future__ import annotations

from .access import AccessContext, _bases, _groups, _split
from .index import IndexExpr
from .values import RawAccess


def strides_of(context: AccessContext, raw: RawAccess) -> list[tuple[str | None, ...]]:
    """Strides a dimension (``stride_am``, ``1``, ``H * D``), for each access that `access.resolve` makes of ``raw``.

    None where a dimension has no stride of its own, where it is not made of parameters alone, and for descriptors
    made on the host, which carry their own.
    """
    found: list[tuple[str | None, ...]] = []
    for param, offset in _bases(context, raw):
        groups = _groups(context, raw, param, offset)
        if groups is None or raw.escapes:
            rank = len(context.declared[param].dims) if param in context.declared else 0
            found.append((None,) * rank)
        elif raw.kind != "pointer":
            given = raw.strides or ()
            found.append(tuple(_text(context, given[d]) if d < len(given) else None for d in range(len(groups))))
        else:
            declared = context.declared.get(param)
            pairs = _split(context, param, offset, len(declared.dims) if declared else None) or []
            found.append(tuple(_text(context, next((s for s, i in pairs if i == index), None)) for index in groups))
    return found


def _text(context: AccessContext, stride: IndexExpr | None) -> str | None:
    if stride is None or any(leaf.kind != "param" or leaf.name not in context.params for leaf in stride.leaves()):
        return None
    if any(atom.kind != "param" for factors, _ in stride.terms for atom in factors):
        return None
    return str(stride)
