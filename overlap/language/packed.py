"""Elements of the 8 bytes that a line of packets carries (`overlap.language.packets`): taken out, added, rounded, put back."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def element(data, k: tl.constexpr, DTYPE: tl.constexpr):
    """Element ``k`` of lines, bit by bit; ``data``: int64, ``DTYPE``: of the elements, 1, 2, 4 or 8 bytes."""
    bits: tl.constexpr = DTYPE.primitive_bitwidth
    if bits == 64:
        found = data.to(DTYPE, bitcast=True)
    elif bits == 32:
        found = (data >> (32 * k)).to(tl.int32).to(DTYPE, bitcast=True)
    elif bits == 16:
        found = (data >> (16 * k)).to(tl.int16).to(DTYPE, bitcast=True)
    else:
        found = (data >> (8 * k)).to(tl.int8).to(DTYPE, bitcast=True)
    return found


@triton.jit
def packed(value, k: tl.constexpr, DTYPE: tl.constexpr):
    """A value, rounded to ``DTYPE``, where element ``k`` of a line stands (int64)."""
    bits: tl.constexpr = DTYPE.primitive_bitwidth
    rounded = value.to(DTYPE)
    if bits == 64:
        found = rounded.to(tl.int64, bitcast=True)
    elif bits == 32:
        found = rounded.to(tl.uint32, bitcast=True).to(tl.int64) << (32 * k)
    elif bits == 16:
        found = rounded.to(tl.uint16, bitcast=True).to(tl.int64) << (16 * k)
    else:
        found = rounded.to(tl.uint8, bitcast=True).to(tl.int64) << (8 * k)
    return found


@triton.jit
def added(total, data, number, count, k: tl.constexpr, DTYPE: tl.constexpr, ACCUMULATOR: tl.constexpr):
    """A sum with element ``k`` of the next of ``count`` lines; the first begins it, those past the last add nothing."""
    more = element(data, k, DTYPE).to(ACCUMULATOR)
    return tl.where(number == 0, more, tl.where(number < count, total + more, total))
