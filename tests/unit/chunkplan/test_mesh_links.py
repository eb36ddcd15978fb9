"""The link table."""

from __future__ import annotations

import math

import pytest

from overlap.chunkplan import expand
from overlap.chunkplan.linkfile import read_links
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


# From text

TABLE = """\
mesh: {node: 2, gpu: 3}
classes:
  slow: {latency_us: 30, gb_per_s: 12.5, pointer: no}
pairs:
  - {for: a in range(world) for b in range(a), between: [a, b], link: network}
  - for: a in range(world) for b in range(a) if local_rank(node, a) == local_rank(node, b)
    between: [a, b]
    link: nvlink
  - {between: [0, 2], link: none}
  - let: {last: axis_size(gpu) - 1}
    from: global_rank(0, 1)
    to: last
    link: slow
"""


def test_a_table_from_text():
    wanted = two_level(2, 3).without(0, 2)
    slow = Link("slow", 30e-6, 12.5e9, False)
    assert read_links(TABLE) == Links(6, {**wanted.classes, (1, 2): slow})


def test_small_tables_from_text():
    steps = "world: 5\npairs:\n  - {for: a in range(world), between: [a, (a + 1) % world], link: pcie}\n"
    assert read_links(steps) == ring(5, PCIE)
    assert read_links("world: 3\npairs: []\n") == Links(3, {})
    assert read_links("mesh: 2x2\npairs: [{from: 3, to: 0, link: nvlink}]\n") == Links(4, {(3, 0): NVLINK})


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ("link: slow", "link: slo", "unknown link class `slo`", 13),
        ("to: last", "to: last + 9", "there is no rank 11", 12),
        ("to: last", "to: 1", "rank 1 joined to itself", 12),
        ("to: last", "to: gpu", "unknown symbol `gpu`", 12),
        ("to: last", "to: rank", "unknown symbol `rank`", 12),
        ("    to: last\n", "", "needs `to`", 10),
        ("between: [0, 2]", "between: [0]", "a link between 1 ranks", 9),
        ("between: [0, 2]", "between: [0, 2], to: 1", "`to` beside `between`", 9),
        ("pointer: no", "pointer: maybe", "unknown value of `pointer`", 3),
        ("gb_per_s: 12.5", "gb_per_s: 0", "`gb_per_s` of link class `slow` is 0", 3),
        ("latency_us: 30", "latency_us: -1", "`latency_us` of link class `slow` is -1", 3),
        ("latency_us: 30", "latency_us: inf", "`latency_us` of link class `slow` is inf", 3),
        ("latency_us: 30, ", "", "needs `latency_us`", 3),
        ("  slow:", "  none:", "`none` means no link", 3),
        ("{node: 2, gpu: 3}", "[node, gpu]", "axes without sizes", 1),
        ("mesh: {node: 2, gpu: 3}", "wold: 6", "has no key `wold`", 1),
        ("mesh:", "world: 5\nmesh:", "`world` is 5, and `mesh` has 6 ranks", 1),
        ("mesh: {node: 2, gpu: 3}", "world: x", "`world` is x", 1),
        ("pairs:", "pairs: {}\nmore:", "has no key `more`", 5),
    ],
)
def test_mistakes_in_a_table(old, new, said, line):
    with pytest.raises(PlanError) as caught:
        read_links(TABLE.replace(old, new, 1), "links.yaml")
    assert said in caught.value.message and caught.value.help
    assert caught.value.where is not None and caught.value.where.line == line


def test_endless_loops_end(monkeypatch):
    """Steps count that a condition leaves out, too."""
    monkeypatch.setattr(expand, "MAX_INSTANCES", 1000)
    text = "world: 2\npairs: [{for: a in range(99) for b in range(99) if 0, between: [a, b], link: nvlink}]\n"
    with pytest.raises(PlanError, match="more than 1000 loop steps") as caught:
        read_links(text)
    assert caught.value.where is not None
