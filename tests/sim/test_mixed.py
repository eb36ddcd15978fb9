"""Plans whose operations are carried out by different backends, against the original kernel, and with one thing taken away.

CI runs a subset of the matrix in which every pair of values meets; ``make sweep`` runs all of it, on up to 5, each
under 5 seeds.
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
from overlap.chunkplan.collectives.text import direct_text
from overlap.errors import UnsupportedError, UsageError
from overlap.pipeline import Request, compile_source
from overlap.runtime import instance as instances
from overlap.schedule import moves as moving
from overlap.schedule import producing
from overlap.schedule import steps as st
from overlap.sim import check_module
from tests.support import mixed_plans as plans

pytestmark = pytest.mark.one_triton
COPIED, MOVED, STORED = "copy_engine", "ldst_reserved", "ldst_inline"
GATHERS = {
    "gather": plans.gather(COPIED, MOVED),
    "gather, others": plans.gather(MOVED, COPIED),
    "one channel": plans.gather(COPIED, MOVED, channels=1),
    "ring": plans.ring(COPIED, MOVED),
    "ring, others": plans.ring(MOVED, COPIED),
    "between tiles": plans.ring(COPIED, STORED),
}
RESULTS = {
    "scatter": plans.reduce_scatter(COPIED, STORED),
    "scatter, others": plans.reduce_scatter(STORED, COPIED),
    "reduce": plans.all_reduce(STORED, COPIED),
}
ON = {**dict.fromkeys(GATHERS, "a[M]"), "scatter": "c[M]", "scatter, others": "c[N]", "reduce": "c[]"}
PLANS = {**GATHERS, **RESULTS}
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
NAMES = tuple(name for name in PLANS if SWEEP or not name.startswith(("gather,", "scatter,")))
FACTORS = (NAMES, (2, 3, 4, 5) if SWEEP else (2, 3), (130, 3), (1, 2))
CASES = list(itertools.product(*FACTORS)) if SWEEP else pairwise(FACTORS)
SEEDS = range(5) if SWEEP else range(1)


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    """``generated(text, on, split=, backend=)``: a template kernel compiled for plans given as text."""
    folder = tmp_path_factory.mktemp("generated")
    made: dict = {}

    def make(*pairs, split: int = 1, backend: str | None = None, kernel: str = "grouped_gemm", settings=()) -> str:
        key = (pairs, split, backend, kernel, settings)
        if key not in made:
            number = len(made)
            texts = [text for text, _ in pairs]
            names = [
                text if "\n" not in text else str(folder / f"plan_{number}_{i}.yaml") for i, text in enumerate(texts)
            ]
            for name, text in zip(names, texts, strict=True):
                if name != text:
                    (folder / name).write_text(text)
            unit = SourceUnit.from_file(repo / "templates" / "kernels" / f"{kernel}.py")
            path = folder / f"module_{number}.py"
            given = {**({"split": str(split)} if split > 1 else {}), **dict(settings)}
            ons = [on for _, on in pairs]
            request = Request(unit, plan=names, on=ons, backend=backend, settings=given, output=str(path))
            path.write_text(compile_source(request).module.text)
            made[key] = str(path)
        return made[key]

    return make


def test_every_pair_of_values_meets():
    seen = {(i, r[i], j, r[j]) for r in CASES for i, j in itertools.combinations(range(len(r)), 2)}
    factors = enumerate(FACTORS)
    assert {(i, x, j, y) for (i, xs), (j, ys) in itertools.combinations(factors, 2) for x in xs for y in ys} <= seen


@pytest.mark.parametrize(("name", "world", "rows", "split"), CASES)
def test_agrees_with_the_original(generated, name, world, rows, split):
    path = generated((PLANS[name], ON[name]), split=split)
    shape = {"M": rows, "N": 16, "K": 24}
    seeds = list(SEEDS) if SWEEP else [CASES.index((name, world, rows, split))]
    report = check_module(path, world=world, shape=shape, dtype="fp16", seeds=seeds, launches=2)
    assert report.ok, str(report)


BOTH = [(plans.gather(MOVED, COPIED), COPIED, "scatter", "c[N]")]


@pytest.mark.parametrize(("gather", "backend", "made", "on"), BOTH)
def test_inputs_moved_and_results_stored_by_one_kernel(generated, gather, backend, made, on):
    path = generated((gather, "a[M]"), (RESULTS[made], on), backend=backend)
    text = open(path).read()
    assert "ol.moving(ol_moves)" in text and 'ours=("ol_table", "ol_state", "ol_slots", "ol_moves")' in text
    report = check_module(path, world=3, shape={"M": 130, "N": 16, "K": 24}, dtype="fp16", seeds=[0], launches=2)
    assert report.ok, str(report)


LIBRARY = {
    "gather": ("all_gather_1d", "a[M]"),
    "exchange": ("all_to_all_1d", "a[K:M]"),
    "scatter": ("reduce_scatter_1d", "c[N]"),
    "reduce": ("all_reduce_two_shot", "c[]"),
    "exchanged": ("all_to_all_1d", "c[M:N]"),
}


@pytest.mark.parametrize("name", LIBRARY if SWEEP else ["gather"])
def test_collectives_by_a_library(generated, name):
    path = generated(LIBRARY[name], backend="collective")
    assert "collective: " in open(path).read()
    report = check_module(path, world=3, shape={"M": 100, "N": 16, "K": 24}, dtype="fp16", seeds=[0], launches=2)
    assert report.ok, str(report)


GATHERED = direct_text("all_gather")
SUMMED = direct_text("reduce_scatter")


@pytest.mark.parametrize(
    "pairs",
    [((GATHERED, "a[M]"), (RESULTS["scatter"], "c[M]")), ((GATHERS["ring"], "a[M]"), (SUMMED, "c[N]"))],
)
def test_a_library_beside_other_backends(generated, pairs):
    report = check_module(
        generated(*pairs), world=3, shape={"M": 130, "N": 16, "K": 24}, dtype="fp16", seeds=[0], launches=2
    )
    assert report.ok, str(report)


def _moved(kind, to):
    """A step filter that puts the steps of a kind in another place."""

    def mutate(rank, steps):
        left = [s for s in steps if not isinstance(s, kind)]
        at = to(left)
        return tuple([*left[:at], *(s for s in steps if isinstance(s, kind)), *left[at:]])

    return mutate


def test_collectives_on_the_wrong_side_of_the_kernel(generated):
    """A kernel that reads what has not come, and a sum of what has not been made."""
    gather, scatter = (
        generated(LIBRARY["gather"], backend="collective"),
        generated(LIBRARY["scatter"], backend="collective"),
    )
    assert "ok" not in faults(gather, mutate_steps=_moved(st.Library, len))
    assert "ok" not in faults(scatter, mutate_steps=_moved(st.Library, lambda steps: 1))
    assert "ok" not in faults(gather, mutate_steps=without(st.Library))


@pytest.mark.parametrize(
    ("ops", "why"),
    [
        ("  - {collective: all_gather, chunk: shard(rank), into: whole, backend: copy_engine}\n", "names copy_engine"),
        (
            "  - {collective: all_gather, chunk: shard(rank), into: whole}\n"
            "  - {collective: all_gather, chunk: shard(rank), into: whole, depends: [[rank, 0]]}\n",
            "comes behind another collective",
        ),
    ],
)
def test_collectives_that_are_not_handed_over(generated, ops, why):
    with pytest.raises(UnsupportedError, match=why):
        generated((f"plan: odd\nbefore: shard(rank)\nafter: whole\nops:\n{ops}", "a[M]"))


def faults(path, **options):
    return faults_of(path, seeds=SEEDS, shape={"M": 130, "N": 8, "K": 24}, **options)


def _moves(change):
    def mutate(rank, steps):
        return tuple(
            dataclasses.replace(s, moves=tuple(change(s.moves))) if isinstance(s, st.Kernel) else s for s in steps
        )

    return mutate


def test_an_operation_that_nobody_carries_out(generated):
    path = generated((GATHERS["gather"], "a[M]"))
    assert faults(path, mutate_steps=_moves(lambda moves: moves[1:])) == ["deadlock"] * len(SEEDS)
    assert faults(path, mutate_steps=without(st.Raise)) == ["deadlock"] * len(SEEDS)


def test_an_operation_that_both_carry_out(generated):
    """The second copy lands while tiles read what the first one brought."""

    def twice(rank, steps):
        copied = next(s.op for s in steps if isinstance(s, st.Copy))
        return _moves(lambda moves: (*moves, moving.Move(copied)))(rank, steps)

    assert "race" in faults(generated((GATHERS["gather"], "a[M]")), mutate_steps=twice)


def test_a_copy_that_does_not_await_a_move(generated):
    path = generated((GATHERS["ring"], "a[M]"))
    assert set(faults(path, mutate_steps=without(st.Await))) == {"race"}


def test_a_move_that_does_not_await_a_copy(generated):
    rush = _moves(lambda moves: (dataclasses.replace(move, awaits=()) for move in moves))
    path = generated((GATHERS["ring, others"], "a[M]"))
    assert set(faults(path, mutate_steps=rush)) == {"race"}


ONE_CHANNEL = """
plan: handed_on
world: 3
before: shard(rank)
after: whole
ops:
  - {when: rank == 1, pull: shard(0), from: 0, backend: FIRST}
  - {when: rank == 1, push: shard(0), to: 2, backend: SECOND}
  - {when: rank == 1, push: shard(1), to: 0}
  - {when: rank == 1, push: shard(1), to: 2}
  - {when: rank == 2, push: shard(2), to: 0}
  - {when: rank == 2, push: shard(2), to: 1}
