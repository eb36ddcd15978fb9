"""How a strided copy becomes one- and two-dimensional copies of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True)
class CopyPiece:
    """``rows`` rows of ``width`` bytes; addresses and pitches in bytes. One row: a plain copy."""

    dst: int
    src: int
    width: int
    rows: int = 1
    dst_pitch: int = 0
    src_pitch: int = 0


def plan_copy(dst: Any, src: Any) -> Iterator[CopyPiece]:
    """The copies that move ``src`` into ``dst``, tensors of one shape and dtype.

    Neighbouring dimensions that are contiguous in both are merged; two dimensions are one 2-D copy, more are a loop of them.
    """
    size = dst.element_size()
    dims: list[tuple[int, int, int]] = []
    for d in sorted(range(dst.dim()), key=lambda d: -dst.stride(d)):
        n, to, frm = dst.shape[d], dst.stride(d) * size, src.stride(d) * size
        if n == 1:
            continue
        if dims and dims[-1][1] == n * to and dims[-1][2] == n * frm:
            dims[-1] = (dims[-1][0] * n, to, frm)
        else:
            dims.append((n, to, frm))
    width = size
    if dims and dims[-1][1:] == (size, size):
        width = dims.pop()[0] * size
    rows, to, frm = dims.pop() if dims else (1, 0, 0)
    for index in product(*(range(n) for n, _, _ in dims)):
        shift_to = sum(i * d[1] for i, d in zip(index, dims, strict=True))
        shift_from = sum(i * d[2] for i, d in zip(index, dims, strict=True))
        yield CopyPiece(dst.data_ptr() + shift_to, src.data_ptr() + shift_from, width, rows, to, frm)
