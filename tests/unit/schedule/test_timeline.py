"""The event model: exact times by hand, what must hold of every timeline, and times against a machine that was measured."""

from __future__ import annotations

import time
from dataclasses import replace
from heapq import heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.chunkplan.build import build_plan
from overlap.chunkplan.library import find_template
from overlap.chunkplan.links import Link, full_mesh
from overlap.chunkplan.plan import P2P, Chunk, Collective, CommPlan, TensorSpec
from overlap.chunkplan.region import Box
from overlap.errors import PlanError, ScheduleError
from overlap.schedule import events
from overlap.schedule.carried import Carry, by_sums
from overlap.schedule.events import simulate, simulate_ends
from overlap.schedule.machine import load_machine, parse_machine
from overlap.schedule.product import Gemm, best_blocks
from overlap.schedule.runs import schedule_all
from overlap.schedule.timeline import KINDS, Event, Timeline
from overlap.schedule.work import TileRun, Work, work_of_schedules, work_per_chunk
from tests.support.sweep import examples

from .plans import SUM, gather, gemm_axes, reads_a, reduce_scatter, ring, ring_scatter, two_shot
from .test_machine import SMALL

# Round numbers: 1 us of latency and 10 bytes a ns; nothing starts before 2 us, tiles not before 5; half a us for a flag.
BOX = replace(parse_machine(SMALL), node=64, memory=1e30)
US = 1e-6


def events_of(timeline: Timeline, kind: str, rank: int | None = None) -> list[Event]:
    return [e for e in timeline.events if e.kind == kind and rank in (None, e.rank)]


def times(events: list[Event]) -> list[tuple[float, float]]:
    return [(round(e.start / US, 6), round(e.end / US, 6)) for e in events]


def chunk(lo: int, hi: int, tensor: str = "a") -> Chunk:
    return Chunk(tensor, Box((lo,), (hi,)))


def plan_of(world: int, *ops: list[P2P | Collective]) -> CommPlan:
    return CommPlan(
        "by_hand", world, (TensorSpec("a", (100000,)),), ((),) * world, ((),) * world, tuple(map(tuple, ops))
    )


def pull(src: int, dst: int, size: int = 5000, channel: int = 0, depends: tuple[tuple[int, int], ...] = ()) -> P2P:
    return P2P("pull", src, dst, chunk(0, size), chunk(0, size), depends, channel)


def template(
    name: str, world: int, shape: tuple[int, ...], split: int = 1, direction: str = "push", **more
) -> CommPlan:
    path, text = find_template(name)
    tensor = TensorSpec("x", shape)
    return build_plan(text, world=world, tensor=tensor, dim=0, split=split, direction=direction, path=path, **more)


def test_copies_follow_each_other_in_a_channel():
    """5,000 elements of 2 bytes: 1 us of latency, 1 us of bytes, half a us for the flag; then the next."""
    timeline = simulate(plan_of(3, [pull(1, 0), pull(2, 0, 10000)], [], []), BOX)
    assert times(events_of(timeline, "copy")) == [(2, 4), (4.5, 7.5)]
    assert times(events_of(timeline, "flag")) == [(4, 4.5), (7.5, 8)]
    assert timeline.total == pytest.approx(8 * US) and timeline.compute == (0, 0, 0)
    assert [timeline.events[i].kind for i in timeline.critical] == ["copy", "flag"] * 2
    assert events_of(timeline, "copy")[1] == Event(
        0,
        "copy 0",
        "copy",
        timeline.events[2].start,
        timeline.events[2].end,
        "pull a[0:10000] 2 -> 0",
        "a[0:10000]",
        (0, 1),
        2,
    )


def test_a_dependency_waits_for_the_flag_on_another_rank():
    timeline = simulate(plan_of(3, [pull(1, 0)], [], [pull(0, 2, depends=((0, 0),))]), BOX)
    assert times(events_of(timeline, "copy")) == [(2, 4), (4.5, 6.5)]
    assert len(timeline.critical) == 4


