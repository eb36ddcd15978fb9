"""Programs of the kernel's own launch that move chunks, against the original kernel, and with one thing taken away.

CI runs a subset of a smaller matrix in which every pair of values meets, and plans that test_realizations.py has are not in it;
``make sweep`` runs one of all values with 20 seeds, and all of it.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import textwrap
from pathlib import Path

import pytest
from test_mutations import SHAPE, changed, without
from test_mutations import faults as faults_of
from test_proof_matrix import pairwise

import overlap.language.moves as words_that_move
from overlap.annotate.source import SourceUnit
from overlap.chunkplan.mesh import parse_mesh
from overlap.errors import UnsupportedError, UsageError
from overlap.pipeline import Request, compile_source
from overlap.runtime.tables import moves as tables
from overlap.schedule import moves as schedule
from overlap.schedule import steps as st
from overlap.sim import check_module

BACKENDS = ("ldst_reserved", "tma_reserved")
KERNELS = ("persistent_gemm", "grouped_gemm", "gemm_2d")
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
WAYS = (("all_gather_1d_pull", "b[N]"), ("all_gather_ring", "a[M]"), *((("all_gather_1d", "a[M]"),) if SWEEP else ()))
FURTHER = (("all_gather_ring_both_ways", "a[M]"),)
FURTHER += (("all_gather_1d", "a[K]"), ("all_to_all_1d", "a[K:M]")) if SWEEP else ()
WORLDS, ROWS, DTYPES, PROGRAMS = (1, 2, 3, 4) if SWEEP else (1, 3), (200, 3), ("bf16", "fp32"), (0, 3)
FACTORS = (KERNELS, WAYS, WORLDS, ROWS, DTYPES, PROGRAMS, BACKENDS)
PAIRS = pairwise(FACTORS)
PAIRS += [
    (kernel, way, 3, 200, "fp16", 2, backend)
    for kernel, way, backend in zip(KERNELS, FURTHER, itertools.cycle(BACKENDS), strict=False)
]
EVERY = itertools.product(KERNELS, WAYS + FURTHER, WORLDS, ROWS, DTYPES, PROGRAMS, BACKENDS)
REST = [case for case in EVERY if case not in PAIRS] if SWEEP else []
CASES = [(*case, range(20) if SWEEP else (seed,)) for seed, case in enumerate(PAIRS)]
CASES += [(*case, (seed,)) for seed, case in enumerate(REST)]
SEEDS = range(10) if SWEEP else range(1)


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    """``generated(kernel, plan, on, programs, edits, words, mesh, backend)``: a template kernel, compiled.

    ``programs``: of each rank that move, 0 for the backend's choice; ``edits`` of the module's text, ``words`` of the text of
    the words that move, which then stand in the module itself.
    """
    folder = tmp_path_factory.mktemp("generated")
    made: dict = {}

    def make(
        kernel="grouped_gemm",
        plan="all_gather_1d",
        on="a[M]",
        programs=2,
        edits=(),
        words=(),
        mesh=None,
        backend=BACKENDS[0],
    ) -> str:
        key = (kernel, plan, on, programs, tuple(edits), tuple(words), mesh, backend)
        if key not in made:
            path = folder / f"module_{len(made)}.py"
            unit = SourceUnit.from_file(repo / "templates" / "kernels" / f"{kernel}.py")
            settings = {"comm_sms": str(programs)} if programs else {}
            request = Request(unit, plan=plan, on=on, backend=backend, output=str(path), settings=settings, mesh=mesh)
            text = replaced(compile_source(request).module.text, edits)
            if words:
                source = Path(words_that_move.__file__).read_text(encoding="utf-8")
                # A module of overlap.language by name: only words of ours may read program ids as they are.
                named = 'import annotations\n\n__name__ = "overlap.language.changed"\n'
                source = source.replace("import annotations\n", named).replace("from .", "from overlap.language.")
                changed_words = folder / f"words_reserved_{len(made)}.py"
                changed_words.write_text(replaced(source, words))
                text = text.replace("ol.move_chunks", f"{changed_words.stem}.move_chunks")
                text = text.replace(
                    "import overlap.language as ol\n", f"import overlap.language as ol\nimport {changed_words.stem}\n"
                )
            path.write_text(text)
            made[key] = str(path)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield make


def replaced(text, edits):
    for old, new in edits:
        assert text.count(old) == 1, (text.count(old), old)
        text = text.replace(old, new)
    return text


def test_every_pair_of_values_meets():
    seen = {(i, r[i], j, r[j]) for r in PAIRS for i, j in itertools.combinations(range(len(r)), 2)}
    factors = enumerate(FACTORS)
    assert {(i, x, j, y) for (i, xs), (j, ys) in itertools.combinations(factors, 2) for x in xs for y in ys} <= seen


@pytest.mark.parametrize("kernel,way,world,rows,dtype,programs,backend,seeds", CASES)
def test_agrees_with_the_original(generated, kernel, way, world, rows, dtype, programs, backend, seeds):
    shape = {"M": rows, "N": 40, "K": 48}
    path = generated(kernel, *way, programs, backend=backend)
    report = check_module(path, world=world, shape=shape, dtype=dtype, seeds=list(seeds), launches=2)
    assert report.ok, str(report)


def test_two_levels(generated):
    path = generated(plan="all_gather_2d", programs=3, mesh=parse_mesh("2x2"))
    report = check_module(path, world=4, shape=SHAPE, dtype="bf16", seeds=SEEDS)
    assert report.ok, str(report)


def test_hosts_that_wait_for_each_kernel_and_few_multiprocessors(generated):
    path = generated("persistent_gemm", plan="all_gather_ring")
    report = check_module(path, world=3, shape={**SHAPE, "K": 48}, dtype="fp16", seeds=[0], sms=3, blocking=True)
    assert report.ok, str(report)


def faults(path, **options):
    return faults_of(path, seeds=SEEDS, **options)


WORDS = {
    "the flag raised by the first program done": (("mask=counted == programs - 1", "mask=counted == 0"), {"race"}),
    "the flag never raised": (("mask=counted == programs - 1", "mask=counted < 0"), {"deadlock"}),
    "no barrier ahead of the count": (("        tl.debug_barrier()\n", "        pass\n"), {"race"}),
    "a count that acquires nothing": (('sem="acq_rel", scope="sys"', 'sem="release", scope="sys"'), {"race"}),
    "a count that releases nothing": (('sem="acq_rel", scope="sys"', 'sem="acquire", scope="sys"'), {"race"}),
    "a flag for this device alone": (('sem="release", scope="sys"', 'sem="release", scope="gpu"'), {"race"}),
    "a flag that releases nothing": (('sem="release", scope="sys"', 'sem="relaxed", scope="sys"'), {"race"}),
    "no await": (("    while i < end:", "    while i < i:"), {"race"}),
    "the last piece left out": (("last_piece = tl.load(move + _PIECE_END)", "last_piece = piece"), {"unwritten"}),
    "one program's part left out": (("turn = after(number, seen)", "turn = after(number + 1, seen)"), {"unwritten"}),
}


BOXES = {
    "no wait for stores that land": (("at = landed(at)", "tl.debug_barrier()"), {"race"}),
    "no barrier behind that wait": (("at = landed(at)", "pass"), {"race"}),
    "no proxy fence ahead of the boxes": (("turn = after_async(number, seen)", "turn = after(number, seen)"), {"race"}),
    "a flag ahead of the count": (("mask=counted == programs - 1", "mask=counted == 0"), {"race"}),
}
BOXED = {"M": 130, "N": 40, "K": 64}
"""Of which two programs have boxes to move."""


@pytest.mark.one_triton
@pytest.mark.parametrize("name", BOXES)
def test_words_that_move_by_tma_changed(generated, name, monkeypatch):
    """Where Triton does not wait until what TMA stores has landed (before 3.8)."""
    monkeypatch.setattr("overlap.sim.world._stores_land_late", lambda: True)
    edit, wanted = BOXES[name]
    path = generated(plan="all_gather_ring", words=(edit,), backend="tma_reserved")
    assert set(faults(path, shape=BOXED)) == wanted


KINDS = {
    ("all_gather_1d", "a[K]", "K", 200): {schedule.BOXES, 4},
    ("all_gather_1d_pull", "b[N]", "N", 102): {4},
    ("all_gather_1d_pull", "b[N]", "N", 192): {schedule.BOXES},
    ("all_gather_1d_pull", "b[N]", "N", 120): {16},
    ("all_gather_1d", "a[M]", "K", 101): {schedule.BOXES, 4, 16},
}


@pytest.mark.one_triton
@pytest.mark.parametrize(("plan", "on", "axis", "extent"), KINDS)
def test_what_tma_takes_goes_in_boxes(generated, monkeypatch, plan, on, axis, extent):
    """Parts of rows too, and what it does not take beside them."""
    found, whole = set(), tables.piece_words

    def watched(piece, *, boxes):
        for words in whole(piece, boxes=boxes):
            found.add(words[0])
            yield words

    monkeypatch.setattr(tables, "piece_words", watched)
    path = generated(plan=plan, on=on, backend="tma_reserved")
    report = check_module(path, world=3, shape={"M": 70, "N": 40, "K": 50, axis: extent}, dtype="fp32", seeds=[0])
    assert report.ok, str(report)
    assert found == KINDS[plan, on, axis, extent]


@pytest.mark.parametrize("name", WORDS)
def test_words_changed(generated, name):
    edit, wanted = WORDS[name]
    found = set(faults(generated(plan="all_gather_ring", words=(edit,))))
    assert found and found <= wanted | {"race"}, found


@pytest.mark.parametrize(
    ("plan", "change", "wanted"),
    [
        ("all_gather_1d", changed(st.Entry, counters=False), {"deadlock", "race"}),
        ("all_gather_1d", changed(st.Entry, wait_done=False), {"race", "ok"}),
        ("all_gather_1d_pull", changed(st.Entry, ready=False), {"race"}),
        ("all_gather_1d", without(st.Credit), {"deadlock"}),
        ("all_gather_1d_pull", without(st.Credit), {"deadlock"}),
    ],
)
def test_steps_changed(generated, plan, change, wanted):
    found = set(faults(generated(plan=plan), mutate_steps=change))
    assert found <= wanted and found != {"ok"}, found


def _moves(change):
    """A step filter that changes the kernel's moves."""

    def mutate(rank, steps):
        return tuple(
            dataclasses.replace(s, moves=tuple(change(s.moves))) if isinstance(s, st.Kernel) else s for s in steps
        )

    return mutate


