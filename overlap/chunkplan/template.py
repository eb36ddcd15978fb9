"""The nouns of a plan file that has been read but not yet applied to a world and a tensor.

Everything is checked as far as it can be without knowing the world: keys, names, syntax, labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .chunkexpr import ChunkExpr
from .document import Document, Node
from .expr import IntExpr
from .mesh import Mesh
from .reduction import Reduction
from .splitkey import SplitExpr

if TYPE_CHECKING:
    from .rankvalues import RankValues

Verb = Literal["move", "pull", "push", "local", "collective"]
VERBS: tuple[Verb, ...] = ("move", "pull", "push", "local", "collective")


@dataclass(frozen=True)
class Loop:
    """``for: NAME in range(...) if ...``: the variable, what it runs over, and the conditions behind it."""

    name: str
    bounds: tuple[IntExpr, ...]
    is_range: bool
    conditions: tuple[IntExpr, ...] = ()


@dataclass(frozen=True)
class Dependency:
    """What an operation comes after: an entry of a rank's list (``index``), or an instance of a labelled operation.

    ``values`` are the label's loop variables where they differ from the operation's own; ``rank`` None means
    the same rank. ``loops`` make it several dependencies.
    """

    node: Node
    rank: IntExpr | None
    index: IntExpr | None = None
    label: str | None = None
    values: tuple[tuple[str, IntExpr], ...] = ()
    when: IntExpr | None = None
    loops: tuple[Loop, ...] = ()


@dataclass(frozen=True)
class OpItem:
    """One operation, written once for many ranks and loop values."""

    node: Node
    verb: Verb
    chunk: ChunkExpr
    into: ChunkExpr | None
    source: IntExpr | None
    target: IntExpr | None
    label: str | None
    loops: tuple[str, ...]
    depends: tuple[Dependency, ...]
    channel: IntExpr | None
    reduce: Reduction | None
    backend: str | None
    kind: str | None = None
    ranks: tuple[IntExpr, ...] = ()
    split: SplitExpr | None = None


@dataclass(frozen=True)
class ChunkItem:
    """One entry of ``before`` or ``after``."""

    node: Node
    chunk: ChunkExpr


@dataclass(frozen=True)
class Item:
    """Loops, bindings and a condition around operations, chunks, or more items."""

    node: Node
    loops: tuple[Loop, ...]
    lets: tuple[tuple[str, IntExpr], ...]
    when: IntExpr | None
    body: tuple[Item | OpItem | ChunkItem, ...]


@dataclass(frozen=True)
class RankSection:
    """What one rank has or does besides what all ranks do; None where the key is absent."""

    before: tuple[Item, ...] | None
    after: tuple[Item, ...] | None
    ops: tuple[Item, ...]


@dataclass(frozen=True)
class TensorDecl:
    """``NAME: [M, 64]``. A dimension is a name to bind (str) or an expression; None: as the tensor it is applied to."""

    name: str
    node: Node
    dims: tuple[str | IntExpr, ...] | None


@dataclass(frozen=True)
class CountDecl:
    """``NAME: [world, world]``: counts that are given when the plan is applied, by one to three indices.

    A size is a name to bind (str) or an expression. ``each`` is what one of them is at most, and ``total`` what all are
    together; None: any number.
    """

    name: str
    node: Node
    sizes: tuple[str | IntExpr, ...]
    each: IntExpr | None = None
    total: IntExpr | None = None


@dataclass(frozen=True)
class PlanTemplate:
    """A plan file. ``world`` and ``dim`` are None where the file leaves them open.

    ``across`` is a chunk that is cut along a second dimension, if there is one. ``axes`` are the plan's names for the
    axes of a mesh (none: it needs no mesh), and ``mesh`` is the one it is for, where it says that.
    """

    document: Document
    name: str
    world: int | None
    dim: int | None
    tensors: tuple[TensorDecl, ...]
    before: tuple[Item, ...] | None
    after: tuple[Item, ...] | None
    ops: tuple[Item, ...]
    ranks: dict[int, RankSection]
    meta: dict[str, str]
    labels: dict[str, OpItem] = field(default_factory=dict)
    uses_split: bool = False
    split: SplitExpr | None = None
    uses_direction: bool = False
    across: ChunkExpr | None = None
    axes: tuple[str, ...] = ()
    mesh: Mesh | None = None
    groups: Mapping[str, RankValues] = field(default_factory=dict)
    parts: Mapping[str, RankValues] = field(default_factory=dict)
    counts: tuple[CountDecl, ...] = ()
