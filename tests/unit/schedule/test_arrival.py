"""Order of arrival: the event model on a machine, against a clock that ticks."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.links import TICK, Link
from overlap.chunkplan.mesh import Mesh
from overlap.chunkplan.plan import P2P, Collective, CommPlan, TensorSpec
from overlap.errors import PlanError
from overlap.schedule.arrival import arrival_order, arrival_times
from overlap.schedule.machine import load_machine, machine_for, parse_machine
from overlap.schedule.runs import schedule_all
from overlap.schedule.verify import verify_schedule
from tests.support.sweep import examples

from .oracle import arrivals
from .plans import (
    chunk_of,
    finish,
    gather,
    gemm_axes,
    pieces,
    reads_a,
    reduce_scatter,
    ring,
    ring_scatter,
    two_shot,
)
from .test_machine import SMALL


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_gather_arrives_in_rotated_order(world, direction):
    """Rank r gets r+1, r+2, ...; parts of a shard in their order."""
    plan = gather((world * 4, 2), 0, world, split=2, direction=direction)
    for rank in range(world):
        got = [(plan.op(op).src_rank, plan.op(op).src.box.lo[0]) for op in arrival_order(plan, rank)]
        sources = [(rank + step) % world for step in range(1, world)]
        assert got == [(src, src * 4 + 2 * part) for src in sources for part in (0, 1)]


@pytest.mark.parametrize("world", range(2, 9))
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_ring_arrives_from_the_neighbour_nearest_origin_first(world, direction):
    plan = ring((world, 2), 0, world, direction=direction)
    for rank in range(world):
        origins = [plan.op(op).src.box.lo[0] for op in arrival_order(plan, rank)]
        assert origins == [(rank - step) % world for step in range(1, world)]
        assert {plan.op(op).src_rank for op in arrival_order(plan, rank)} == {(rank - 1) % world}


# 1 us of latency and 10 bytes a ns inside a node of 2, 3 us and 1 byte a ns between nodes; half a us for a flag.
BOX = dataclasses.replace(parse_machine(SMALL), between=Link("net", 3e-6, 1e9, False))
WIRES = dataclasses.replace(BOX, node=64, own_wires=True)


def at_once(world: int, rank: int, rows: int = 1) -> CommPlan:
    """Every other rank pushes its rows to ``rank``, all from the start."""
    parts = pieces((rows * world, 2), 0, world, 1)
    ops = [[P2P("push", src, rank, parts[src][0], parts[src][0])] if src != rank else [] for src in range(world)]
    return finish("at once", world, (rows * world, 2), parts, ops)


def test_ties_follow_the_rotated_source():
    """Where each pair has wires of its own all chunks end together: from 3, then 0, then 1. A port takes one by one."""
    plan = at_once(4, 2)
    assert len(set(arrival_times(plan, WIRES).values())) == 1
    assert arrival_order(plan, 2, WIRES) == ((3, 0), (0, 0), (1, 0))
    assert arrival_order(plan, 2, dataclasses.replace(WIRES, own_wires=False)) == ((0, 0), (1, 0), (3, 0))


def test_a_collective_comes_in_the_order_of_its_channel():
    parts = pieces((4, 2), 0, 2, 1)
    whole = chunk_of((4, 2), 0, 0, 4)
    ops = [[Collective("all_gather", (0, 1), parts[rank][0], whole)] for rank in (0, 1)]
    ops[1].insert(0, P2P("pull", 0, 1, parts[0][0], parts[0][0]))
    plan = finish("library", 2, (4, 2), parts, ops)
    # Rank 1 comes to the collective behind its pull, and rank 0 has to wait for it.
    times = arrival_times(plan, BOX)
    assert times[1, 0] < times[0, 0] == times[1, 1]
    assert arrival_order(plan, 0) == ((0, 0),) and arrival_order(plan, 1) == ((1, 0), (1, 1))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(1, 8),
    st.integers(1, 4),
    st.sampled_from(("pull", "push")),
    st.integers(1, 3),
    st.sampled_from((gather, ring, reduce_scatter, ring_scatter, two_shot)),
    st.sampled_from((1, 2, 3, 64)),
    st.integers(1, 4),
)
def test_times_are_those_of_a_clock_that_ticks(world, split, direction, channels, make, node, itemsize):
    """To the tick, with ports that are shared, links of two classes and sums that are sent on."""
    given = {gather: dict(direction=direction), ring: dict(direction=direction)}.get(make, {})
    given |= {} if make is ring_scatter else dict(split=split)
    plan = make((11, 2), 0, world, channels=channels, **given)
    machine = dataclasses.replace(BOX, node=node)
    wanted = arrivals(plan, machine, itemsize)
    assert arrival_times(plan, machine, itemsize) == {op_id: tick * TICK for op_id, tick in wanted.items()}
    # The whole plan is simulated, whoever asks: nothing of a rank's own goes into it.
    assert arrival_times(plan, machine, itemsize) == arrival_times(
        dataclasses.replace(plan, name="x"), machine, itemsize
    )


def test_costs_are_latency_and_bytes():
    """Behind 2 us of entry and the copy of 4 rows of 20 bytes to where peers read them, 100 bytes a ns both ways."""
    plan = gather((7, 10), 0, 2)
    times = arrival_times(plan, BOX)
    assert times[0, 0] == pytest.approx(2e-6 + 160 / 100e9 + 1e-6 + 60 / 10e9 + 0.5e-6)
    assert times[1, 0] == pytest.approx(2e-6 + 160 / 100e9 + 1e-6 + 80 / 10e9 + 0.5e-6)


def test_bytes_change_the_order_of_arrival():
    """Two channels: the large chunk of the nearer rank arrives later than the small one of the farther."""
    parts = [[chunk_of((12, 2), 0, 0, 1)], [chunk_of((12, 2), 0, 1, 11)], [chunk_of((12, 2), 0, 11, 12)]]
    ops = [[P2P("pull", src, 0, parts[src][0], parts[src][0], channel=src) for src in (1, 2)], [], []]
    plan = finish("uneven", 3, (12, 2), parts, ops)
    assert arrival_order(plan, 0, WIRES) == ((0, 1), (0, 0))
    # Of tensors of two widths it is bytes that count, not elements.
    specs = (TensorSpec("a", (6, 2)), TensorSpec("b", (6, 2)))
    ops = [
        [P2P("pull", src, 0, *[chunk_of((6, 2), 0, 0, 6, "ab"[src - 1])] * 2, channel=src) for src in (1, 2)],
        [],
        [],
    ]
    plan = CommPlan("two", 3, specs, ((),) * 3, ((),) * 3, tuple(map(tuple, ops)))
    assert arrival_order(plan, 0, WIRES, {"a": 1, "b": 4}) == ((0, 0), (0, 1))
    assert arrival_order(plan, 0, WIRES, {"a": 4, "b": 1}) == ((0, 1), (0, 0))


def spread(mesh: Mesh | None, rows: int = 64) -> CommPlan:
    """A gather over 4 ranks with a channel for each owner, the rank farthest away first in every list."""
    parts = pieces((4 * rows, 64), 0, 4, 1)
    ops = [
        [
            P2P("pull", src, rank, parts[src][0], parts[src][0], channel=src)
            for src in sorted(range(4), key=lambda src: -(src ^ rank))
            if src != rank
        ]
        for rank in range(4)
    ]
    return dataclasses.replace(finish("spread", 4, (4 * rows, 64), parts, ops), mesh=mesh)


@pytest.mark.parametrize("rank", range(4))
def test_far_chunks_are_used_after_near_ones_that_arrive_earlier(rank):
    """On 2 nodes of 2 the neighbour's chunk comes first, although it stands last in the list; the tiles follow."""
    plan = spread(Mesh((2, 2)))
    order = [plan.op(op).src_rank for op in arrival_order(plan, rank)]
    assert order[0] == rank ^ 1 and {src // 2 for src in order[1:]} == {1 - rank // 2}
    axes = gemm_axes(256, 64, 64, 64)
    schedules = schedule_all(plan, reads_a(), axes)
    verify_schedule(schedules, plan, reads_a(), axes)
    assert [run.peer for run in schedules[rank].runs if run.peer >= 0] == order
    # In one node, or where nodes are joined by the same links, the list decides.
    flat = arrival_order(spread(None), rank)
    assert plan.op(flat[0]).src_rank == rank ^ 3
    even = machine_for(4, Mesh((2, 2)))
    assert arrival_order(plan, rank, dataclasses.replace(even, between=even.inside)) == flat


def test_the_machine_that_is_meant(monkeypatch):
    """By name, by setting, else nodes of 8 x H100; nodes are those of the mesh."""
    monkeypatch.delenv("OVERLAP_MACHINE", raising=False)
    assert machine_for(8).name == "h100-nvlink" and machine_for(9).name == "h100-nvlink-ib400"
    assert machine_for(8, Mesh((8,))) == load_machine("h100-nvlink")
    assert (machine_for(8, Mesh((2, 4))).node, machine_for(64, Mesh((2, 4, 8))).node) == (4, 8)
    assert machine_for(32, Mesh((2, 16))).node == 8, "a node of the mesh may be larger than one of the machine"
    monkeypatch.setenv("OVERLAP_MACHINE", "h800")
    assert machine_for(4).name == "h800" and machine_for(4, name="pcie").name == "pcie"
    with pytest.raises(PlanError, match="one node of 8 ranks, not 9"):
        machine_for(9, name="pcie")
    monkeypatch.setenv("OVERLAP_MACHINE", "h80")
    with pytest.raises(PlanError, match="unknown machine `h80`") as caught:
        arrival_order(gather((8, 2), 0, 2), 0)
    assert "h800" in caught.value.help


def test_a_cyclic_plan_is_refused():
    plan = ring((6, 2), 0, 3)
    back = dataclasses.replace(plan.ops[0][0], depends=((1, 1),))
    plan = dataclasses.replace(plan, ops=((back, plan.ops[0][1]), *plan.ops[1:]))
    with pytest.raises(PlanError, match="never finishes"):
        arrival_order(plan, 1)