def test_an_operation_that_nobody_carries_out(generated):
    assert faults(generated(), mutate_steps=_moves(lambda moves: moves[1:])) == ["deadlock"] * len(SEEDS)


def test_a_chunk_handed_on_before_it_has_come(generated):
    rush = _moves(lambda moves: (dataclasses.replace(move, awaits=()) for move in moves))
    assert faults(generated(plan="all_gather_ring"), mutate_steps=rush) == ["race"] * len(SEEDS)


def test_a_flag_raised_at_another_rank(generated, monkeypatch):
    whole = tables.flag_word
    monkeypatch.setattr(tables, "flag_word", lambda instance, op_id, rank: whole(instance, op_id, (rank + 1) % 3))
    monkeypatch.setattr(
        tables, "_landing", lambda instance, op_id: tables.flag_word(instance, (op_id[0], 0), 0).data_ptr()
    )
    assert set(faults(generated())) <= {"race", "deadlock", "crash"}


HANDED_ON = textwrap.dedent(
    """
    plan: handed_on
    world: 3
    before: shard(rank)
    after: whole
    ops:
      - {when: rank == 1, pull: shard(0), from: 0}
      - {when: rank == 1, push: "slice(1, 5)", to: 2}
      - {when: rank == 1, push: shard(0), to: 2}
      - {when: rank == 1, push: shard(1), to: 0}
      - {when: rank == 1, push: shard(1), to: 2}
      - {when: rank == 2, push: shard(2), to: 0}
      - {when: rank == 2, push: shard(2), to: 1}
    """
)


