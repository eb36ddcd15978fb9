"""A helper in a module of its own, with its own spelling of Triton's names."""

import triton
import triton.language as lang
from triton.language import arange as numbers_below

OFFSET = lang.constexpr(3)


@triton.jit
def shifted(x, BY: lang.constexpr = 1):
    return x + BY + OFFSET


@triton.jit
def line(n: lang.constexpr):
    return numbers_below(0, n)