@pytest.mark.parametrize("crowd", ["source", "target"])
def test_a_port_is_taken_whole_in_the_order_asked(crowd):
    if crowd == "source":
        plan = plan_of(4, [], [pull(0, 1)], [pull(0, 2)], [pull(0, 3)])
    else:
        plan = plan_of(4, [pull(1, 0, channel=0), pull(2, 0, channel=1), pull(3, 0, channel=2)], [], [], [])
    copies = events_of(simulate(plan, BOX), "copy")
    assert times(copies) == [(2, 4), (4, 6), (6, 8)]
    timeline = simulate(plan, replace(BOX, own_wires=True))
    assert times(events_of(timeline, "copy")) == [(2, 4)] * 3
    # What waits for a port began because the copy before it ended, and the critical path says so.
    timeline = simulate(plan, BOX)
    assert [timeline.events[i].kind for i in timeline.critical] == ["copy", "copy", "copy", "flag"]


def test_links_of_two_classes_have_ports_of_their_own():
    plan = plan_of(4, [pull(1, 0, channel=0), pull(2, 0, channel=1)], [], [], [])
    machine = replace(BOX, node=2, between=Link("net", 3e-6, 1e9, False))
    assert times(events_of(simulate(plan, machine), "copy")) == [(2, 4), (2, 15)]


def test_tiles_wait_for_their_chunks_and_share_waves():
    """4 units, tiles of 10 us: 2 own ones leave 2 units free for the first tiles of the run that has to wait till 8."""
    runs = (TileRun(2, 10 * US, label="own"), TileRun(5, 10 * US, ((0, 0),), label="theirs", source=1))
    plan = plan_of(2, [pull(1, 0, 25000)], [])
    timeline = simulate(plan, BOX, (Work(runs), Work(())))
    assert times(events_of(timeline, "copy")) == [(2, 8)]
    # Two start at 8.5 (the flag), two at 15 behind the own tiles, the last at 18.5.
    assert times(events_of(timeline, "tile-run", 0)) == [(5, 15), (15, 28.5)]
    assert timeline.compute == pytest.approx((20 * US, 0))
    assert timeline.exposed == pytest.approx(8.5 * US) == pytest.approx(timeline.exposed_of(0))
    slow = simulate(plan, replace(BOX, entry=7e-6), (Work(runs[1:]), Work(())))
    assert times(events_of(slow, "wait", 0)) == [(0, 10), (10, 13.5)]


@pytest.mark.parametrize(
    "direction, least, copies, tiles",
    [("push", 0, 2, 48), ("push", 20000, 2, 48), ("push", 20001, 42, 45), ("pull", 0, 42, 45)],
)
def test_what_is_pushed_out_of_the_callers_tensor_is_not_held_up_by_the_staging(
    monkeypatch, direction, least, copies, tiles
):
    """20 KB are staged in 40 us, by a launch of their own where pushes need not wait for them."""
    monkeypatch.setenv("OVERLAP_GIVEN_BYTES", str(least))
    plan = gather((20000, 1), 0, 2, direction=direction)
    timeline = simulate(plan, replace(BOX, memory=1e9), work_per_chunk(plan, 2, US))
    assert {start for start, _ in times(events_of(timeline, "copy"))} == {copies}
    assert min(start for start, _ in times(events_of(timeline, "tile-run"))) == tiles


def test_what_is_passed_on_or_moved_otherwise_is_no_copy_out_of_the_callers_tensor(monkeypatch):
    monkeypatch.setenv("OVERLAP_GIVEN_BYTES", "0")
    machine = replace(BOX, memory=1e9)
    around = ring((30000, 1), 0, 3, direction="push")
    copies = times(events_of(simulate(around, machine, work_per_chunk(around, 3, US)), "copy", 0))
    assert [start for start, _ in copies] == [2, 5.5]
    plan = gather((20000, 1), 0, 2, direction="push")
    carries = {op_id: Carry(1e10) for op_id, _ in plan.items()}
    moved = simulate(plan, machine, work_per_chunk(plan, 2, US), carries=carries)
    assert {start for start, _ in times(events_of(moved, "copy"))} == {42}


