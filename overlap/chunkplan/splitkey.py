"""The key `split` of a plan and of an operation: into which parts transfers are cut where the caller does not say.

    split: 4                      split: [1, 2, 1]                of a plan also  split: [[1], [1], [3, 1]]

Each number is an expression; `cuts` says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from .cuts import TURNS, Split, split_of
from .document import Document, Node
from .expr import IntExpr, parse_int

MOST = 1 << 16
"""Parts of a transfer; beyond, a typing mistake is likelier than a split."""


@dataclass(frozen=True)
class SplitExpr:
    """A split whose numbers are expressions. ``turns``: one for all transfers, or three; of one a single number is of parts."""

    turns: tuple[tuple[IntExpr, ...], ...]
    counted: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset[str]().union(*(expr.names for turn in self.turns for expr in turn))

    def __call__(self, env: Mapping[str, Any]) -> Split:
        """The split that the values of names make of it.

        Raises:
            PlanError: a number below 1, or far too many parts; with line and column.
        """
        found = []
        for turn in self.turns:
            values = [expr(env) for expr in turn]  # type: ignore[arg-type]
            for expr, value in zip(turn, values, strict=True):
                if value < 1 or self.counted and value > MOST:
                    said = f"a split into {value} parts" if self.counted else f"a part of weight {value}"
                    raise expr.error(said, f"write 1 or more; of parts there are {MOST} at most")
            found.append(values)
        if self.counted:
            return split_of(found[0][0])
        return split_of(found[0] if len(found) == 1 else found)


def read_split(document: Document, node: Node, scope: frozenset[str], *, by_turn: bool) -> SplitExpr:
    """The value of a key `split`.

    Args:
        scope: names with a value.
        by_turn: whether the first and the last transfer may be cut otherwise.

    Raises:
        PlanError: it is none.
    """

    def weights(items: list[Node]) -> tuple[IntExpr, ...]:
        return tuple(parse_int(document, item, "a weight of `split`", scope) for item in items)

    if not isinstance(node, yaml.SequenceNode):
        return SplitExpr(((parse_int(document, node, "`split`", scope),),), counted=True)
    items = document.sequence(node, "`split`")
    if not items:
        raise document.error(
            node, "`split` has no weights", help="write a number of parts, or weights such as [1, 2, 1]"
        )
    if not any(isinstance(item, yaml.SequenceNode) for item in items):
        return SplitExpr((weights(items),), counted=False)
    if not by_turn:
        raise document.error(
            node, "an operation is cut in one way only", help="write its weights as one list, [1, 2, 1]"
        )
    turns = tuple(weights(document.sequence(item, "the weights of a turn")) for item in items)
    if len(turns) != len(TURNS) or not all(turns):
        raise document.error(
            node,
            f"`split` has weights for {len([turn for turn in turns if turn])} turns",
            help=f"give those of {', '.join(TURNS)}, as in [[1], [1], [3, 1]]",
        )
    return SplitExpr(turns, counted=False)
