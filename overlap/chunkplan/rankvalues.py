"""The keys `groups` and `parts` of a plan file: a number for each rank and tensor.

groups: {x: node}                  an expression, with the value it has on each rank
parts: {x: [0, 1, 0, 1]}           or the numbers, written out
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import yaml

from .document import Document, Node
from .expr import Env, IntExpr
from .frame import FrameReader


@dataclass(frozen=True)
class RankValues:
    """A number for each rank: an expression a rank, or one for all."""

    document: Document
    node: Node
    key: str
    values: IntExpr | tuple[IntExpr, ...]

    def __call__(self, envs: Sequence[Env]) -> tuple[int, ...]:
        """The numbers in a world whose ranks see the names of ``envs``.

        Raises:
            PlanError: not one number a rank, or a negative one.
        """
        exprs = self.values if isinstance(self.values, tuple) else (self.values,) * len(envs)
        if len(exprs) != len(envs):
            raise self.document.error(
                self.node,
                f"`{self.key}` has {len(exprs)} numbers in a world of {len(envs)}",
                help="give each rank one, or write an expression such as `rank // 2`",
            )
        found = []
        for rank, (expr, env) in enumerate(zip(exprs, envs, strict=True)):
            value = expr(env)
            if value < 0:
                raise expr.error(f"`{self.key}` is {value} on rank {rank}", "numbers are counted from 0")
            found.append(value)
        return tuple(found)


def read_rank_values(
    reader: FrameReader, node: Node | None, key: str, tensors: Iterable[str], scope: frozenset[str]
) -> Mapping[str, RankValues]:
    """By the names of tensors the numbers that a key gives them.

    Raises:
        PlanError: no such tensor, or an expression that cannot be read.
    """
    if node is None:
        return {}
    document = reader.document
    found = {}
    for name, row in document.mapping(node, f"`{key}`", tuple(tensors)).items():
        values: IntExpr | tuple[IntExpr, ...]
        if isinstance(row, yaml.SequenceNode):
            values = tuple(reader.int_of(item, f"a number of `{key}`", scope) for item in row.value)
        else:
            values = reader.int_of(row, f"`{key}` of `{name}`", scope)
        found[name] = RankValues(document, row, key, values)
    return found