@pytest.mark.parametrize("given, moved, tiles", [(True, False, 48), (True, True, 88), (False, False, 125)])
def test_of_what_is_pushed_out_of_the_callers_tensor_what_is_read_is_staged(monkeypatch, given, moved, tiles):
    """Of 60 KB a rank keeps 20 and sends 20 to each of two others, to one of them by a program, which reads what is staged."""
    monkeypatch.setenv("OVERLAP_GIVEN_BYTES", "60000" if given else "60001")
    plan = template("all_to_all_1d", 3, (30000, 3), to_dim=1)
    carries = {(rank, 1): Carry(1e10) for rank in range(3)} if moved else {}
    timeline = simulate(plan, replace(BOX, memory=1e9), work_per_chunk(plan, 3, US), carries=carries)
    assert {end for start, end in times(events_of(timeline, "wait")) if not start} == {tiles}


def test_what_lands_slows_tiles_down():
    runs = (TileRun(4, 10 * US), TileRun(4, 10 * US, ((0, 0),)))
    plan = plan_of(2, [pull(1, 0)], [])
    plain = simulate(plan, BOX, (Work(runs), Work(())))
    slowed = simulate(plan, replace(BOX, contention=0.5), (Work(runs), Work(())))
    assert slowed.total == pytest.approx(plain.total + 0.5 * 2 * US)


def test_what_is_sent_slows_down_the_tiles_that_make_more():
    """Out of what tiles made; not of what the rank had."""
    runs = (TileRun(4, 10 * US, feeds=((0, 0),)), TileRun(8, 10 * US))
    push = P2P("push", 0, 1, chunk(0, 5000), chunk(0, 5000), reduce=SUM)
    plan, machine = plan_of(2, [push], []), replace(BOX, contention_sent=0.5)
    plain, slowed = (simulate(plan, each, (Work(runs), Work(()))) for each in (BOX, machine))
    # Its copy of 2 us begins with the second wave of three.
    assert times(events_of(plain, "tile-run", 0)) == [(5, 15), (15, 35)]
    assert times(events_of(slowed, "tile-run", 0)) == [(5, 15), (15, 36)]
    given, reads = plan_of(2, [pull(1, 0)], []), (Work(()), Work((TileRun(12, 10 * US),)))
    assert simulate(given, machine, reads).total == simulate(given, BOX, reads).total


def test_a_long_run_is_slowed_by_what_lands_while_it_runs():
    """One run of ten waves, all of it waiting for nothing: copies that begin behind its first tile count."""
    plan = plan_of(2, [pull(1, 0), pull(1, 0, depends=((0, 0),), channel=1)], [])
    work = (Work((TileRun(40, 10 * US),)), Work(()))
    plain, slowed = (simulate(plan, replace(BOX, contention=c), work).total for c in (0.0, 0.5))
    assert slowed == pytest.approx(plain + 0.5 * 2 * 2 * US)


def test_one_engine_writes_flags_ahead_of_the_next_copy_of_any_lane():
    """Two lanes: the second copy begins behind the first one, or behind its flag too; who waits for what is known."""
    plan = plan_of(2, [pull(1, 0), pull(1, 0, 900, channel=1)], [])
    ends = {}
    for one in (False, True):
        timeline = simulate(plan, replace(BOX, one_engine=one))
        ends[one] = times(events_of(timeline, "copy", 0))[1][0]
        path = [timeline.events[i].kind for i in timeline.critical]
        assert path == (["copy", "flag", "copy", "flag"] if one else ["copy", "copy", "flag"])
    assert ends[True] == pytest.approx(ends[False] + BOX.flag / US)


