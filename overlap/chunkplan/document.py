"""A plan file as YAML nodes that remember their line and column, and the errors that point at them.

Plans are composed, never constructed: every value stays the text the user wrote, so ``1:30`` is no
time of day and ``on`` is no boolean. Anchors, aliases and tags are refused; they have no use in a plan
and make small files expand without bound.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import yaml
from yaml import Node

from overlap.errors import PlanError, SourceSpan

from .rankkinds import Names

__all__ = ["Document", "Node", "nearest"]

COMMA = "inside { } a comma ends a value: quote text that holds one, or give each key a line"
_NULL = "tag:yaml.org,2002:null"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def close_to(word: str, known: Iterable[str]) -> list[str]:
    """The known word closest to ``word``, capitals and file suffixes aside; none where none is close."""
    folded = {k.lower().removesuffix(".yaml").removesuffix(".yml"): k for k in known}
    near = difflib.get_close_matches(word.lower().removesuffix(".yaml").removesuffix(".yml"), folded, n=1)
    return [folded[name] for name in near]


def nearest(word: str, known: Iterable[str]) -> str:
    """Help text: the known word closest to ``word`` if one is close, and all of them."""
    words = sorted(set(known))
    close = close_to(word, words)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return f"{hint}there is {', '.join(words)}" if words else hint.strip()


class Document:
    """The text of one plan file and its root node.

    Args:
        text: the file's content.
        path: shown in errors.

    Raises:
        PlanError: the text is not YAML, is empty, or uses anchors, aliases or tags.
    """

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.lines = text.splitlines()
        self.names = Names()
        self.root = self._compose(text)

    def _compose(self, text: str) -> Node:
        try:
            for event in yaml.parse(text, Loader=_Loader):
                mark = event.start_mark
                line, column = (mark.line, mark.column) if mark else (0, 0)
                if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                    help = "write the value out, or use `for` and `let`"
                    raise self.error_at(line, column, "a plan has no anchors and aliases", help=help)
                if tag := getattr(event, "tag", None):
                    raise self.error_at(line, column, f"a plan has no tags such as {tag}", help="remove the tag")
            root = yaml.compose(text, Loader=_Loader)
        except yaml.MarkedYAMLError as error:
            place = error.problem_mark or error.context_mark
            line, column = (place.line, place.column) if place else (0, 0)
            raise self.error_at(
                line,
                column,
                f"not valid YAML: {error.problem or error.context}",
                help="indent with spaces, write `key: value`, and quote text that holds `: ` or ` #`",
            ) from None
        except yaml.YAMLError as error:
            first = str(error).splitlines()[0]
            raise self.error_at(0, 0, f"not valid YAML: {first}", help="a plan is a UTF-8 text file") from None
        except RecursionError:
            raise self.error_at(0, 0, "nested too deeply", help="a plan needs a few levels only") from None
        if root is None:
            starts = "a plan starts with `plan: NAME`, links with `world: 8`, a machine with `machine: NAME`"
            raise self.error_at(0, 0, "the file is empty", help=starts)
        return root

    # Places and errors

    def error_at(self, line: int, column: int, message: str, *, help: str = "", width: int = 1) -> PlanError:
        """An error at a place counted from 0."""
        text = self.lines[line] if line < len(self.lines) else ""
        return PlanError(message, where=SourceSpan(self.path, line + 1, column + 1, text, max(1, width)), help=help)

    def span(self, node: Node, start: int = 0, end: int | None = None) -> SourceSpan:
        """The place of a node, or of the characters ``start:end`` of a scalar's value."""
        mark, stop = node.start_mark, node.end_mark
        line, column = mark.line, mark.column
        text = self.lines[line] if line < len(self.lines) else ""
        one_line = stop.line == line
        if isinstance(node, yaml.ScalarNode) and one_line and node.style != "|" and node.style != ">":
            column += start + (1 if node.style in ("'", '"') else 0)
            last = mark.column + (1 if node.style in ("'", '"') else 0) + end if end is not None else stop.column
            return SourceSpan(self.path, line + 1, column + 1, text, max(1, last - column))
        width = stop.column - column if one_line else len(text) - column
        return SourceSpan(self.path, line + 1, column + 1, text, max(1, width))

    def cut_short(self, node: Node) -> bool:
        """Whether a comma ends a plain scalar in the middle of brackets, as in ``{for: s in range(1, world)}``."""
        if not isinstance(node, yaml.ScalarNode) or node.style:
            return False
        stop = node.end_mark
        line = self.lines[stop.line] if stop.line < len(self.lines) else ""
        open_brackets = sum(map(node.value.count, "([")) - sum(map(node.value.count, ")]"))
        return open_brackets > 0 and line[stop.column :].lstrip().startswith(",")

    def error(self, node: Node, message: str, *, help: str = "") -> PlanError:
        return PlanError(message, where=self.span(node), help=help)

    # Reading

    def mapping(self, node: Node, what: str, keys: Iterable[str] | None = None) -> dict[str, Node]:
        """The entries of a mapping.

        Args:
            what: names the mapping in errors, as in "an operation".
            keys: the keys there are; None when any name will do.

        Raises:
            PlanError: no mapping, a key given twice, or an unknown key (the nearest one is named).
        """
        return {key: value for key, (_, value) in self.entries(node, what, keys).items()}

    def entries(self, node: Node, what: str, keys: Iterable[str] | None = None) -> dict[str, tuple[Node, Node]]:
        """As `mapping`, with the key's own node before each value."""
        if not isinstance(node, yaml.MappingNode):
            shown = f" such as `{next(iter(keys))}: ...`" if keys else ""
            raise self.error(node, f"{what} is a mapping", help=f"write `key: value` lines{shown}")
        known = None if keys is None else list(keys)
        found: dict[str, tuple[Node, Node]] = {}
        for key_node, value in node.value:
            key = self.scalar(key_node, f"a key of {what}")
            if known is not None and key not in known:
                help = nearest(key, known)
                if any(mark in key for mark in "()[]"):
                    help = COMMA
                raise self.error(key_node, f"{what} has no key `{key}`", help=help)
            if key in found:
                raise self.error(key_node, f"`{key}` is given twice", help="keep one of them")
            found[key] = (key_node, value)
        return found

    def sequence(self, node: Node, what: str) -> list[Node]:
        """The items of a sequence.

        Raises:
            PlanError: it is none.
        """
        if not isinstance(node, yaml.SequenceNode):
            raise self.error(node, f"{what} is a list", help="write it as `- item` lines or `[a, b]`")
        return list(node.value)

    def items(self, node: Node, what: str) -> list[Node]:
        """The items of a sequence; anything else counts as a list of one."""
        return self.sequence(node, what) if isinstance(node, yaml.SequenceNode) else [node]

    def scalar(self, node: Node, what: str) -> str:
        """The text of a scalar.

        Raises:
            PlanError: it is a list, a mapping, or left out.
        """
        if not isinstance(node, yaml.ScalarNode):
            kind = "list" if isinstance(node, yaml.SequenceNode) else "mapping"
            raise self.error(node, f"{what} is one value, not a {kind}", help="write a single value")
        if node.tag == _NULL and not node.value:
            raise self.error(node, f"{what} has no value", help="write a value, or remove the key")
        return node.value

    def choice(self, node: Node, what: str, words: Iterable[str]) -> str:
        """A scalar that is one of ``words``."""
        known = list(words)
        text = self.scalar(node, what)
        if text not in known:
            raise self.error(node, f"unknown {what} `{text}`", help=nearest(text, known))
        return text

    def require(self, node: Node, entries: Mapping[str, Node], key: str, what: str, example: str) -> Node:
        """The value of a key that must be there."""
        if key not in entries:
            raise self.error(node, f"{what} needs `{key}`", help=f"add `{key}: {example}`")
        return entries[key]