"""


@pytest.mark.parametrize(("first", "second"), [(COPIED, MOVED), (MOVED, COPIED)])
def test_an_order_that_a_plan_gives_by_its_channel_alone(generated, monkeypatch, first, second):
    path = generated((ONE_CHANNEL.replace("FIRST", first).replace("SECOND", second), "a[M]"))
    assert faults(path) == ["ok"] * len(SEEDS)
    monkeypatch.setattr(moving, "behind_another", lambda plan, op_id, moved: None)
    monkeypatch.setattr(producing, "behind_another", lambda plan, op_id, moved: None)
    assert set(faults(path)) == {"race"}


def test_a_lane_held_for_tiles_that_go_into_slots_alone(generated, monkeypatch):
    """What a lane sends must be in the rank's own partial too."""
    whole = instances.pushes

    def pushes(*args):
        made = whole(*args)
        ways = tuple(tuple(way for way in run if way is not None) or (None,) for run in made.ways)
        return dataclasses.replace(made, ways=ways)

    path = generated((RESULTS["reduce"], "c[]"))
    monkeypatch.setattr(instances, "pushes", pushes)
    assert set(faults(path)) <= {"unwritten", "mismatch", "race"}


def test_a_lane_that_nobody_counts_for(generated, monkeypatch):
    whole = instances.pushes

    def pushes(*args):
        made = whole(*args)
        return dataclasses.replace(made, tells=tuple(tuple(t for t in run if t.target) for run in made.tells))

    monkeypatch.setattr(instances, "pushes", pushes)
    assert faults(generated((RESULTS["reduce"], "c[]"))) == ["deadlock"] * len(SEEDS)


