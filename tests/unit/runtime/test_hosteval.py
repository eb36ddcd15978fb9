"""Tile maps on the host: jitted helpers, the language's integer words, module aliases."""

import triton
import triton.language as L
import triton.language as tl

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
