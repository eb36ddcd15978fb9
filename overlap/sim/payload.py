"""Values that a transport must bring bit by bit: -0.0, subnormals, infinities, NaNs with their payloads, any pattern.

Copies and single loads and stores keep them; arithmetic does not, so a result that nothing was added to must be equal
in its bits.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from .memory import array_of

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SPECIAL = {
    torch.float16: (0x8000, 0x0001, 0x83FF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE2A),
    torch.bfloat16: (0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFAA),
    torch.float32: (0x80000000, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC0ABCD),
    torch.float64: (1 << 63, 1, (1 << 63) + 5, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, (0x7FF << 52) + 1),
}
"""Negative zero, the smallest and a negative subnormal, both infinities, quiet and signalling NaNs, a payload."""


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """The elements of a contiguous tensor as integers of the same width, sharing its memory."""
    array = array_of(tensor)
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def payload_of(shape: list[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """A tensor of random bit patterns, every third one a special value of its format."""
    width = _BITS[dtype.itemsize]
    limits = torch.iinfo(width)
    count = math.prod(shape)
    bits = torch.randint(limits.min, limits.max, (count,), generator=generator, dtype=width)
    special = _SPECIAL.get(dtype)
    if special is not None:
        size = 8 * dtype.itemsize
        signed = [v - (1 << size) if v >= 1 << (size - 1) else v for v in special]
        chosen = torch.tensor(signed, dtype=width)
        places = torch.arange(0, count, 3)
        bits[places] = chosen[torch.arange(len(places)) % len(signed)]
    return bits.view(dtype).view(shape)


def differing_bits(got: torch.Tensor, wanted: torch.Tensor) -> tuple[int, tuple[int, ...]] | None:
    """(how many elements differ in a bit, index of the first), or None; contiguous tensors of one shape and dtype."""
    wrong = np.argwhere(bits_of(got) != bits_of(wanted))
    return (len(wrong), tuple(int(i) for i in wrong[0])) if len(wrong) else None
