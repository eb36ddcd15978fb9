"""Tiles stored into other ranks' slots by the programs that make them, by pointers and by TMA: against the original kernel, and
with one thing taken away.

CI runs a subset of the matrix in which every pair of values meets; ``make sweep`` runs that with 20 seeds and all of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import os

import pytest
from test_mutations import SHAPE, without
from test_mutations import faults as faults_of
from test_proof_matrix import pairwise

from overlap.annotate.source import SourceUnit
from overlap.errors import UnsupportedError
from overlap.pipeline import Request, compile_source
from overlap.runtime import instance as instances
from overlap.runtime import slots as slot_tables
from overlap.schedule import steps as st
from overlap.sim import check_module

BACKENDS = {
    "grouped_gemm": "ldst_inline",
    "gemm_2d": "ldst_inline",
    "persistent_gemm": "tma_inline",
    "host_descriptors": "tma_inline",
}
"""By kernel: those that store to pointers, and those that store through descriptors of the kernel and of the host."""
KERNELS = tuple(BACKENDS)
WAYS = (
    ("reduce_scatter_1d", "c[M]"),
    ("reduce_scatter_1d", "c[N]"),
    ("all_reduce_one_shot", "c[]"),
    ("all_reduce_two_shot", "c[]"),
    ("all_to_all_1d", "c[M:N]"),
)
FACTORS = (KERNELS, WAYS, (1, 2, 3, 4, 5), (256, 1000, 130, 3), ("fp16", "bf16", "fp32"))
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
PAIRS = pairwise(FACTORS)
REST = [case for case in itertools.product(*FACTORS) if case not in PAIRS] if SWEEP else []
CASES = [(*case, range(20) if SWEEP else (seed,)) for seed, case in enumerate(PAIRS)]
CASES += [(*case, (seed,)) for seed, case in enumerate(REST)]
SEEDS = range(3)


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    """``generated(kernel, plan, on, edits, backend)``: a kernel compiled for its backend, with its text edited."""
    folder = tmp_path_factory.mktemp("generated")
    made: dict = {}

    def make(
        kernel: str = "grouped_gemm", plan: str = "reduce_scatter_1d", on: str = "c[M]", edits=(), backend: str = ""
    ) -> str:
        backend = backend or BACKENDS[kernel]
        key = (kernel, plan, on, tuple(edits), backend)
        if key not in made:
            path = folder / f"module_{len(made)}.py"
            source = repo / ("tests" if kernel == "host_descriptors" else "templates") / "kernels" / f"{kernel}.py"
            request = Request(SourceUnit.from_file(source), plan=plan, on=on, backend=backend, output=str(path))
            text = compile_source(request).module.text
            for old, new in edits:
                assert text.count(old) == 1, (text.count(old), old)
                text = text.replace(old, new)
            path.write_text(text)
            made[key] = str(path)
        return made[key]

    return make


def test_every_pair_of_values_meets():
    seen = {(i, r[i], j, r[j]) for r in PAIRS for i, j in itertools.combinations(range(len(r)), 2)}
    factors = enumerate(FACTORS)
    assert {(i, x, j, y) for (i, xs), (j, ys) in itertools.combinations(factors, 2) for x in xs for y in ys} <= seen


@pytest.mark.parametrize("kernel,way,world,rows,dtype,seeds", CASES)
def test_agrees_with_the_original(generated, kernel, way, world, rows, dtype, seeds):
    shape = {"M": rows, "N": 72, "K": 48}
    report = check_module(generated(kernel, *way), world=world, shape=shape, dtype=dtype, seeds=list(seeds), launches=2)
    assert report.ok, str(report)


def faults(path, **options):
    return faults_of(path, seeds=SEEDS, **options)


NOTE = "# Where the tile goes: slots of other ranks, the own part; one place, but on the edges of chunks.\n"
PUSHED = {
    "grouped_gemm": "    ol.pushed(ol_table, ol_run, ol_state, ol_slots)\n",
    "persistent_gemm": "        ol.pushed_async(ol_table, ol_run, ol_state, ol_slots, ol_ways)\n",
}
BOTH = pytest.mark.parametrize("kernel", PUSHED)


@BOTH
def test_a_tile_counted_before_its_stores(generated, kernel):
    path = generated(kernel, edits=((PUSHED[kernel], ""), (NOTE, PUSHED[kernel].lstrip())))
    assert faults(path) == ["race"] * len(SEEDS)


@BOTH
def test_a_tile_never_counted(generated, kernel):
    assert faults(generated(kernel, edits=((PUSHED[kernel], ""),))) == ["deadlock"] * len(SEEDS)


def test_a_tile_counted_without_barrier(generated):
    path = generated(edits=(("ol.pushed(", "ol.stores._push_in("),))
    assert faults(path) == ["race"] * len(SEEDS)
    assert "no barrier before release" in str(check_module(path, world=3, shape=SHAPE, seeds=[0]))


def test_a_tile_counted_before_its_stores_have_landed(generated):
    """The barrier alone: what TMA stores is on its way."""
    path = generated(
        "persistent_gemm", edits=(("ol.pushed_async(", "ol.pushed("), (", ol_slots, ol_ways)", ", ol_slots)"))
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
        ("persistent_gemm", "tma_inline", "a[M]", "stores what a kernel makes, and `a` is an input", "copy_engine"),
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
