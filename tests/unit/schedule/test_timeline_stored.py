"""Sums that are stored where they go, in the event model: which operations, when they land, what waits for what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap.chunkplan.plan import P2P
from overlap.schedule.carried import LANES, Carry, Way, as_copies, by_sums, carried
from overlap.schedule.early import in_rounds
from overlap.schedule.events import simulate
from overlap.schedule.machine import load_machine
from overlap.schedule.predict import predict
from overlap.schedule.work import work_per_chunk

from .plans import one_shot, two_shot
from .test_timeline import BOX, US, chunk, events_of, plan_of, template, times

STORES = replace(BOX, programs={"push": {4: 5e9}})
"""Programs store 5 bytes a ns, half of what links carry."""


def test_which_operations_and_how(monkeypatch):
    """All that send a sum, where every rank reaches every other, by lanes, and as the setting says."""
    plan = two_shot((6, 1), 0, 3)
    sums = {op_id for op_id, op in plan.items() if isinstance(op, P2P) and op.reduce is None}
    assert by_sums(plan, STORES) == dict.fromkeys(sums, Carry(5e9, contention=STORES.contention, by_sum=True))
    assert by_sums(plan, BOX)[0, 2].bytes_per_s == BOX.inside.bytes_per_s
    assert by_sums(one_shot((6, 1), 3), STORES) == by_sums(plan, replace(STORES, node=2)) == {}
    assert carried(plan, STORES, lambda op: LANES, itemsize=2).carries.keys() == sums
    other = as_copies(Way("ldst_reserved", "moves"))
    assert not any(carry.by_sum for carry in carried(plan, STORES, lambda op: other, itemsize=2).carries.values())
    monkeypatch.setenv("OVERLAP_STORE_SUMS", "0")
    assert by_sums(plan, STORES) == {} == carried(plan, STORES, lambda op: LANES, itemsize=2).carries


def test_a_sum_leaves_while_it_is_added_and_without_flags():
    """Three ranks, 5,000 elements of 2 bytes a rank, which programs store in 2 us: to one peer and then the other, and no
    latency; copied, each takes 2 us and half a one of flag. Of 3 summands memory takes 5 us to read and write, so 1 us more."""
    plan, machine = two_shot((15000, 1), 0, 3), replace(STORES, memory=1e10)
    copied, stored = (simulate(plan, machine, carries=carries) for carries in ({}, by_sums(plan, machine)))

    def second(timeline):
        return times([e for e in events_of(timeline, "copy", 0) if e.lane == "copy 1"])

    (added,), (less,) = (times([events_of(timeline, "sum", 0)[0]]) for timeline in (copied, stored))
    begun = added[0]
    assert less[0] == begun and added[1] - less[1] == pytest.approx(min(added[1] - begun, 4), abs=1e-3)
    assert second(copied) == [(added[1], added[1] + 2), (added[1] + 2.5, added[1] + 4.5)]
    assert second(stored) == [(less[1], less[1] + 2), (less[1] + 2, less[1] + 4)]


def test_an_engine_that_writes_a_flag_holds_up_no_program():
    """What a sum stores leaves behind a copy, though its flag is still being written; the next copy behind both."""
    engine, other = (P2P("push", 0, 1, chunk(lo, lo + 5000), chunk(lo, lo + 5000)) for lo in (0, 5000))
    plan = plan_of(2, [engine, replace(other, channel=1), engine], [])
    for one in (True, False):
        timeline = simulate(plan, replace(BOX, one_engine=one), carries={(0, 1): Carry(5e9, by_sum=True)})
        assert times(events_of(timeline, "copy")) == [(2, 4), (4, 6), (6, 8)]
        assert times(events_of(timeline, "flag")) == [(4, 4.5), (6, 6), (8, 8.5)]
    copied = simulate(plan, replace(BOX, one_engine=True))
    assert times(events_of(copied, "copy"))[1] == (4.5, 6.5)


def test_what_others_store_is_put_in_place_round_by_round():
    """In four rounds three of the four copies to the result stand beside the tiles; what is copied goes in one."""
    plan = in_rounds(template("all_reduce_two_shot", 2, (8000, 1), 4), ("x",))
    machine = replace(STORES, memory=1e12)
    work = work_per_chunk(plan, 64, 20 * US, produced=("x",), free=1)
    found = {}
    for name, carries in (("copied", {}), ("stored", by_sums(plan, machine))):
        timeline = simulate(plan, machine, work, carries=carries)
        last = max(e.end for e in events_of(timeline, "tile-run", 0))
        found[name] = [e.end <= last for e in events_of(timeline, "sum", 0)]
    # Four sums, of which the last follows the tiles, and what puts in place.
    assert (sum(found["copied"]), len(found["copied"])) == (3, 5)
    assert (sum(found["stored"]), len(found["stored"])) == (6, 8)


def test_predictions_know_of_it(monkeypatch):
    sizes, machine = {"M": 8192, "N": 4096, "K": 14336}, load_machine("h200-nvlink")

    def total(free):
        how = {"machine": machine, "split": 4, "way": replace(LANES, free=free), "break_even": False}
        return predict("gemm_ar", world=4, sizes=sizes, **how).fused

    stored = [total(free) for free in (0, 4)]
    monkeypatch.setenv("OVERLAP_STORE_SUMS", "0")
    copied = [total(free) for free in (0, 4)]
    assert stored[0] < 0.9 * copied[0] and stored[1] < 0.85 * copied[1]