def test_counters_of_lanes_and_of_stores_in_one_place(generated, monkeypatch):
    """A tile that counts into a chunk twice is a chunk that is whole too early, or never."""
    whole = instances.pushes

    def pushes(schedule, *rest):
        made, first = whole(schedule, *rest), len(schedule.counters)
        moved = lambda t: dataclasses.replace(t, counter=t.counter - first) if t.target else t  # noqa: E731
        return dataclasses.replace(made, tells=tuple(tuple(map(moved, run)) for run in made.tells))

    monkeypatch.setattr(instances, "pushes", pushes)
    assert "ok" not in faults(generated((RESULTS["reduce"], "c[]")))


def test_hosts_that_wait_for_kernels_are_refused_what_they_cannot_run(generated, monkeypatch):
    path = generated((GATHERS["ring"], "a[M]"))
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(
        UnsupportedError, match="CUDA_LAUNCH_BLOCKING=1 and `matmul`: deadlock among launch steps"
    ) as caught:
        check_module(path, world=3, shape=SHAPE, dtype="fp16", seeds=[0])
    assert "one backend" in caught.value.help
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    independent = generated((GATHERS["gather"], "a[M]"))
    report = check_module(independent, world=3, shape=SHAPE, dtype="fp16", seeds=[0], blocking=True)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("text", "on", "backend", "error", "why"),
    [
        (plans.reduce_scatter(MOVED, COPIED), "c[M]", None, UnsupportedError, "moves what a kernel reads, and `c` is"),
        (plans.gather("serial", COPIED), "a[M]", None, UsageError, "serial carries out whole calls"),
        (plans.gather("copy_engin", COPIED), "a[M]", None, UsageError, "unknown backend 'copy_engin'"),
        (plans.reduce_scatter(STORED, COPIED), "c[M]", MOVED, None, ""),
    ],
)
def test_what_cannot_be_mixed_is_refused(generated, text, on, backend, error, why):
    if error is None:
        generated((text, on), backend=backend)  # nothing is left to the call's backend
        return
    with pytest.raises(error, match=why):
        generated((text, on), backend=backend)


STRIDED = [
    ("all_gather_1d", "b[N]", MOVED, "ol.moving(ol_moves)"),
    ("reduce_scatter_1d", "c[N]", STORED, "ol.pushed("),
    ("all_gather_1d", "a[M]", MOVED, "ol.moving(ol_moves)"),
]


@pytest.mark.parametrize(("plan", "on", "backend", "word"), STRIDED)
def test_small_strided_chunks_by_another_backend(generated, monkeypatch, plan, on, backend, word):
    """Rows of 20 fp16 columns on two ranks: 40 bytes; a shard of rows is one piece."""
    path = generated((plan, on), settings=(("strided", backend),))
    assert word in open(path).read()
    made = []
    whole = st.launch_steps

    def counted(plan, rank, **how):
        steps = whole(plan, rank, **how)
        made.append((sum(isinstance(s, st.Copy) for s in steps), how["moves"] or how["stores"]))
        return steps

    monkeypatch.setattr(instances, "launch_steps", counted)
    for limit, narrow in ((41, on[2:] == "N]"), (40, False)):
        monkeypatch.setenv("OVERLAP_STRIDED_ROW_BYTES", str(limit))
        made.clear()
        report = check_module(path, world=2, shape={"M": 66, "N": 40, "K": 24}, dtype="fp16", seeds=[0], launches=2)
        assert report.ok, str(report)
        assert [bool(copies) for copies, _ in made] == [not narrow] * len(made) and made


def test_a_backend_of_strided_chunks_that_there_is_not(generated):
    with pytest.raises(UsageError, match="unknown backend 'ldst_reservd'"):
        generated(("all_gather_1d", "b[N]"), settings=(("strided", "ldst_reservd"),))
