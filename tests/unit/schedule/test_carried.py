"""Who carries operations out, in the event model: exact times by hand, several ways in one launch, what predictions say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap.backends.carriers import Carriers
from overlap.backends.ways import machine_of, naming, ways_of
from overlap.chunkplan.build import build_plan
from overlap.chunkplan.plan import TensorSpec
from overlap.errors import PlanError
from overlap.schedule.carried import LANES, MOVES_AHEAD, MOVES_BESIDE, Carried, Way, as_copies, carried
from overlap.schedule.events import landing_times, simulate
from overlap.schedule.far import CARRY_PROGRAMS
from overlap.schedule.machine import load_machine
from overlap.schedule.op_ways import operator_candidates
from overlap.schedule.predict import predict, predicted_timeline
from overlap.schedule.work import TileRun, Work, work_per_chunk
from tests.support import mixed_plans

from .plans import gather
from .test_timeline import BOX, US, events_of, plan_of, pull, times

# Programs copy half as fast as the link, from 4 on; stores as well.
PROGRAMS = replace(BOX, programs={"pull": {4: 5e9}, "push": {4: 5e9}})
MOVES, SHARED, STORES = Way("moves", "moves", 4), Way("shared", "shared"), Way("stores", "stores")
H100 = load_machine("h100-nvlink")


def launch(plan, works=(), machine=PROGRAMS, **named):
    """The timeline of a plan whose operations go by the ways of these names, else by lanes."""
    found = carried(plan, machine, lambda op: named.get(op.backend or "", LANES), itemsize=2)
    return simulate(plan, found.machine, found.slowed(works), carries=found.carries)


def by(op, backend):
    return replace(op, backend=backend)


def test_programs_copy_at_their_rate_from_a_flag_on():
    """5,000 elements of 2 bytes at 5 bytes a ns are 2 us, behind half a us; the copy behind it takes 1 us and 1 us."""
    plan = plan_of(2, [by(pull(1, 0), "own"), pull(1, 0)], [])
    assert times(events_of(launch(plan, own=MOVES), "copy")) == [(2, 4.5), (5, 7)]
    assert times(events_of(launch(plan), "copy")) == [(2, 4), (4.5, 6.5)]


def test_programs_and_lanes_share_the_wires():
    plan = plan_of(2, [by(pull(1, 0), "own"), pull(1, 0, channel=1)], [])
    assert times(events_of(launch(plan, own=MOVES), "copy")) == [(2, 4.5), (4.5, 6.5)]


def test_programs_of_their_own_take_units_and_others_take_time():
    plan = plan_of(2, [by(pull(1, 0, 50000), "own")], [])
    wide = replace(PROGRAMS, units=12)
    left = carried(plan, wide, lambda op: MOVES, itemsize=2).machine
    assert left.units == 8 and left.rate("bf16") == pytest.approx(wide.rate("bf16") * 8 / 12)
    for waiting, lost in ((False, MOVES_BESIDE), (True, MOVES_AHEAD)):
        found = carried(plan, PROGRAMS, lambda op: SHARED, itemsize=2, waiting=waiting)
        assert found.machine == PROGRAMS
        assert [carry.contention for carry in found.carries.values()] == [lost + PROGRAMS.contention]
    works = (Work((TileRun(10 * PROGRAMS.units, US),) * 10), Work((TileRun(1, US),)))
    alone, beside = (launch(plan, works, own=way).total for way in (LANES, SHARED))
    assert beside - alone == pytest.approx(MOVES_BESIDE * 20.5 * US)  # of what it takes to copy


def test_kernels_of_a_library_beside_the_launch_copy_as_fast_as_was_measured():
    """A us, and 10,000 bytes at 2 a ns, the rate of half as many programs as it has; nobody measured it: as by copy engine."""
    plan = plan_of(2, [replace(pull(0, 1), direction="push", backend="own")], [])
    put = Way("nvshmem", "lanes", pushed=True, by="nvshmem")
    known = replace(PROGRAMS, programs={**PROGRAMS.programs, "push_nvshmem": {CARRY_PROGRAMS // 2: 2e9, 16: 9e9}})
    assert times(events_of(launch(plan, machine=known, own=put), "copy")) == [(2, 8)]
    assert events_of(launch(plan, own=put), "copy") == events_of(launch(plan), "copy")


def test_what_tiles_store_takes_them_longer_and_nothing_else():
    """100,000 bytes at 5 bytes a ns are 20 us of all units; what was stored is there with the last tile of its run."""
    sent = replace(pull(0, 1, 50000), direction="push", backend="own")
    plan, units = plan_of(2, [sent], []), PROGRAMS.units
    works = (Work((TileRun(units * 10, US, (), ((0, 0),)),)), Work(()))
    made = launch(plan, works, own=STORES)
    (copy,) = events_of(made, "copy")
    (tiles,) = events_of(made, "tile-run")
    assert copy.start == copy.end == tiles.end
    assert (tiles.end - tiles.start) / US == pytest.approx(10 + 20)
    assert (launch(plan, works).total - made.total) / US == pytest.approx(10 + 11 - 30)


def test_what_waits_for_others_is_no_tiles_to_store():
    first, second = (replace(pull(a, b), direction="push", backend="own") for a, b in ((0, 1), (1, 0)))
    plan = plan_of(2, [first], [replace(second, depends=((0, 0),))])
    found = carried(plan, PROGRAMS, lambda op: STORES, itemsize=2)
    assert list(found.carries) == [(0, 0)] and found.storing == (2 * US, 0.0)


def test_far_ranks_are_reached_as_the_network_does():
    machine = replace(load_machine("h100-nvlink-ib400"), node=1)
    plan = plan_of(2, [by(pull(1, 0), "own")], [])
    assert not carried(plan, machine, lambda op: MOVES, itemsize=2).carries


def test_a_machine_that_was_not_measured_says_so_where_programs_copy():
    plan = plan_of(2, [by(pull(1, 0), "own")], [])
    assert carried(plan, BOX, lambda op: LANES, itemsize=2) == Carried(BOX, {}, (0.0, 0.0))
    for way in (MOVES, SHARED, STORES):
        with pytest.raises(PlanError, match="does not say how fast programs copy"):
            carried(plan, BOX, lambda op, way=way: way, itemsize=2)


@pytest.mark.parametrize("backend", ["ldst_reserved", "ldst_inline"])
def test_on_such_a_machine_they_are_copies_of_what_is_staged_first(monkeypatch, backend):
    """As fast as links, and no units fewer: what lanes do that copy nothing out of the caller's tensor."""
    machine = replace(BOX, memory=1e9, contention=0.5)
    plan = gather((20000, 1), 0, 2, direction="push")
    way = ways_of(backend, ())
    works = work_per_chunk(plan, 2, US)
    monkeypatch.setenv("OVERLAP_GIVEN_BYTES", "0")
    found = carried(plan, machine, lambda op: as_copies(way(op)), itemsize=2)
    assert found.machine == machine
    told = simulate(plan, machine, works, carries=found.carries)
    lanes = simulate(plan, machine, works)
    assert min(start for start, _ in times(events_of(told, "copy"))) > min(
        s for s, _ in times(events_of(lanes, "copy"))
    )
    monkeypatch.setenv("OVERLAP_GIVEN_BYTES", str(1 << 40))
    assert told.events == simulate(plan, machine, works).events
    assert as_copies(Way("ldst_inline", "stores")) == LANES


