"""Plan file text to `PlanTemplate`. The keys of the language are the tables at the top."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from .chunkexpr import GIVEN
from .countskey import read_counts, with_limits
from .depends import DependencyReader
from .document import Document, Node
from .expr import IntExpr, parse_int
from .frame import FRAME_KEYS, NAME, SYMBOLS
from .mesh import Mesh
from .meshkey import read_mesh
from .rankkinds import need_global
from .rankvalues import read_rank_values
from .reduction import REDUCTIONS, Reduction
from .splitkey import SplitExpr, read_split
from .template import (
    VERBS,
    ChunkItem,
    Item,
    OpItem,
    PlanTemplate,
    RankSection,
    TensorDecl,
)

PLAN_KEYS = (
    "plan",
    "world",
    "mesh",
    "dim",
    "counts",
    "tensors",
    "before",
    "after",
    "ops",
    "ranks",
    "meta",
    "groups",
    "parts",
    "split",
)
RANK_KEYS = ("before", "after", "ops")
OP_KEYS = (
    *VERBS,
    "from",
    "to",
    "into",
    "chunk",
    "ranks",
    "depends",
    "label",
    "channel",
    "reduce",
    "backend",
    "split",
    "do",
)
MAX_DEPTH = 16
REDUCE_KEYS = ("op", "accumulate")
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")

ENDS: Mapping[str, tuple[str, ...]] = {
    "move": ("from", "to"),
    "pull": ("from",),
    "push": ("to",),
    "local": (),
    "collective": ("chunk",),
}
OPTIONAL_ENDS: Mapping[str, tuple[str, ...]] = {"collective": ("ranks",)}


def read_template(text: str, path: str) -> PlanTemplate:
    """The plan file `text`; `path` is shown in errors.

    Raises:
        PlanError: with line, column and what to write instead.
    """
    document = Document(text, path)
    try:
        return _Reader(document).plan()
    except RecursionError:
        raise document.error(document.root, "nested too deeply", help="a plan needs a few levels only") from None


class _Reader(DependencyReader):
    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.verbs: set[str] = set()

    def plan(self) -> PlanTemplate:
        document = self.document
        root = document.root
        entries = document.mapping(root, "a plan", PLAN_KEYS)
        name = document.scalar(document.require(root, entries, "plan", "a plan", "NAME"), "the plan's name")
        axes, mesh = self._mesh(entries)
        counts, bound = read_counts(self, entries.get("counts"))
        tensors = self._tensors(entries.get("tensors"), bound)
        self.declared = frozenset(decl.name for decl in tensors)
        sizes = bound.union(d for decl in tensors for d in decl.dims or () if isinstance(d, str))
        counts = with_limits(self, entries.get("counts"), counts, frozenset(SYMBOLS) - {"rank"} | sizes)
        scope = frozenset((*SYMBOLS, *axes)) | sizes
        groups, parts = (
            read_rank_values(
                self, entries.get(key), key, self.declared or (GIVEN,), frozenset(("rank", "world", *axes)) | sizes
            )
            for key in ("groups", "parts")
        )
        before = self._chunks(entries.get("before"), "before", scope)
        after = self._chunks(entries.get("after"), "after", scope)
        ops = self._items(entries.get("ops"), "ops", scope)
        ranks = self._ranks(entries.get("ranks"), scope)
        for key, given in (("before", before), ("after", after)):
            if given is None and not ranks:
                document.require(root, entries, key, "a plan", "shard(rank)" if key == "before" else "whole")
        for dependency, loops in self.references:
            self.check_reference(dependency, loops)
        return PlanTemplate(
            document=document,
            name=name,
            world=self._literal(entries.get("world"), "world", 1),
            axes=axes,
            mesh=mesh,
            dim=self._literal(entries.get("dim"), "dim", 0),
            tensors=tensors,
            before=before,
            after=after,
            ops=ops,
            ranks=ranks,
            meta=self._meta(entries.get("meta")),
            groups=groups,
            parts=parts,
            counts=counts,
            labels=self.labels,
            uses_split="split" in self.used,
            split=self._split(entries.get("split"), sizes),
            uses_direction="move" in self.verbs,
            across=self.across,
        )

    # Parts of the head

    def _split(self, node: Node | None, sizes: frozenset[str]) -> SplitExpr | None:
        if node is None:
            return None
        return read_split(self.document, node, frozenset(("world", "dim", "extent")) | sizes, by_turn=True)

    def _mesh(self, entries: Mapping[str, Node]) -> tuple[tuple[str, ...], Mesh | None]:
        named, mesh = read_mesh(self.document, entries.get("mesh"))
        axes: list[str] = []
        for place, name in named:
            self.new_name(place, name, frozenset(axes))
            self.is_kind(name, name)
            axes.append(name)
        self.document.names.axes = tuple(axes)
        return tuple(axes), mesh

    def _literal(self, node: Node | None, what: str, least: int) -> int | None:
        if node is None:
            return None
        text = self.document.scalar(node, f"`{what}`")
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
            raise self.document.error(
                node, f"`{what}` is {text}", help=f"write an integer from {least} on, or leave `{what}` out"
            )
        return int(text)

    def _tensors(self, node: Node | None, counted: frozenset[str]) -> tuple[TensorDecl, ...]:
        """The declarations of tensors; ``counted`` are sizes that the counts bind."""
        if node is None:
            return ()
        document = self.document
        rows = document.entries(node, "`tensors`")
        if not rows:
            raise document.error(
                node, "`tensors` names no tensor", help="write `tensors: {x: [M, K]}`, or leave it out"
            )
        bound = set(counted)
        found = []
        for name, (key, value) in rows.items():
            if not NAME.match(name):
                raise document.error(key, f"`{name}` cannot name a tensor", help="write a Python identifier")
            if name in document.names.counts:
                raise document.error(key, f"`{name}` names counts already", help="choose another name")
            if isinstance(value, yaml.ScalarNode) and value.value == GIVEN:
                found.append(TensorDecl(name, key, None))
                continue
            dims: list[str | IntExpr] = []
            for dim in document.sequence(value, f"the shape of `{name}`"):
                text = document.scalar(dim, "a dimension").strip()
                if NAME.match(text) and text not in bound and text not in (*SYMBOLS, *document.names.counts):
                    self.new_name(dim, text)
                    bound.add(text)
                    dims.append(text)
                else:
                    dims.append(parse_int(document, dim, "a dimension", frozenset(bound | {"world"})))
            found.append(TensorDecl(name, key, tuple(dims)))
        return tuple(found)

    def _meta(self, node: Node | None) -> dict[str, str]:
        if node is None:
            return {}
        rows = self.document.mapping(node, "`meta`")
        return {key: self.document.scalar(value, f"`{key}`") for key, value in rows.items()}

    def _ranks(self, node: Node | None, scope: frozenset[str]) -> dict[int, RankSection]:
        if node is None:
            return {}
        document = self.document
        found: dict[int, RankSection] = {}
        for text, (key, value) in document.entries(node, "`ranks`").items():
            rank = self._literal(key, "rank", 0)
            assert rank is not None
            if rank in found:
                raise document.error(key, f"rank {rank} is given twice", help="keep one of them")
            entries = document.mapping(value, f"rank {text}", RANK_KEYS)
            found[rank] = RankSection(
                self._chunks(entries.get("before"), "before", scope),
                self._chunks(entries.get("after"), "after", scope),
                self._items(entries.get("ops"), "ops", scope),
            )
        return found

    # Chunks before and after

    def _chunks(self, node: Node | None, what: str, scope: frozenset[str]) -> tuple[Item, ...] | None:
        if node is None:
            return None
        return tuple(self._chunk_item(item, what, scope) for item in self.document.items(node, f"`{what}`"))

    def _chunk_item(self, node: Node, what: str, scope: frozenset[str]) -> Item:
        if not isinstance(node, yaml.MappingNode):
            return Item(node, (), (), None, (ChunkItem(node, self.chunk_of(node, f"`{what}`", scope)),))
        kind = f"an entry of `{what}`"
        entries = self.document.mapping(node, kind, ("chunk", *FRAME_KEYS))
        loops, lets, when, inner = self.frame(entries, scope)
        chunk = self.document.require(node, entries, "chunk", kind, "shard(rank)")
        return Item(node, loops, lets, when, (ChunkItem(chunk, self.chunk_of(chunk, "`chunk`", inner)),))

    # Operations

    def _items(
        self, node: Node | None, what: str, scope: frozenset[str], loops: tuple[str, ...] = (), depth: int = 0
    ) -> tuple[Item, ...]:
        if node is None:
            return ()
        return tuple(self._item(item, scope, loops, depth) for item in self.document.sequence(node, f"`{what}`"))

    def _item(self, node: Node, scope: frozenset[str], outer: tuple[str, ...], depth: int) -> Item:
        document = self.document
        entries = document.mapping(node, "an operation", (*OP_KEYS, *FRAME_KEYS))
        loops, lets, when, inner = self.frame(entries, scope)
        names = outer + tuple(loop.name for loop in loops)
        verbs = [verb for verb in VERBS if verb in entries]
        if "do" in entries:
            if depth == MAX_DEPTH:
                raise document.error(
                    node, f"`do` nested more than {MAX_DEPTH} deep", help="give one `for` several loops"
                )
            extra = [key for key in entries if key in OP_KEYS and key != "do"]
            if extra:
                raise document.error(
                    entries[extra[0]], f"`{extra[0]}` beside `do`", help="move it into an item of `do`"
                )
            return Item(node, loops, lets, when, self._items(entries["do"], "do", inner, names, depth + 1))
        if len(verbs) != 1:
            said = f"both `{verbs[0]}` and `{verbs[1]}`" if verbs else "no verb"
            raise document.error(node, f"an operation with {said}", help=f"give it one of {', '.join(VERBS)}, or `do`")
        return Item(node, loops, lets, when, (self._op(node, verbs[0], entries, inner, names),))

    def _op(
        self, node: Node, verb: str, entries: Mapping[str, Node], scope: frozenset[str], loops: tuple[str, ...]
    ) -> OpItem:
        document = self.document
        self.verbs.add(verb)
        what = f"a `{verb}`"
        ends = ENDS[verb]
        for key in ("from", "to", "chunk", "ranks"):
            if key in entries and key not in (*ends, *OPTIONAL_ENDS.get(verb, ())):
                raise document.error(entries[key], f"{what} has no `{key}`", help=self._ends_help(verb))
        for key in ends:
            document.require(node, entries, key, what, {"chunk": "shard(rank)"}.get(key, "(rank + step) % world"))
        kind = None
        ranks: tuple[IntExpr, ...] = ()
        if verb == "collective":
            kind = document.choice(entries[verb], "collective", KINDS)
            listed = document.sequence(entries["ranks"], "`ranks`") if "ranks" in entries else ()
            ranks = tuple(self.rank_of(item, "a rank", scope) for item in listed)
            if "split" in entries:
                raise document.error(
                    entries["split"], "a collective is not cut", help="leave `split` out, or write transfers"
                )
        chunk_node = entries["chunk"] if verb == "collective" else entries[verb]

        def optional_int(key: str) -> IntExpr | None:
            return self.int_of(entries[key], f"`{key}`", scope) if key in entries else None

        def optional_text(key: str) -> str | None:
            return document.scalar(entries[key], f"`{key}`") if key in entries else None

        item = OpItem(
            node=node,
            verb=verb,  # type: ignore[arg-type]
            chunk=self.chunk_of(chunk_node, f"`{'chunk' if kind else verb}`", scope),
            into=self.chunk_of(entries["into"], "`into`", scope) if "into" in entries else None,
            source=need_global(source, "`from`") if (source := optional_int("from")) else None,
            target=need_global(target, "`to`") if (target := optional_int("to")) else None,
            label=optional_text("label"),
            loops=loops,
            depends=self.depends_of(entries.get("depends"), scope, loops),
            channel=optional_int("channel"),
            reduce=self._reduction(entries["reduce"]) if "reduce" in entries else None,
            backend=optional_text("backend"),
            kind=kind,
            ranks=ranks,
            split=read_split(document, entries["split"], scope - {"split"}, by_turn=False)
            if "split" in entries
            else None,
        )
        if item.label is not None:
            if item.label in self.labels:
                raise document.error(
                    entries["label"], f"label `{item.label}` is given twice", help="choose another name"
                )
            self.labels[item.label] = item
        return item

    @staticmethod
    def _ends_help(verb: str) -> str:
        return {
            "pull": "a pull runs on the rank that receives: write `from` only",
            "push": "a push runs on the rank that sends: write `to` only",
            "local": "a local copy stays on its rank: write `into` for its destination",
            "move": "a move has `from` and `to`",
            "collective": "a collective has `chunk`, `into` and, unless it is over all, `ranks`",
        }[verb]

    def _reduction(self, node: Node) -> Reduction:
        """``sum``, or ``{op: sum, accumulate: fp64}``."""
        document = self.document
        entries = {"op": node}
        if isinstance(node, yaml.MappingNode):
            entries = document.mapping(node, "a reduction", REDUCE_KEYS)
            document.require(node, entries, "op", "a reduction", "sum")
        op = document.choice(entries["op"], "reduction", REDUCTIONS)
        if "accumulate" not in entries:
            return Reduction(op)
        known = REDUCTIONS[op].accumulators
        return Reduction(op, document.choice(entries["accumulate"], f"accumulator of a {op}", known))
