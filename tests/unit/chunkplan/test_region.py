"""Region algebra against numpy masks."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.region import Box, bounding, covers, overlap_of, shard_interval, uncovered, union_size

SIDE = 7


@st.composite
def boxes(draw, ndim: int) -> Box:
    cuts = [sorted((draw(st.integers(0, SIDE)), draw(st.integers(0, SIDE)))) for _ in range(ndim)]
    return Box(tuple(a for a, _ in cuts), tuple(b for _, b in cuts))


def mask(box: Box) -> np.ndarray:
    found = np.zeros((SIDE,) * box.ndim, bool)
    found[tuple(slice(a, b) for a, b in zip(box.lo, box.hi, strict=True))] = True
    return found


def union(parts: list[Box], ndim: int) -> np.ndarray:
    return reduce(np.logical_or, map(mask, parts), np.zeros((SIDE,) * ndim, bool))


pairs = st.integers(0, 3).flatmap(lambda n: st.tuples(boxes(n), boxes(n)))
lists = st.integers(0, 3).flatmap(lambda n: st.tuples(st.just(n), st.lists(boxes(n), max_size=6), boxes(n)))


@settings(max_examples=400, deadline=None)
@given(pairs)
def test_two_boxes(pair):
    a, b = pair
    both = mask(a) & mask(b)
    assert a.size == mask(a).sum()
    assert a.empty == (not mask(a).any())
    assert np.array_equal(mask(a.intersect(b)), both)
    assert a.intersect(b).empty == (not both.any())
    assert a.overlaps(b) == both.any()
    assert a.contains(b) == (not (mask(b) & ~mask(a)).any())
    pieces = a.subtract(b)
    assert sum(map(mask, pieces), np.zeros(both.shape, int)).max(initial=0) <= 1
    assert np.array_equal(union(pieces, a.ndim), mask(a) & ~mask(b))
    assert not any(piece.empty for piece in pieces)
    assert len(pieces) <= max(1, 2 * a.ndim)


@settings(max_examples=400, deadline=None)
@given(lists)
def test_many_boxes(case):
    ndim, parts, box = case
    missing = mask(box) & ~union(parts, ndim)
    left = uncovered(parts, box)
    assert np.array_equal(union(left, ndim), missing)
    assert sum(piece.size for piece in left) == missing.sum()
    assert covers(parts, box) == (not missing.any())
    assert union_size(parts) == union(parts, ndim).sum()
    around = bounding(parts)
    if union(parts, ndim).any():
        where = np.argwhere(union(parts, ndim))
        assert around == Box(tuple(map(int, where.min(0))), tuple(int(n) + 1 for n in where.max(0)))
    else:
        assert around is None
    expected = [
        (i, j, parts[i].intersect(parts[j]))
        for i in range(len(parts))
        for j in range(i + 1, len(parts))
        if (mask(parts[i]) & mask(parts[j])).any()
    ]
    assert overlap_of(parts) == expected


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3).flatmap(boxes), st.data())
def test_move_and_split(box, data):
    offset = data.draw(st.tuples(*(st.integers(-5, 5) for _ in range(box.ndim))))
    moved = box.translate(offset)
    assert moved.shape == box.shape
    assert moved.translate([-o for o in offset]) == box
    dim = data.draw(st.integers(0, box.ndim - 1))
    parts = data.draw(st.integers(1, 9))
    pieces = box.split(dim, parts)
    assert len(pieces) == parts
    assert overlap_of(pieces) == []
    assert np.array_equal(union(pieces, box.ndim), mask(box))
    assert [piece.lo[dim] for piece in pieces] == sorted(piece.lo[dim] for piece in pieces)
    assert [piece.shape[dim] for piece in pieces] == [
        b - a for a, b in (shard_interval(box.shape[dim], parts, p) for p in range(parts))
    ]


def test_shards_follow_torch_chunk():
    import torch

    for extent in range(0, 60):
        for world in range(1, 10):
            chunks = list(torch.arange(extent).chunk(world)) if extent else []
            lengths = [len(chunk) for chunk in chunks] + [0] * (world - len(chunks))
            cuts = [shard_interval(extent, world, rank) for rank in range(world)]
            assert [b - a for a, b in cuts] == lengths, (extent, world)
            assert cuts[0][0] == 0 and cuts[-1][1] == extent
            assert all(left[1] == right[0] for left, right in zip(cuts, cuts[1:], strict=False))


def test_boxes_are_values():
    assert {Box((0, 1), (2, 3)): 1}[Box((0, 1), (2, 3))] == 1
    assert str(Box((0, 1), (2, 3))) == "[0:2, 1:3]"
    assert Box.whole((4, 0)).empty and not Box.whole(()).empty
    assert Box.whole(()).size == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Box((1,), (0,)),
        lambda: Box((0, 0), (1,)),
        lambda: Box((0,), (1,)).intersect(Box((0, 0), (1, 1))),
        lambda: Box((0,), (1,)).translate((1, 2)),
        lambda: shard_interval(4, 2, 2),
        lambda: shard_interval(-1, 2, 0),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError):
        make()
