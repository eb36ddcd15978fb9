"""What of a dense tensor each rank is sent, or keeps, in a collective by packets: boxes as `kernels` takes them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from overlap.chunkplan.region import shard_interval


class Boxes(NamedTuple):
    """What of a dense tensor goes to each rank, or comes from it: columns from rank * ``chunk`` on, ``chunk`` of them but no
    further than ``total``, of ``rows`` rows of ``total`` elements; with ``whole`` all of it to each."""

    rows: int
    chunk: int
    total: int
    whole: bool = False

    def longest(self) -> int:
        """Elements of the largest."""
        return self.rows * min(self.chunk, self.total)


def pieces(shape: tuple[int, ...], dim: int, world: int) -> Boxes:
    """The pieces along a dimension, as `torch.chunk` cuts it."""
    inner = math.prod(shape[dim + 1 :])
    low, high = shard_interval(shape[dim], world, 0)
    return Boxes(math.prod(shape[:dim]), (high - low) * inner, shape[dim] * inner)


def whole(shape: tuple[int, ...]) -> Boxes:
    """All of a tensor."""
    count = math.prod(shape)
    return Boxes(1, count, count, whole=True)


def unit_of(tensor: torch.Tensor, boxes: Boxes, widest: int = 8) -> int:
    """Bytes of the widest word, up to ``widest``, of which all boxes of a dense tensor are made."""
    size = tensor.element_size()
    common = math.gcd(tensor.data_ptr(), boxes.chunk * size, boxes.total * size, widest)
    return common if tensor.numel() else widest


def scaled(boxes: Boxes, size: int, unit: int) -> dict[str, int]:
    """The kernel's parameters of boxes of elements of ``size`` bytes, in units."""
    return {"rows": boxes.rows, "chunk": boxes.chunk * size // unit, "total": boxes.total * size // unit}
