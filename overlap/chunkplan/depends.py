"""What operations come after: the key `depends` of a plan file."""

from __future__ import annotations

import yaml

from .document import Document, Node, nearest
from .frame import FrameReader
from .template import Dependency, Loop, OpItem

KEYS = ("on", "rank", "index", "when", "for")
"""Keys of a dependency that is a mapping; any other one is a loop variable of the label in `on`."""


class DependencyReader(FrameReader):
    """Reads dependencies, and remembers those on labels until every label is known."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.labels: dict[str, OpItem] = {}
        self.references: list[tuple[Dependency, tuple[str, ...]]] = []

    def depends_of(self, node: Node | None, scope: frozenset[str], loops: tuple[str, ...]) -> tuple[Dependency, ...]:
        if node is None:
            return ()
        return tuple(self._dependency(item, scope, loops) for item in self.document.items(node, "`depends`"))

    def _dependency(self, node: Node, scope: frozenset[str], loops: tuple[str, ...]) -> Dependency:
        document = self.document
        if isinstance(node, yaml.SequenceNode):
            pair = document.sequence(node, "a dependency")
            if len(pair) != 2:
                raise document.error(node, "a dependency is `[rank, index]`", help="write `depends: [[0, 2], [1, 0]]`")
            return Dependency(node, self.rank_of(pair[0], "a rank", scope), self.int_of(pair[1], "an index", scope))
        if isinstance(node, yaml.ScalarNode):
            dependency = Dependency(node, None, label=document.scalar(node, "a dependency"))
            self.references.append((dependency, loops))
            return dependency
        entries = document.mapping(node, "a dependency")
        over: list[Loop] = []
        if "for" in entries:
            over, scope = self.loops_of(entries["for"], scope)
            loops += tuple(loop.name for loop in over)
        rank = self.rank_of(entries["rank"], "`rank`", scope) if "rank" in entries else None
        when = self.int_of(entries["when"], "`when`", scope) if "when" in entries else None
        if "index" in entries:
            document.mapping(node, "a dependency with `index`", ("rank", "index", "when", "for"))
            document.require(node, entries, "rank", "a dependency with `index`", "rank")
            index = self.int_of(entries["index"], "`index`", scope)
            return Dependency(node, rank, index, when=when, loops=tuple(over))
        label = document.scalar(document.require(node, entries, "on", "a dependency", "LABEL"), "`on`")
        values = tuple(
            (key, self.int_of(value, f"`{key}`", scope)) for key, value in entries.items() if key not in KEYS
        )
        dependency = Dependency(node, rank, label=label, values=values, when=when, loops=tuple(over))
        self.references.append((dependency, loops))
        return dependency

    def check_reference(self, dependency: Dependency, loops: tuple[str, ...]) -> None:
        document = self.document
        label = dependency.label or ""
        if label not in self.labels:
            help = (
                nearest(label, self.labels)
                or "no operation has a label: give one `label: NAME`, or write `[[rank, index]]`"
            )
            raise document.error(dependency.node, f"no operation is labelled `{label}`", help=help)
        wanted = self.labels[label].loops
        given = {name for name, _ in dependency.values}
        for name in sorted(given):
            if name not in wanted:
                raise document.error(
                    dependency.node,
                    f"`{label}` has no loop variable `{name}`",
                    help=nearest(name, ("on", "rank", "when", "for", *wanted)),
                )
        missing = [name for name in wanted if name not in given and name not in loops]
        if missing:
            raise document.error(
                dependency.node,
                f"which `{missing[0]}` of `{label}`?",
                help=f"write `{{on: {label}, {missing[0]}: ...}}`",
            )
