"""Values of the symbolic evaluation: index expressions, descriptors and block pointers.

A pointer is an `IndexExpr` too: the tensor parameter's atom plus an offset. Which parameter of an address is the
pointer is decided where the address is used.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from .index import Atom, IndexExpr


@dataclass(frozen=True)
class Descriptor:
    """A device-made tensor descriptor. ``base`` is the pointer it was made from."""

    base: IndexExpr
    shape: tuple[IndexExpr, ...]
    block: tuple[IndexExpr, ...]
    strides: tuple[IndexExpr, ...] = ()


@dataclass(frozen=True)
class BlockPointer:
    """``tl.make_block_ptr``: a base pointer and element offsets a dimension."""

    base: IndexExpr
    shape: tuple[IndexExpr, ...]
    offsets: tuple[IndexExpr, ...]
    block: tuple[IndexExpr, ...]
    strides: tuple[IndexExpr, ...] = ()


@dataclass(frozen=True)
class Sequence:
    """A tuple or list."""

    items: tuple[Value, ...]


Value = IndexExpr | Descriptor | BlockPointer | Sequence


@dataclass(frozen=True)
class RawAccess:
    """A load or store as evaluated.

    ``base`` is the pointer (or descriptor parameter) with its whole offset; ``offsets``, ``block``, ``shape`` and
    ``strides`` are set where the access itself gives them a dimension (descriptors, block pointers). ``escapes`` marks
    a pointer that is handed to a helper. ``operation`` is the name called, ``guard`` a condition read from memory that the
    access is under (empty: none), ``picks`` those that leave elements of tiles out.
    """

    mode: Literal["read", "write", "reduce"]
    kind: Literal["pointer", "block_pointer", "device_descriptor", "host_descriptor"]
    base: IndexExpr
    node: ast.Call
    offsets: tuple[IndexExpr, ...] | None = None
    block: tuple[IndexExpr, ...] | None = None
    shape: tuple[IndexExpr, ...] | None = None
    escapes: bool = False
    strides: tuple[IndexExpr, ...] | None = None
    operation: str = ""
    guard: str = ""
    picks: tuple[Atom, ...] = ()


def from_memory(value: Value) -> bool:
    """Whether a value depends on something loaded."""
    return any(leaf.kind == "data" for leaf in leaves(value))


def leaves(value: Value) -> frozenset[Atom]:
    """Every name a value depends on."""
    if isinstance(value, IndexExpr):
        return frozenset(value.leaves())
    if isinstance(value, Descriptor):
        return frozenset(value.base.leaves())
    if isinstance(value, BlockPointer):
        return frozenset(leaf for e in (value.base, *value.offsets) for leaf in e.leaves())
    return frozenset(leaf for item in value.items for leaf in leaves(item))


def picks(value: Value) -> frozenset[Atom]:
    """The conditions that a value depends on which pick some of the elements that tiles make, such as ``rn <= rm``."""
    found = frozenset(leaf for leaf in leaves(value) if leaf.kind == "picks")
    for atom in (a for factors, _ in value.terms for a in factors) if isinstance(value, IndexExpr) and found else ():
        if atom.kind == "either":
            found -= picks(atom.args[0]) ^ picks(atom.args[1])
    return found


def alternatives(text: str, line: int, a: Value, b: Value, *causes: Value) -> IndexExpr:
    """One of two values: what only one of them picks by, the other may not leave out."""
    deps = frozenset(leaf for value in (a, b, *causes) for leaf in leaves(value) if leaf.kind != "picks")
    return opaque(text, line, IndexExpr.of(Atom("opaque", "", deps=deps | picks(a) & picks(b))))


def opaque(text: str, line: int, *values: Value) -> IndexExpr:
    """A number that is not understood, with what it was computed from."""
    deps = frozenset(x for value in values for x in leaves(value) if x.kind != "picks" or x in picks(value))
    return IndexExpr.of(Atom("opaque", text if len(text) <= 60 else text[:57] + "...", deps=deps, line=line))


def merge(name: str, line: int, a: Value, b: Value, *causes: Value) -> Value:
    """The value of ``name`` behind a branch; ``causes`` are what decided between ``a`` and ``b``."""
    if a == b:
        return a
    if isinstance(a, Sequence) and isinstance(b, Sequence) and len(a.items) == len(b.items):
        pairs = enumerate(zip(a.items, b.items, strict=True))
        return Sequence(tuple(merge(f"{name}[{i}]", line, x, y, *causes) for i, (x, y) in pairs))
    if isinstance(a, BlockPointer) and isinstance(b, BlockPointer) and len(a.offsets) == len(b.offsets):
        if (a.base, a.shape, a.block) == (b.base, b.shape, b.block):
            pairs_of = zip(a.offsets, b.offsets, strict=True)
            offsets = tuple(x if x == y else opaque(name, line, x, y, *causes) for x, y in pairs_of)
            return BlockPointer(a.base, a.shape, offsets, a.block, a.strides)
    return alternatives(name, line, a, b, *causes)