@pytest.mark.parametrize("in_place", [False, True])
def test_exchanged_results_are_copied_to_their_place(in_place):
    """Behind the tiles: what came, and the rank's own part unless tiles stored it there, read and written once each, and a
    launch."""
    plan = build_plan(
        find_template("all_to_all_1d")[1],
        world=2,
        tensor=TensorSpec("c", (4, 500)),
        dim=0,
        to_dim=1,
        direction="push",
    )
    machine = replace(BOX, memory=1e9)
    work = [replace(each, in_place=in_place) for each in work_per_chunk(plan, 8, 100 * US, produced=("c",))]
    timeline = simulate(plan, machine, work)
    for rank in range(2):
        tiles, placed = (events_of(timeline, kind, rank)[-1] for kind in ("tile-run", "sum"))
        assert placed.start == tiles.end
        assert placed.seconds == pytest.approx((2 - in_place) * (2 * 2 * 250) * 2 / 1e9 + BOX.kernel)


def test_copies_wait_for_the_tiles_that_make_what_they_send():
    runs = (TileRun(4, 10 * US, feeds=((0, 0),)), TileRun(6, 10 * US))
    push = P2P("push", 0, 1, chunk(0, 5000), chunk(0, 5000), reduce=SUM)
    machine = replace(BOX, memory=1e10)
    timeline = simulate(plan_of(2, [push], []), machine, (Work(runs), Work((TileRun(1, 100 * US),))))
    assert times(events_of(timeline, "copy")) == [(15, 17)]
    # Rank 1 adds behind its own tiles: two summands read, one sum written, 3 x 1 us, and a launch.
    assert times(events_of(timeline, "sum")) == [(105, 111)]
    assert [timeline.events[i].kind for i in timeline.critical] == ["wait", "tile-run", "sum"]


def test_collectives_start_together():
    both = [Collective("all_gather", (0, 1), chunk(0, 8000), chunk(0, 16000), channel=1) for _ in range(2)]
    timeline = simulate(plan_of(2, [both[0]], [replace(both[1], depends=((1, 1),)), pull(0, 1)]), BOX)
    # Rank 1 comes at 4.5; half of 32,000 bytes at 8 a ns behind 5 us.
    assert times([e for e in events_of(timeline, "copy") if e.lane == "copy 1"]) == [(4.5, 11.5)] * 2


SHAPES = st.integers(0, 40)


@st.composite
def launches(draw):
    """A plan, a machine, work on it, and what sums store."""
    world, split = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    rows = draw(SHAPES)
    make = draw(st.sampled_from([gather, ring, reduce_scatter, two_shot, ring_scatter]))
    more = {} if make is ring_scatter else {"split": split}
    plan = make((rows, 3), 0, world, channels=draw(st.integers(1, 2)), **more)
    machine = replace(BOX, node=draw(st.integers(1, 7)), between=Link("net", 3e-6, 1e9, False))
    machine = replace(machine, contention=draw(st.sampled_from([0, 0.3])), own_wires=draw(st.booleans()))
    machine = replace(machine, contention_sent=draw(st.sampled_from([0, 0.2])), one_engine=draw(st.booleans()))
    produced = ("c",) if make in (reduce_scatter, two_shot, ring_scatter) else ()
    tiles = [draw(st.integers(0, 30)) for _ in range(world)]
    work = work_per_chunk(plan, tiles, 2 * US, produced=produced)
    carries = by_sums(plan, machine) if draw(st.booleans()) else {}
    return plan, machine, work if draw(st.booleans()) else (), carries


