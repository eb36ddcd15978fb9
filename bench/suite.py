"""The rows of the suite: every operator and shape that has a target, and those of a decode step.

Tall rows have M >= 2048 and a target for eta, which `scores` explains. Decode rows are the products of the MLP of Llama-3 8B
(4096 x 14336) and 70B (8192 x 28672) under tensor parallelism, for few tokens: there the target is never to be slower than the
best baseline.
"""

from __future__ import annotations

from typing import NamedTuple

TALL_FROM = 2048
DECODE_M = (1, 8, 16, 64, 128, 512)
LLAMA = ((4096, 14336), (8192, 28672))
"""Width of the model and of its MLP."""
TARGETS = {
    "ag_gemm": {
        (8192, 6144, 4096): 0.68,
        (8192, 14336, 4096): 0.90,
        (8192, 8192, 8192): 0.86,
        (8192, 28672, 8192): 0.95,
        (8192, 29568, 8192): 0.95,
        (8192, 53248, 16384): 0.98,
    },
    "gemm_rs": {
        (8192, 4096, 14336): 0.86,
        (8192, 8192, 8192): 0.80,
        (8192, 8192, 28672): 0.95,
        (16384, 16384, 16384): 0.97,
    },
    "gemm_ar": {(8192, 4096, 14336): 0.75, (8192, 8192, 28672): 0.88},
    "a2a_gemm": {(32768, 8192, 8192): 0.92, (65536, 4096, 4096): 0.88},
    "gemm_a2a": {(32768, 8192, 8192): 0.92, (65536, 4096, 4096): 0.88},
}
OPERATORS = tuple(TARGETS)


class Row(NamedTuple):
    """One operator at one shape, sizes global."""

    op: str
    M: int
    N: int
    K: int

    @property
    def tall(self) -> bool:
        return self.M >= TALL_FROM

    @property
    def target(self) -> float | None:
        """The least eta asked for, of tall rows."""
        return TARGETS[self.op].get((self.M, self.N, self.K))

    @property
    def shape(self) -> str:
        return f"{self.M},{self.N},{self.K}"

    def __str__(self) -> str:
        return f"{self.op} {self.shape}"


def _decode() -> list[Row]:
    rows = [Row("ag_gemm", m, wide, width) for width, wide in LLAMA for m in DECODE_M]
    return rows + [Row(op, m, width, wide) for op in ("gemm_rs", "gemm_ar") for width, wide in LLAMA for m in DECODE_M]


ROWS = (*(Row(op, *shape) for op, shapes in TARGETS.items() for shape in shapes), *_decode())
"""Tall ones first, so that a run that is cut has them."""


def chosen(rows: tuple[Row, ...], operators: list[str], only: list[str]) -> list[Row]:
    """Rows of these operators that any word of ``only`` names: ``tall``, ``decode`` or ``M,N,K``; all without one.

    Raises:
        ValueError: a word that names no row.
    """
    found = [row for row in rows if row.op in operators]
    for word in only:
        if not any(_names(word, row) for row in found):
            raise ValueError(f"{word!r} is tall, decode or a shape M,N,K of the suite's {', '.join(operators)}")
    return [row for row in found if not only or any(_names(word, row) for word in only)]


def _names(word: str, row: Row) -> bool:
    return word == row.shape or word == ("tall" if row.tall else "decode")
