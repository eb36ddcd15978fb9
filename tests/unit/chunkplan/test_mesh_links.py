"""The link table."""

from __future__ import annotations

import math

import pytest

from overlap.chunkplan.links import NETWORK, NVLINK, PCIE, Link, Links, full_mesh, ring, two_level
from overlap.errors import PlanError


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_every_pair_of_a_full_mesh(world):
    links = full_mesh(world, PCIE)
    for a in range(world):
        for b in range(world):
            assert links.between(a, b) == (None if a == b else PCIE)
            assert links.pointer(a, b)
        assert links.neighbours(a) == tuple(b for b in range(world) if b != a)


@pytest.mark.parametrize(("world", "degree"), [(1, 0), (2, 1), (3, 2), (8, 2)])
def test_a_ring_joins_neighbours_only(world, degree):
    links = ring(world)
    for a in range(world):
        assert len(links.neighbours(a)) == degree
        assert set(links.neighbours(a)) <= {(a - 1) % world, (a + 1) % world}
    assert world < 4 or links.between(0, 2) is None


@pytest.mark.parametrize(("nodes", "size"), [(1, 1), (1, 4), (2, 1), (2, 4), (3, 3)])
def test_two_levels(nodes, size):
    links = two_level(nodes, size)
    for a in range(nodes * size):
        for b in range(nodes * size):
            if a != b:
                near = a // size == b // size
                assert links.between(a, b) == (NVLINK if near else NETWORK)
                assert links.pointer(a, b) == near


def test_a_missing_pair_is_missing_both_ways_and_alone():
    whole = full_mesh(4)
    links = whole.without(2, 0)
    gone = {pair for pair, _ in whole.pairs()} - {pair for pair, _ in links.pairs()}
    assert gone == {(0, 2), (2, 0)}
    assert links.between(0, 2) is None and not links.pointer(0, 2)
    with pytest.raises(PlanError, match="not joined"):
        links.without(0, 2)


def test_seconds_are_latency_and_bytes():
    assert Link("x", 2.0, 4.0, True).seconds(8) == 4.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: full_mesh(0),
        lambda: two_level(0, 3),
        lambda: Links(2, {(0, 2): NVLINK}),
        lambda: Links(2, {(1, 1): NVLINK}),
        lambda: full_mesh(3).between(0, 3),
        lambda: full_mesh(3).neighbours(-1),
        lambda: Link("x", -1.0, 1.0, True),
        lambda: Link("x", math.nan, 1.0, True),
        lambda: Link("x", 0.0, 0.0, True),
    ],
)
def test_what_cannot_be(make):
    with pytest.raises(PlanError) as caught:
        make()
    assert caught.value.help