@settings(max_examples=examples(150), deadline=None)
@given(launches())
def test_what_holds_of_every_timeline(launch):
    plan, machine, work, carries = launch
    timeline = simulate(plan, machine, work, carries=carries)
    assert {e.kind for e in timeline.events} <= set(KINDS)
    assert timeline.events == tuple(sorted(timeline.events, key=lambda e: e.start))
    # Every operation once, behind what it depends on and what makes it.
    landed = {e.op: e.end for e in events_of(timeline, "flag")}
    copies = {e.op: e for e in events_of(timeline, "copy")}
    assert set(landed) == set(copies) == {op_id for op_id, _ in plan.items()}
    slack = 1e-12
    for op_id, op in plan.items():
        assert all(copies[op_id].start >= landed[dep] - slack for dep in op.depends)
    # A lane holds one event at a time, a port one copy; what is empty goes through none.
    spans: dict[object, list[tuple[float, float]]] = {}
    for event in timeline.events:
        spans.setdefault((event.rank, event.lane), []).append((event.start, event.end))
        if event.kind == "copy" and event.op is not None and not plan.op(event.op).dst.box.empty:
            op = plan.op(event.op)
            link = machine.link(op.src_rank, op.dst_rank)
            ports = [(link.name, op.src_rank, op.dst_rank)]
            if not machine.own_wires:
                ports = [(link.name, "out", op.src_rank), (link.name, "in", op.dst_rank)]
            for port in ports:
                spans.setdefault(port, []).append((event.start, event.end))
    for taken in spans.values():
        taken.sort()
        assert all(a[1] <= b[0] + slack for a, b in zip(taken, taken[1:], strict=False))
    # The critical path has no gap and ends with everything.
    path = [timeline.events[i] for i in timeline.critical]
    assert timeline.total == max((e.end for e in timeline.events), default=0)
    assert not timeline.events or path[-1].end == timeline.total
    assert all(abs(a.end - b.start) < slack for a, b in zip(path, path[1:], strict=False))
    # Nothing is faster than the tiles alone.
    assert all(timeline.end_of(rank) >= timeline.compute[rank] - slack for rank in range(plan.world))
    assert str(timeline).count("\n") == len(timeline.events)
    ends = simulate_ends(plan, machine, work, carries=carries)
    assert (ends.total, ends.compute) == (timeline.total, timeline.compute)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("rows, tiles", [(40, 7), (3, 7), (0, 7), (41, 100)])
def test_no_tile_is_lost(world, rows, tiles):
    for make, produced in [(gather, ()), (reduce_scatter, ("c",)), (two_shot, ("c",)), (ring_scatter, ("c",))]:
        plan = make((rows, 2), 0, world)
        for rank, work in enumerate(work_per_chunk(plan, tiles, US, produced=produced)):
            assert work.tiles == tiles
            sent = {i for i, op in enumerate(plan.ops[rank])}
            if produced and make is not two_shot:
                assert {i for run in work.runs for _, i in run.feeds} == sent


def test_a_tile_of_two_chunks_is_made_for_the_first_and_read_for_the_last():
    """Four chunks, two tiles: each tile lies over two of them."""
    makes = work_per_chunk(reduce_scatter((4, 2), 0, 4), 2, US, produced=("c",))[1]
    assert [(run.tiles, run.feeds) for run in makes.runs] == [(1, ((1, 0), (1, 1))), (1, ((1, 2),))]
    reads = work_per_chunk(gather((4, 2), 0, 4), 2, US)[1]
    assert [(run.tiles, run.waits) for run in reads.runs] == [(1, ((1, 0),)), (1, ((1, 2),))]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_every_part_is_added_once(world):
    """Where a sum is sent on it is the result as well; in a ring each stop adds, the last one for good."""
    shot = simulate(two_shot((10, 2), 0, world), BOX)
    around = simulate(ring_scatter((10, 2), 0, world), BOX)
    for rank in range(world):
        assert len(events_of(shot, "sum", rank)) == 1
        assert len(events_of(around, "sum", rank)) == world - 1
        assert len(events_of(simulate(reduce_scatter((10, 2), 0, world), BOX), "sum", rank)) == 1


def test_runs_of_a_schedule():
    """What runs wait for comes from the schedule: each starts behind the flags it waits for."""
    plan = gather((136, 8), 0, 4)
    schedules = schedule_all(plan, reads_a(), gemm_axes(136, 64, 32, 16))
    works = work_of_schedules(plan, schedules, 10 * US)
    timeline = simulate(plan, BOX, works)
    landed = {e.op: e.end for e in events_of(timeline, "flag")}
    for rank, work in enumerate(works):
        assert work.tiles == 20
        runs = events_of(timeline, "tile-run", rank)
        assert len(runs) == len(schedules[rank].runs)
        for run, event in zip(work.runs, runs, strict=True):
            assert all(event.start >= landed[op] for op in run.waits)
    with pytest.raises(ScheduleError, match="3 ranks for a plan of 4"):
        work_of_schedules(plan, schedules[:3], US)


