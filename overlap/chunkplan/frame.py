"""The expressions of a plan file, and the frame that any entry may have: ``for``, ``let`` and ``when``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from .chunkexpr import GIVEN, WORDS, ChunkExpr, parse_chunk
from .document import Document, Node
from .expr import FUNCTIONS, IntExpr, Snippet, compile_int, parse_int
from .rankkinds import need_global
from .template import Loop

SYMBOLS = ("rank", "world", "split", "dim", "extent")
"""Names every expression knows: this rank, the number of ranks, parts of a shard, the dimension cut and its size."""

FRAME_KEYS = ("for", "let", "when")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class FrameReader:
    """Reads expressions and frames, and remembers which names they use."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.declared: frozenset[str] = frozenset()
        self.used: set[str] = set()
        self.across: ChunkExpr | None = None

    def new_name(self, node: Node, name: str, scope: frozenset[str] = frozenset()) -> None:
        known = self.document.names
        taken = scope.union(SYMBOLS, FUNCTIONS, WORDS, known.axes, known.counts, (GIVEN, "range"))
        if not NAME.match(name):
            raise self.document.error(node, f"`{name}` cannot be a name", help="write a Python identifier")
        if name in taken:
            raise self.document.error(node, f"`{name}` already means something here", help="choose another name")

    def int_of(self, node: Node, what: str, scope: frozenset[str]) -> IntExpr:
        expr = parse_int(self.document, node, what, scope)
        self.used |= expr.names
        return expr

    def rank_of(self, node: Node, what: str, scope: frozenset[str]) -> IntExpr:
        """An expression where a global rank stands."""
        return need_global(self.int_of(node, what, scope), what)

    def is_kind(self, name: str, kind: str | None) -> None:
        """Remembers whether a name that has just been given is a rank; see `rankkinds`."""
        kinds = self.document.names.kinds
        kinds.pop(name, None)
        if kind is not None:
            kinds[name] = kind

    def chunk_of(self, node: Node, what: str, scope: frozenset[str]) -> ChunkExpr:
        expr = parse_chunk(self.document, node, what, scope, self.declared)
        self.used |= expr.names
        if expr.across is not None and self.across is None:
            self.across = expr
        return expr

    def frame(
        self, entries: Mapping[str, Node], scope: frozenset[str]
    ) -> tuple[tuple[Loop, ...], tuple[tuple[str, IntExpr], ...], IntExpr | None, frozenset[str]]:
        loops: list[Loop] = []
        if "for" in entries:
            loops, scope = self.loops_of(entries["for"], scope)
        lets: list[tuple[str, IntExpr]] = []
        if "let" in entries:
            for name, (key, value) in self.document.entries(entries["let"], "`let`").items():
                self.new_name(key, name, scope)
                bound = self.int_of(value, f"`{name}`", scope)
                self.is_kind(name, bound.kind)
                lets.append((name, bound))
                scope = scope | {name}
        when = self.int_of(entries["when"], "`when`", scope) if "when" in entries else None
        return tuple(loops), tuple(lets), when, scope

    def loops_of(self, node: Node, scope: frozenset[str]) -> tuple[list[Loop], frozenset[str]]:
        """``NAME in range(a, b) if c for NAME in ...``, as in a Python comprehension."""
        form = "write `step in range(1, world)`, and `... for part in range(split)` behind it for a second loop"
        snippet = Snippet.parse(self.document, node, "`for`", help=form, prefix="[0 for ", suffix="]")
        tree = snippet.tree
        if not (isinstance(tree, ast.ListComp) and isinstance(tree.elt, ast.Constant)):
            raise self.document.error(node, "`for` is no loop", help=form)
        loops = []
        for generator in tree.generators:
            target, over = generator.target, generator.iter
            if not isinstance(target, ast.Name) or generator.is_async:
                raise snippet.error(target, "a loop has one variable", form)
            match over:
                case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]) if 1 <= len(args) <= 3:
                    parts, is_range = args, True
                case ast.List(elts=elts) | ast.Tuple(elts=elts):
                    parts, is_range = elts, False
                case _:
                    raise snippet.error(over, f"cannot loop over `{snippet.shown(over)}`", form)
            bounds = tuple(compile_int(snippet, part, scope) for part in parts)
            self.new_name(node, target.id, scope)
            scope = scope | {target.id}
            self.is_kind(target.id, None)
            conditions = tuple(compile_int(snippet, part, scope) for part in generator.ifs)
            loops.append(Loop(target.id, bounds, is_range, conditions))
            self.used.update(*(expr.names for expr in (*bounds, *conditions)))
        return loops, scope
