"""What the entry kernel stages: the shard's copy into its place, as few dimensions and as wide words as it allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from overlap.errors import RuntimeContractError

DIMS = 4
WORD = torch.int64
LEAST_ROW = 32
"""Words of a block of a row: 16 bytes for each thread of half a warp."""


@dataclass(frozen=True)
class Staging:
    """An element-wise copy: sizes and strides of up to four dimensions, in words of ``dtype``; no dimension: nothing."""

    dtype: torch.dtype
    dims: int
    sizes: tuple[int, ...]
    src_strides: tuple[int, ...]
    dst_strides: tuple[int, ...]

    @property
    def words(self) -> int:
        return math.prod(self.sizes) if self.dims else 0

    @property
    def flat(self) -> bool:
        """Whether both sides are one word behind the other."""
        return self.dims == 1 and self.src_strides[-1] == self.dst_strides[-1] == 1

    @property
    def row(self) -> int:
        """Words of the blocks that rows can be cut into, one behind the other on both sides from an even word on; 0: none."""
        outer = (*self.src_strides[-self.dims : -1], *self.dst_strides[-self.dims : -1])
        if self.dims < 2 or self.dtype != WORD or not self.src_strides[-1] == self.dst_strides[-1] == 1:
            return 0
        block = self.sizes[-1] & -self.sizes[-1]
        return block if block >= LEAST_ROW and not any(stride % 2 for stride in outer) else 0

    def arguments(self) -> dict[str, int]:
        """As the entry kernel's parameters ``n0``..``n3``, ``s0``.., ``d0``.."""
        found: dict[str, int] = {}
        for i in range(DIMS):
            found[f"n{i}"], found[f"s{i}"], found[f"d{i}"] = self.sizes[i], self.src_strides[i], self.dst_strides[i]
        return found


def staging(src: torch.Tensor, dst: torch.Tensor) -> Staging:
    """How to copy ``src`` into ``dst``, tensors of one shape and dtype.

    Raises:
        RuntimeContractError: more than four dimensions remain after merging neighbours.
    """
    if not src.numel():
        return Staging(src.dtype, 0, (0,) * DIMS, (0,) * DIMS, (0,) * DIMS)
    sizes, froms, tos = collapse(src, dst)
    dtype, factor = src.dtype, WORD.itemsize // src.dtype.itemsize
    starts = (
        src.data_ptr(),
        dst.data_ptr(),
        src.storage_offset() * src.dtype.itemsize,
        dst.storage_offset() * dst.dtype.itemsize,
    )
    if (
        factor > 1
        and froms[-1] == tos[-1] == 1
        and not any(start % WORD.itemsize for start in starts)
        and not any(n % factor for n in (sizes[-1], *froms[:-1], *tos[:-1]))
    ):
        dtype = WORD
        sizes[-1] //= factor
        froms = [s // factor for s in froms[:-1]] + [1]
        tos = [s // factor for s in tos[:-1]] + [1]
    dims = next((DIMS - i for i, n in enumerate(sizes) if n > 1), 1)
    return Staging(dtype, dims, tuple(sizes), tuple(froms), tuple(tos))


def as_words(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The start of ``tensor`` as words of ``dtype``, for a kernel that takes its address alone."""
    if dtype == tensor.dtype:
        return tensor
    return tensor.as_strided((dtype.itemsize // tensor.dtype.itemsize,), (1,)).view(dtype)


def collapse(src: torch.Tensor, dst: torch.Tensor) -> tuple[list[int], list[int], list[int]]:
    """Sizes and strides of an element-wise copy, merged to four dimensions, the innermost last.

    Args:
        src, dst: tensors of one shape.

    Raises:
        RuntimeContractError: more than four dimensions remain after merging neighbours.
    """
    merged: list[tuple[int, int, int]] = []
    order = sorted(range(dst.dim()), key=lambda d: -dst.stride(d))
    for d in order:
        n, s, t = dst.shape[d], src.stride(d), dst.stride(d)
        if n == 1:
            continue
        if merged and merged[-1][1] == n * s and merged[-1][2] == n * t:
            merged[-1] = (merged[-1][0] * n, s, t)
        else:
            merged.append((n, s, t))
    if len(merged) > DIMS:
        raise RuntimeContractError(
            f"a shard of shape {tuple(src.shape)} and strides {src.stride()} needs {len(merged)} loops to stage",
            help="make it contiguous first",
        )
    merged = [(1, 0, 0)] * (DIMS - len(merged)) + merged
    return [m[0] for m in merged], [m[1] for m in merged], [m[2] for m in merged]


def filling(dst: torch.Tensor, table: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, Staging]:
    """A zero in device memory (one word, made by ``table``), and how the entry kernel fills ``dst``, a dense tensor, with it.

    Zero bits are zero in every dtype.
    """
    count, factor = dst.numel(), WORD.itemsize // dst.dtype.itemsize
    wide = factor > 1 and count % factor == 0 and not (dst.data_ptr() % 8 or dst.storage_offset() % factor)
    zero = table([0], bits=64)
    dtype = WORD if wide or dst.dtype == WORD else dst.dtype
    words = count // factor if wide else count
    none = (0,) * DIMS
    if not count:
        return zero.view(dst.dtype), Staging(dst.dtype, 0, none, none, none)
    return zero.view(dtype), Staging(dtype, 1, (1, 1, 1, words), none, (0, 0, 0, 1))