def test_refusals():
    plan = gather((8, 2), 0, 4)
    with pytest.raises(PlanError, match="no link from rank 0 to rank 3"):
        simulate(plan, BOX, links=full_mesh(4).without(0, 3))
    assert simulate(plan, BOX, links=full_mesh(4)).total > 0
    with pytest.raises(PlanError, match="links of 5 ranks for a plan of 4"):
        simulate(plan, BOX, links=full_mesh(5))
    with pytest.raises(PlanError, match="one node of 2 ranks, not 4"):
        simulate(plan, replace(BOX, node=2))
    with pytest.raises(ScheduleError, match="work of 1 ranks"):
        simulate(plan, BOX, (Work(()),))
    with pytest.raises(ScheduleError, match="tiles of 2 ranks"):
        work_per_chunk(plan, [1, 2], US)
    with pytest.raises(PlanError, match="in a cycle"):
        simulate(plan_of(2, [pull(1, 0, depends=((1, 0),))], [pull(0, 1, depends=((0, 0),))]), BOX)
    with pytest.raises(PlanError, match="operation 7 of rank 1, which there is not"):
        simulate(plan_of(2, [pull(1, 0, depends=((1, 7),))], []), BOX)
    stuck = (Work((TileRun(1, US, ((0, 0),)), TileRun(1, US, feeds=((0, 0),)))), Work(()))
    with pytest.raises(ScheduleError, match="tiles of rank 0 never end"):
        simulate(plan_of(2, [pull(1, 0)], []), BOX, stuck)
    alone = Collective("all_reduce", (0, 1), chunk(0, 4), chunk(0, 4))
    with pytest.raises(PlanError, match="missing some of its ranks"):
        simulate(plan_of(2, [alone], []), BOX)


# Measured by hand-written kernels in a CUDA graph on 4 x H100 with NVLink, ms: gathers by pull in 1, 2 and 4 chunks a rank,
# reduce-scatters by push in 1 and 2.
GATHERED = {
    (8192, 6144, 4096): (0.254, 0.270, 0.300),
    (8192, 14336, 4096): (0.376, 0.372, 0.368),
    (8192, 8192, 8192): (0.436, 0.466, 0.493),
    (8192, 28672, 8192): (1.330, 1.321, 1.388),
    (8192, 53248, 16384): (4.894, 5.450, 5.654),
}
SCATTERED = {
    (8192, 4096, 14336): (0.406, 0.375),
    (8192, 8192, 8192): (0.502, 0.506),
    (8192, 8192, 28672): (1.346, 1.347),
    (16384, 16384, 16384): (3.205, 3.238),
}


