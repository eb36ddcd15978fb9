"""A plan alone on a machine: bytes, the busiest link and the chain, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap.chunkplan.links import Link, Links, full_mesh
from overlap.chunkplan.plan import P2P, Collective
from overlap.errors import PlanError
from overlap.schedule.cost import volumes
from overlap.schedule.events import simulate
from overlap.schedule.machine import load_machine
from overlap.schedule.plan_times import plan_times

from .plans import gather, reduce_scatter, ring
from .test_timeline import BOX, US, chunk, plan_of, pull

NODES = load_machine("h100-nvlink-ib400")


def test_by_hand():
    """2 us of entry; 5,000 elements take 1 us and 1 us of bytes, 10,000 take 3, and a flag half a us each."""
    plan = plan_of(3, [pull(1, 0), pull(2, 0, 10000)], [pull(2, 1, 10000)], [])
    found = plan_times(plan, BOX)
    assert found.total == pytest.approx(8.5 * US)
    (use,) = found.uses
    assert (use.name, use.bytes) == ("wire", 50000)
    assert use.most_out == (40000, 2) and use.most_in == (30000, 0)
    # Both copies of 10,000 leave rank 2, one behind the other: 3 us each.
    assert use.where == "wire out of rank 2" and use.busy == pytest.approx(6 * US)
    assert found.bottleneck == use and found.chain == {"wire": 2}
    assert "busy 0.006 ms (71%)" in str(found) and "2 copies one behind the other, 2 over wire" in str(found)
    wires = plan_times(plan, replace(BOX, own_wires=True))
    assert wires.uses[0].where == "wire 2 -> 1"
    doubled = plan_times(plan, BOX, itemsize={"a": 4})
    assert doubled.uses[0].bytes == 100000


def test_classes_apart():
    """The network carries a tenth of the bytes, and is what takes long."""
    machine = replace(BOX, node=2, between=Link("net", 3e-6, 1e9, False))
    plan = plan_of(4, [pull(1, 0, 20000, channel=0), pull(2, 0, 2000, channel=1)], [], [], [])
    found = plan_times(plan, machine)
    assert [(use.name, use.bytes) for use in found.uses] == [("net", 4000), ("wire", 40000)]
    assert found.uses[0].where == "net out of rank 2" and found.chain == {"net": 1}
    # A table of links counts instead of the machine's, and says itself which of them share ports.
    links = Links(4, {(1, 0): Link("a", 0, 1e9, True), (2, 0): Link("a", 0, 1e9, True)})
    assert plan_times(plan, machine, links=links).uses[0].where == "a 1 -> 0"
    shared = plan_times(plan, machine, links=replace(links, switched=("a",)))
    assert shared.uses[0].where == "a into rank 0" and shared.uses[0].busy == pytest.approx(44 * US)
    with pytest.raises(PlanError, match="no link from rank 1 to rank 0"):
        plan_times(plan, machine, links=replace(links, classes={(2, 0): Link("a", 0, 1e9, True)}))


def test_a_library_and_nothing():
    both = [Collective("all_gather", (0, 1), chunk(0, 8000), chunk(0, 16000)) for _ in range(2)]
    found = plan_times(plan_of(2, [both[0]], [both[1]]), BOX)
    assert [(use.name, use.bytes) for use in found.uses] == [("library", 32000)]
    assert found.uses[0].where == "the library on rank 0"
    empty = plan_times(plan_of(2, [pull(1, 0, 0)], []), BOX)
    assert empty.uses == () and empty.bottleneck is None and "nothing moves" in str(empty)
    inside = P2P("local", 0, 0, chunk(0, 4), chunk(4, 8))
    assert plan_times(plan_of(1, [inside]), BOX).uses == ()
    assert "on 1 rank of" in str(plan_times(plan_of(1, []), BOX))


@pytest.mark.parametrize("world", [1, 2, 3, 9, 12])
@pytest.mark.parametrize("make", [gather, ring, reduce_scatter])
def test_bytes_are_the_volumes(make, world):
    plan = make((37, 3), 0, world)
    found = plan_times(plan, NODES)
    counted = volumes(plan, machine=NODES)
    by_name = {use.name: use for use in found.uses}
    far, near = by_name.get("network"), by_name.get("nvlink")
    assert (far.bytes if far else 0) == sum(counted.far_sent)
    assert (near.bytes if near else 0) == counted.total - sum(counted.far_sent)
    assert found.total == simulate(plan, NODES).total
    assert all(use.busy <= found.total for use in found.uses)
    if world > 1:
        over = plan_times(plan, NODES, links=full_mesh(world))
        assert over.uses[0].bytes == counted.total
