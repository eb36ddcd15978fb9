"""Tile maps on the host: jitted helpers, the language's integer words, module aliases."""

import pytest
import triton
import triton.language as L
import triton.language as tl

from overlap.errors import UnsupportedError
from overlap.runtime.tables.hosteval import on_host

GROUP: tl.constexpr = tl.constexpr(4)


@triton.jit
def grouped(tile, width, rows, size: tl.constexpr):
    group = tile // width
    first = group * size
    height = min(rows - first, size)
    return first + tile % height, (tile % width) // height


def plain(tile, rows, cols, *, G):
    return grouped(tile, G * cols, rows, G)


def with_language(tile, rows, cols):
    i = tile % rows
    j = tile // rows
    return tl.swizzle2d(i, j, rows, cols, GROUP)


def with_words(tile, n):
    return tl.minimum(tile, L.cdiv(n, 4)), tl.where(tile > 2, 1, 0), L.maximum(tile, 3)


def test_jitted_helper_is_a_bijection():
    mapping = on_host(plain)
    for rows, cols in [(1, 1), (3, 5), (9, 2), (4, 4)]:
        seen = {mapping(t, rows, cols, G=4) for t in range(rows * cols)}
        assert seen == {(i, j) for i in range(rows) for j in range(cols)}


def test_swizzle2d_matches_the_interpreter_free_definition():
    mapping = on_host(with_language)
    for rows, cols in [(5, 3), (8, 8), (1, 7)]:
        seen = {mapping(t, rows, cols) for t in range(rows * cols)}
        assert seen == {(i, j) for i in range(rows) for j in range(cols)}


def test_words():
    assert on_host(with_words)(1, 9) == (1, 0, 3)
    assert on_host(with_words)(7, 9) == (3, 1, 7)


@triton.jit
def wide(tile, cols):
    return (tile // cols).to(tl.int64), tl.multiple_of(tile % cols, 8)


def with_casts(tile, cols):
    i, j = wide(tile.to(tl.int64), cols)
    return tl.max_contiguous(i, 1), (3 - j + cols).to(tl.int32)


def test_casts_of_scalars_are_no_obstacle():
    assert on_host(with_casts)(7, 3) == (2, 5)


def with_a_word_of_tensors(tile, cols):
    return tl.sum(tile), cols


def test_a_word_that_integers_have_not_is_named():
    with pytest.raises(UnsupportedError, match=r"calls `tl\.sum`"):
        on_host(with_a_word_of_tensors)(1, 2)