@pytest.mark.parametrize("shape", GATHERED)
def test_gathers_as_measured(shape):
    machine = load_machine("h100-nvlink")
    m, n, k = shape
    gemm = best_blocks(m, n // 4, k, machine)
    for split, measured in zip((1, 2, 4), GATHERED[shape], strict=True):
        plan = template("all_gather_1d", 4, (m, k), split, "pull")
        total = simulate_ends(plan, machine, work_per_chunk(plan, gemm.tiles, gemm.tile_seconds(machine))).total
        assert 0.82 < total * 1e3 / measured < 1.1


@pytest.mark.parametrize("shape", SCATTERED)
def test_reduce_scatters_as_measured(shape):
    machine = load_machine("h100-nvlink")
    m, n, k = shape
    gemm = best_blocks(m, n, k // 4, machine)
    for split, measured in zip((1, 2), SCATTERED[shape], strict=True):
        plan = template("reduce_scatter_1d", 4, (m, n), split)
        work = work_per_chunk(plan, gemm.tiles, gemm.tile_seconds(machine), produced=("x",))
        assert 0.9 < simulate_ends(plan, machine, work).total * 1e3 / measured < 1.1


def test_a_product_is_full_waves_of_tiles():
    assert Gemm(256, 512, 64).tiles == 4 and Gemm(257, 513, 64).tiles == 9 and Gemm(0, 512, 64).tiles == 0
    machine = replace(BOX, units=4)
    one = Gemm(256, 512, 64).seconds(machine)
    assert one == pytest.approx(2 * 256 * 512 * 64 / 2e12) == pytest.approx(Gemm(1, 1, 64).seconds(machine))
    assert Gemm(257, 512, 64).seconds(machine) == pytest.approx(2 * one)
    # Small tiles would fill the last of three waves; what they lose is more.
    h100 = load_machine("h100-nvlink")
    assert best_blocks(8192, 1536, 4096, h100) == Gemm(8192, 1536, 4096)
    # A product of few rows is bound by memory, not by its tiles.
    thin = best_blocks(16, 4096, 3584, h100)
    assert thin.seconds(h100) == pytest.approx((16 * 3584 + 3584 * 4096 + 16 * 4096) * 2 / 3e12)
    with pytest.raises(PlanError, match="unknown dtype `int3`"):
        best_blocks(1, 1, 1, h100, "int3")


@pytest.mark.parametrize("make", [gather, ring, two_shot])
def test_steps_are_a_few_for_each_operation(make, monkeypatch):
    """Counted, not timed: the steps of the simulation, its events, and what is waited for, for each copy, are the same
    number in worlds of 4 to 32, a hundred times the operations."""
    each = []
    for world in (4, 8, 16) if make is two_shot else (4, 8, 16, 32):
        plan = make((world * 2, 4), 0, world, split=2)
        steps = 0

        def counted(heap, entry):
            nonlocal steps
            steps += 1
            heappush(heap, entry)

        monkeypatch.setattr(events, "heappush", counted)
        produced = ("c",) if make is two_shot else ()
        work = work_per_chunk(plan, 500, US, produced=produced)
        timeline = simulate(plan, load_machine("h100-nvlink-ib400"), work)
        copies = sum(map(len, plan.ops))
        runs = sum(len(w.runs) for w in work)
        sums = len(events_of(timeline, "sum"))
        assert steps <= 2 * copies + 2 * runs + sums, (
            "a step more than when a copy asks and lands, a run begins and ends"
        )
        assert len(timeline.events) <= 2 * copies + 2 * runs + sums + world
        each.append((steps + len(timeline.events)) / (copies + runs + sums))
    assert max(each) <= 4 and each[-1] <= 1.1 * each[1]


def test_a_thousand_chunks_on_each_of_256_ranks_take_under_ten_seconds():
    """The limit is for two processors and 261,120 copies; a sixteenth of them is given a quarter of it, on one, busy or not.

    `bench/event_model.py` times the whole.
    """
    plan = gather((256, 8), 0, 64, split=4)
    assert sum(map(len, plan.ops)) * 16 > 0.98 * 256 * 1000
    machine = load_machine("h100-nvlink-ib400")
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        simulate(plan, machine, work_per_chunk(plan, 2000, US))
        best = min(best, time.process_time() - began)
        if best < 2.5:
            break
    assert best < 2.5


def test_time_grows_as_operations_do():
    """Three times the ranks are nine times the copies, flags and runs, each as long as before (more: bench/event_model.py)."""
    machine = load_machine("h100-nvlink-ib400")
    spent = []
    for world in (24, 72):
        plan = gather((world * 4, 8), 0, world, split=4)
        best = float("inf")
        for _ in range(2):
            began = time.process_time()
            timeline = simulate(plan, machine, work_per_chunk(plan, 2000, US))
            best = min(best, time.process_time() - began)
        spent.append(best / len(events_of(timeline, "copy")))
        assert len(events_of(timeline, "copy")) == world * (world - 1) * 4
    assert spent[1] < 2.5 * spent[0]