def test_an_order_that_a_plan_gives_by_its_channel_alone(generated, tmp_path, monkeypatch):
    """Nothing keeps programs that move in step: what a channel orders and memory joins is awaited."""
    plan = tmp_path / "handed_on.yaml"
    plan.write_text(HANDED_ON)
    path = generated(plan=str(plan))
    blocks = {"M": 130, "N": 8, "K": 300}  # several to a chunk, and other ones in the chunk that is handed on
    assert faults(path, shape=blocks) == ["ok"] * len(SEEDS)
    monkeypatch.setattr(schedule, "_conflict", lambda plan, one, other: False)
    assert faults(path, shape=blocks) == ["race"] * len(SEEDS)


@pytest.mark.parametrize(
    ("kernel", "plan", "on", "error", "why"),
    [
        (
            "grouped_gemm",
            "reduce_scatter_1d",
            "c[M]",
            UnsupportedError,
            "moves what a kernel reads, and `c` is a result",
        ),
        ("grouped_gemm", "all_gather_1d", "a[M]", UsageError, "comm_sms must be an integer of at least 0"),
    ],
)
def test_what_it_cannot_do_is_refused(generated, kernel, plan, on, error, why):
    with pytest.raises(error, match=why) as caught:
        generated(kernel, plan, on, -1 if error is UsageError else 2)
    assert error is UsageError or "copy_engine" in caught.value.help


HELPER = "@triton.jit\ndef number():\n    return tl.program_id(0)\n\n\n@triton.jit\ndef matmul_kernel("


@pytest.mark.parametrize("call", ["number()", "ol.computing_id(ol_moves, 0) + 0 * number()"])
def test_helpers_that_read_program_ids_are_refused(generated, call):
    path = generated(edits=(("@triton.jit\ndef matmul_kernel(", HELPER), ("ol.computing_id(ol_moves, 0)", call)))
    with pytest.raises(UnsupportedError, match="calls `number`, which reads program ids") as caught:
        check_module(path, world=2, shape=SHAPE, dtype="fp16", seeds=[0])
    assert caught.value.where is not None and "pass it to `number`" in caught.value.help


def test_more_programs_than_can_be_resident_are_refused(generated):
    with pytest.raises(UnsupportedError, match="comm_sms=4: 4 programs .* resident at a time") as caught:
        check_module(generated(programs=4), world=2, shape=SHAPE, dtype="fp16", seeds=[0], sms=4)
    assert caught.value.help.startswith("comm_sms=3 at most")
