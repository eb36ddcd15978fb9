"""Counts as text: lists in lists, as YAML and JSON write them.

[[0, 3], [2, 1]]                   sent[0, 1] is 3
"""

from __future__ import annotations

import yaml

from overlap.errors import PlanError

from .counts import CountArray
from .document import Document, Node

FORM = "write lists in lists, such as [[0, 3], [2, 1]]: a row for each value of the first index"


def read_counts_text(text: str, path: str) -> CountArray:
    """The counts in ``text``; ``path`` is shown in errors.

    Raises:
        PlanError: no lists of integers from 0 on, or rows of different lengths, with line and column.
    """
    document = Document(text, path)
    try:
        return CountArray.of(_level(document, document.root, document.root))
    except RecursionError:
        raise document.error(document.root, "nested too deeply", help=FORM) from None
    except PlanError as error:
        raise error.at(document.span(document.root)) from None


def _level(document: Document, node: Node, pattern: Node) -> list[object] | int:
    """The values under a node, whose rows are as long as those under ``pattern``, the first of its kind."""
    if isinstance(pattern, yaml.SequenceNode):
        if not isinstance(node, yaml.SequenceNode) or len(node.value) != len(pattern.value):
            said = f"{len(node.value)} entries" if isinstance(node, yaml.SequenceNode) else "no list"
            raise document.error(
                node, f"rows differ: {said}, where {len(pattern.value)} stand elsewhere", help="give every row as many"
            )
        return [_level(document, item, _first(pattern)) for item in node.value]
    count = document.scalar(node, "a count")
    if not (count.isascii() and count.isdigit() and len(count) <= 18):
        raise document.error(node, f"`{count}` is no count", help="a count is an integer from 0 on")
    return int(count)


def _first(row: yaml.SequenceNode) -> Node:
    return row.value[0]