def test_the_machine_of_moved_plans_lands_chunks_when_programs_do():
    """Orders of chunks are those of `machine_of`; it and `carried` are of one mind where programs move everything."""
    plan = plan_of(2, [pull(1, 0), pull(1, 0, 900, channel=1)], [pull(0, 1, 7000)])
    carriers = Carriers("ldst_reserved", moving="ldst_reserved")
    landed = landing_times(plan, machine_of(PROGRAMS, plan, carriers, (), 4))
    found = carried(plan, PROGRAMS, ways_of("ldst_reserved", (), 4), itemsize=2)
    timeline = simulate(plan, found.machine, carries=found.carries)
    assert sorted(landed.values()) == sorted(e.end for e in events_of(timeline, "flag"))


def mixed(text, world=4, shape=(8192, 8192), direction="pull"):
    return build_plan(text, world=world, tensor=TensorSpec("x", shape), dim=0, direction=direction)


@pytest.mark.parametrize("op", ["ag_gemm", "gemm_rs"])
def test_a_plan_of_two_backends_is_timed_as_what_runs(op):
    """Each operation goes as it would in a plan of one backend, so the whole takes neither's time."""
    one, other = ("copy_engine", "ldst_reserved") if op == "ag_gemm" else ("copy_engine", "ldst_inline")
    text = mixed_plans.gather if op == "ag_gemm" else mixed_plans.reduce_scatter
    produced = ("x",) if op == "gemm_rs" else ()
    sizes = {"M": 8192, "N": 8192, "K": 8192}

    def fused(first, second):
        plan = mixed(text(first, second), direction="push" if produced else "pull")
        ways = ways_of("copy_engine", produced)
        found = predict(op, world=4, sizes=sizes, machine=H100, plan=plan, break_even=False, ways=ways)
        total = predicted_timeline(op, world=4, sizes=sizes, machine=H100, plan=plan, ways=ways).total
        assert found.fused == total
        return found

    copied, both, moved = fused(one, one), fused(one, other), fused(other, other)
    assert len({found.fused for found in (copied, both, moved)}) == 3
    assert [len(found.ways) for found in (copied, both, moved)] == [1, 2, 1]
    assert "by gather_mixed" in str(both) or "by reduce_scatter_mixed" in str(both)
    assert f"{one} and {other}" in str(both) or f"{other} and {one}" in str(both)


@pytest.mark.parametrize(
    ("op", "name"), [("gemm_rs", "ldst_inline"), ("gemm_ar", "tma_inline"), ("ag_gemm", "ldst_inline")]
)
def test_predict_and_auto_say_the_same(op, name):
    from overlap.backends import backend
    from overlap.backends.ways import way_of

    way = way_of(backend(name), op != "ag_gemm")
    sizes = {"M": 4096, "N": 4096, "K": 8192}
    (candidate,) = operator_candidates(op, [way], world=4, sizes=sizes, machine=H100)
    said = predict(op, world=4, sizes=sizes, machine=H100, way=way, break_even=False)
    assert said.fused == pytest.approx(candidate.seconds) and name in str(said)


@pytest.mark.parametrize(("op", "plan"), [("ag_gemm", "mixed/all_gather_1d"), ("gemm_rs", "mixed/reduce_scatter_1d")])
def test_templates_that_name_backends_are_timed_so(op, plan):
    """Some of their operations go by programs, whatever the call's backend is; the tuner ranks them by it."""
    sizes = {"M": 8192, "N": 8192, "K": 8192}
    given = {"world": 4, "sizes": sizes, "machine": H100, "plan": plan}
    (as_named,) = operator_candidates(op, [LANES], **given, named=naming(op == "gemm_rs"))
    (as_copies,) = operator_candidates(op, [LANES], **given)
    assert as_named.seconds != as_copies.seconds
