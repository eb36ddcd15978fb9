"""Tiles stored into other ranks' slots, with one thing taken away: each is caught. The reference run of each is in
`test_pushing.py`."""

from __future__ import annotations

import dataclasses

import pytest
from test_mutations import SHAPE, without
from test_mutations import faults as faults_of
from test_pushing import compiler

from overlap.errors import UnsupportedError
from overlap.runtime import instance as instances
from overlap.runtime.tables import slots as slot_tables
from overlap.schedule import steps as st
from overlap.sim import check_module

pytestmark = pytest.mark.one_triton

SEEDS = range(3)


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    return compiler(tmp_path_factory, repo)


def faults(path, **options):
    return faults_of(path, seeds=SEEDS, **options)


NOTE = "# Where the tile goes: slots of other ranks, the own part; one place, but on the edges of chunks.\n"
PUSHED = "    ol.pushed(ol_table, ol_run, ol_state, ol_slots)\n"
LATE = "ol.pushed_async(ol_table, ol_counted, ol_state, ol_slots, ol_ways)\n"
"""How tiles of `host_descriptors` are counted, ahead of the next one's stores and, the last one, behind the loop."""
AT_ONCE = "        ol.pushed_async(ol_table, ol_run, ol_state, ol_slots, ol_ways)\n"
"""How those of `persistent_gemm` are, whose loop is flattened."""
KEPT = "        ol_counted = ol_run\n"
BOTH = pytest.mark.parametrize("kernel", ["grouped_gemm", "persistent_gemm"])


def test_a_tile_counted_before_its_stores(generated):
    assert faults(generated(edits=((PUSHED, ""), (NOTE, PUSHED.lstrip())))) == ["race"] * len(SEEDS)


def test_a_tile_counted_a_tile_too_early(generated):
    path = generated("host_descriptors", edits=((KEPT, ""), (f"        {LATE}", f"{KEPT}        {LATE}")))
    assert faults(path) == ["race"] * len(SEEDS)


def test_a_tile_never_counted(generated):
    assert faults(generated(edits=((PUSHED, ""),))) == ["deadlock"] * len(SEEDS)


def test_the_last_tile_never_counted(generated):
    assert faults(generated("host_descriptors", edits=((f"\n    {LATE}", "\n"),))) == ["deadlock"] * len(SEEDS)


def test_a_tile_of_a_flattened_loop_counted_before_its_stores(generated):
    path = generated("persistent_gemm", edits=((AT_ONCE, ""), (f"        {NOTE}", f"{AT_ONCE}        {NOTE}")))
    assert faults(path) == ["race"] * len(SEEDS)


def test_a_tile_counted_without_barrier(generated):
    path = generated(edits=(("ol.pushed(", "ol.stores._push_in("),))
    assert faults(path) == ["race"] * len(SEEDS)
    assert "no barrier before release" in str(check_module(path, world=3, shape=SHAPE, seeds=[0]))


def test_a_tile_counted_before_its_stores_have_landed(generated, monkeypatch):
    """The barrier alone: what TMA stores is on its way, where Triton does not wait for it (before 3.8)."""
    monkeypatch.setattr("overlap.sim.world._stores_land_late", lambda: True)
    bare = "ol.pushed(ol_table, ol_counted, ol_state, ol_slots)\n"
    path = generated(
        "host_descriptors", edits=((f"        {LATE}", f"        {bare}"), (f"\n    {LATE}", f"\n    {bare}"))
    )
    assert faults(path) == ["race"] * len(SEEDS)


@pytest.mark.parametrize(
    ("kernel", "over"),
    [("grouped_gemm", "range(ol.ways(ol_table, ol_run))"), ("persistent_gemm", "ol.static_range(ol_ways)")],
)
def test_a_tile_on_the_edge_of_two_chunks_stored_in_one_place(generated, kernel, over):
    path = generated(kernel, edits=((over, "range(1)"),))
    assert set(faults(path)) <= {"race", "mismatch", "unwritten"}


def _with(monkeypatch, change):
    """Has what tiles count into, and tell, changed by ``change(tell)``."""
    whole = instances.pushes

    def pushes(*args):
        made = whole(*args)
        return dataclasses.replace(made, tells=tuple(tuple(change(t) for t in run) for run in made.tells))

    monkeypatch.setattr(instances, "pushes", pushes)


@BOTH
def test_a_target_one_short(generated, monkeypatch, kernel):
    _with(monkeypatch, lambda tell: dataclasses.replace(tell, target=max(1, tell.target - 1)))
    assert set(faults(generated(kernel))) <= {"race"}


def test_a_target_one_too_high(generated, monkeypatch):
    _with(monkeypatch, lambda tell: dataclasses.replace(tell, target=tell.target + 1))
    assert faults(generated()) == ["deadlock"] * len(SEEDS)


def test_a_flag_raised_at_another_rank(generated, monkeypatch):
    _with(monkeypatch, lambda tell: dataclasses.replace(tell, peer=(tell.peer + 1) % 3))
    assert set(faults(generated())) <= {"race", "deadlock"}


@BOTH
def test_a_tile_stored_into_the_wrong_slot(generated, monkeypatch, kernel):
    """Into the slot of another operation, on the same rank or another."""
    whole = slot_tables._shift

    def shift(part, op_id):
        own = [op for layout in part.layouts for op in layout.slots if op[0] == op_id[0]]
        return whole(part, own[(own.index(op_id) + 1) % len(own)])

    monkeypatch.setattr(slot_tables, "_shift", shift)
    assert set(faults(generated(kernel))) <= {"race", "mismatch", "unwritten", "stray access"}


def test_counters_never_reset(generated):
    def keep(rank, steps):
        return tuple(dataclasses.replace(s, counters=False) if isinstance(s, st.Entry) else s for s in steps)

    assert set(faults(generated(), mutate_steps=keep)) <= {"race", "deadlock"}


@pytest.mark.parametrize("drop", [st.Credit])
def test_steps_dropped(generated, drop):
    assert set(faults(generated(), mutate_steps=without(drop))) <= {"race", "deadlock"}


def test_a_launch_that_does_not_wait_for_the_peers(generated):
    def rush(rank, steps):
        return tuple(dataclasses.replace(s, wait_done=False) if isinstance(s, st.Entry) else s for s in steps)

    assert "race" in faults(generated(), mutate_steps=rush)


@pytest.mark.parametrize(
    ("kernel", "backend", "on", "why", "instead"),
    [
        ("persistent_gemm", "ldst_inline", "c[M]", "stores by descriptor or block pointer into `c_ptr`", "tma_inline"),
        ("grouped_gemm", "tma_inline", "c[M]", "through tensor descriptors; this one stores by pointer", "ldst_inline"),
    ],
)
def test_what_it_cannot_do_is_refused(generated, kernel, backend, on, why, instead):
    plan = "reduce_scatter_1d" if on.startswith("c") else "all_gather_1d"
    with pytest.raises(UnsupportedError, match=why) as caught:
        generated(kernel, plan, on, backend=backend)
    assert "copy_engine" in caught.value.help and instead in caught.value.help


def test_blocks_larger_than_the_margin_are_refused(generated):
    path = generated(edits=(("        BLOCK_M=64,\n", "        BLOCK_M=512,\n"),))
    with pytest.raises(UnsupportedError, match="more than 256 rows outside of it"):
        check_module(path, world=2, shape={**SHAPE, "M": 1100}, seeds=[0], launches=1)
