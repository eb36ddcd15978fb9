"""Inputs moved by the programs that compute, between their tiles: against the original kernel, and with one thing taken away.

CI runs a subset of a smaller matrix in which every pair of values meets, each with one seed, and plans that
test_realizations.py has are not in it; ``make sweep`` runs one of all values with 20 seeds, and all of it.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from test_mutations import faults as faults_of
from test_proof_matrix import pairwise
from test_reserved import replaced

import overlap.language.interleave as words_between
import overlap.language.moves as words_that_move
from overlap.annotate.source import SourceUnit
from overlap.chunkplan.mesh import parse_mesh
from overlap.pipeline import Request, compile_source
from overlap.runtime.instance import Instance
from overlap.sim import check_module
from overlap.sim.runtime import SimRuntime

pytestmark = pytest.mark.one_triton

KERNELS = ("persistent_gemm", "grouped_gemm", "gemm_2d")
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
WAYS = (("all_gather_1d_pull", "b[N]"), ("all_gather_ring", "a[M]"), *((("all_gather_1d", "a[M]"),) if SWEEP else ()))
FURTHER = (("all_gather_ring_both_ways", "a[M]"),)
FURTHER += (("all_gather_1d", "a[K]"), ("all_to_all_1d", "a[K:M]")) if SWEEP else ()
WORLDS, ROWS, DTYPES = (1, 2, 3, 4, 5) if SWEEP else (1, 3), (130, 3), ("bf16", "fp32")
FACTORS = (KERNELS, WAYS, WORLDS, ROWS, DTYPES)
PAIRS = [*pairwise(FACTORS), *((*case, 3, 130, "fp16") for case in zip(KERNELS, FURTHER, strict=SWEEP))]
EVERY = itertools.product(KERNELS, WAYS + FURTHER, WORLDS, ROWS, DTYPES)
REST = [case for case in EVERY if case not in PAIRS] if SWEEP else []
CASES = [(*case, range(20) if SWEEP else (seed,)) for seed, case in enumerate(PAIRS)]
CASES += [(*case, (seed,)) for seed, case in enumerate(REST)]
SEEDS = range(10) if SWEEP else range(1)
SHAPE = {"M": 130, "N": 16, "K": 24}


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    """``generated(kernel, plan, on, words)``: a kernel compiled for this backend; ``words`` edits the text of the words that
    move, which then stand beside the module."""
    folder = tmp_path_factory.mktemp("generated")
    made: dict = {}

    def make(kernel="grouped_gemm", plan="all_gather_1d", on="a[M]", words=(), mesh=None, backend="ldst_inline") -> str:
        key = (kernel, plan, on, tuple(words), mesh, backend)
        if key not in made:
            path = folder / f"module_{len(made)}.py"
            unit = SourceUnit.from_file(kernel if "/" in kernel else repo / "templates" / "kernels" / f"{kernel}.py")
            request = Request(unit, plan=plan, on=on, backend=backend, output=str(path), mesh=mesh)
            text = compile_source(request).module.text
            if words:
                name = f"words_between_{len(made)}"
                parts = [
                    Path(module.__file__).read_text(encoding="utf-8") for module in (words_that_move, words_between)
                ]
                moves, between = (part.replace("from .", "from overlap.language.") for part in parts)
                between = between.replace("from overlap.language.moves", f"from moves_{name}")
                for old, new in words:
                    assert (moves + between).count(old) == 1, old
                    moves, between = moves.replace(old, new), between.replace(old, new)
                (folder / f"moves_{name}.py").write_text(moves)
                (folder / f"{name}.py").write_text(between)
                text = text.replace("ol.move_", f"{name}.move_")
                text = replaced(
                    text, [("import overlap.language as ol\n", f"import overlap.language as ol\nimport {name}\n")]
                )
            path.write_text(text)
            made[key] = str(path)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield make


def faults(path, **options):
    return faults_of(path, seeds=SEEDS, launches=1, **options)


@pytest.mark.parametrize("kernel,way,world,rows,dtype,seeds", CASES)
def test_agrees_with_the_original(generated, kernel, way, world, rows, dtype, seeds):
    options = {"dtype": dtype, "seeds": list(seeds), "launches": 2 if SWEEP else 1}
    report = check_module(generated(kernel, *way), world=world, shape={"M": rows, "N": 16, "K": 24}, **options)
    assert report.ok, str(report)


@pytest.mark.parametrize("flattened", [True, False])
def test_programs_with_many_tiles_that_wait_for_each_host(generated, flattened):
    """Parts a few tiles apart; in flattened order the parts of the next tile come before this one's stores."""
    options = {"sms": 2, "blocking": True, "flattened": flattened, "launches": 2}
    path = generated("persistent_gemm")
    report = check_module(
        path, world=3, shape={"M": 264, "N": 136, "K": 16}, dtype="fp16", seeds=[int(flattened)], **options
    )
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("kernel", "way"), [("persistent_gemm", ("all_gather_1d", "a[M]")), ("grouped_gemm", ("all_gather_1d", "a[K]"))]
)
def test_by_tma(generated, kernel, way):
    """Rows that boxes take, of chunks of several boxes, and what is left of them."""
    path = generated(kernel, *way, backend="tma_inline")
    report = check_module(path, world=3, shape={"M": 130, "N": 40, "K": 200}, dtype="bf16", seeds=SEEDS, launches=1)
    assert report.ok, str(report)


@pytest.mark.parametrize("flattened", [True, False])
def test_by_tma_with_many_tiles_a_program(generated, flattened):
    """The head of a flattened loop, run ahead of its iteration, makes its moves once and not again in the iteration."""
    path = generated("persistent_gemm", backend="tma_inline")
    shape = {"M": 264, "N": 40, "K": 64}
    report = check_module(path, world=3, shape=shape, dtype="fp16", seeds=[0], launches=1, flattened=flattened)
    assert report.ok, str(report)


def test_two_levels(generated):
    path = generated(plan="all_gather_2d", mesh=parse_mesh("2x2"))
    report = check_module(path, world=4, shape=SHAPE, dtype="bf16", seeds=SEEDS, launches=2)
    assert report.ok, str(report)


RETURNS = """\
    # @overlap.tile_id
    pid = tl.program_id(axis=0)
    if pid >= tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N): return
"""


def test_programs_that_return_early_make_their_parts_first(generated, repo, tmp_path):
    text = (repo / "templates" / "kernels" / "grouped_gemm.py").read_text()
    edits = [("    # @overlap.tile_id\n    pid = tl.program_id(axis=0)\n", RETURNS)]
    edits += [('triton.cdiv(N, meta["BLOCK_N"]),)', 'triton.cdiv(N, meta["BLOCK_N"]) + 2,)')]
    kernel = tmp_path / "returns.py"
    kernel.write_text(replaced(text, edits))
    path = generated(str(kernel))
    made = Path(path).read_text()
    assert made.count("ol.move_rest(") == 2
    report = check_module(
        path, world=3, shape={"M": 130, "N": 8, "K": 40}, dtype="fp16", seeds=SEEDS, sms=6, launches=2
    )
    assert report.ok, str(report)
    left_out = "        # What is left of them.\n        ol.move_rest(ol_moves, ol_state, ol_epoch, ol_step)\n"
    Path(path).write_text(replaced(made, [(left_out, "")]))
    assert faults(path, shape={"M": 130, "N": 8, "K": 40}, sms=6) == ["deadlock"] * len(SEEDS)


def test_what_a_kernel_reads_and_what_it_makes(generated):
    """The same programs move parts of the input and store tiles of the result where they go."""
    path = generated(plan=("all_gather_1d", "reduce_scatter_1d"), on=("a[M]", "c[M]"))
    report = check_module(path, world=3, shape=SHAPE, dtype="fp16", seeds=SEEDS, launches=2)
    assert report.ok, str(report)


FLAT = {"kernel": "persistent_gemm"}
WORDS = {
    "a part skipped": (
        ("    i = _due(moves, number, step)\n", "    i = _due(moves, number, step) + 1\n"),
        {},
        {"deadlock"},
    ),
    "the flag raised before all parts": (("mask=counted == programs - 1", "mask=counted == 0"), {}, {"race"}),
    "nothing left behind the last tile": (("_total(moves, number), TRANSPORT", "0, TRANSPORT"), {}, {"deadlock"}),
    "no barrier in a flattened loop": (("        at = landed(at)\n", "        at = at\n"), FLAT, {"race"}),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_changed(generated, name):
    edit, how, wanted = WORDS[name]
    assert set(faults(generated(words=(edit,), **how))) == wanted


BOXES = {"M": 130, "N": 16, "K": 200}
"""Rows that boxes take."""
UNLANDED = ("        at = landed(at)\n", "        tl.debug_barrier()\n")


def test_boxes_that_nobody_waits_for(generated):
    """Assembly waits until their source is read, on every Triton; they land when the part is counted."""
    way = {"kernel": "persistent_gemm", "plan": "all_gather_ring", "backend": "tma_inline"}
    assert faults(generated(**way), shape=BOXES) == ["ok"] * len(SEEDS)
    assert set(faults(generated(words=(UNLANDED,), **way), shape=BOXES)) == {"race"}


def test_boxes_of_what_no_fence_stands_behind(generated):
    """A ring passes on what has come, which the async proxy does not see behind an acquire alone."""
    way = {"kernel": "persistent_gemm", "plan": "all_gather_ring", "backend": "tma_inline"}
    unfenced = ("turn = after_async(number, seen)", "turn = after(number, seen)")
    assert set(faults(generated(words=(unfenced,), **way), shape=BOXES)) == {"race"}


SMALL = {"M": 3, "N": 16, "K": 24}


def test_a_wait_ahead_of_the_moves_that_it_needs(generated, monkeypatch):
    """One tile, which needs all that the others push, and a part a tile: each rank waits for what the others push behind it."""
    path = generated()
    assert faults(path, shape=SMALL) == ["ok"] * len(SEEDS)
    monkeypatch.setattr(Instance, "moves_ahead", lambda self, schedule: ())
    assert faults(path, shape=SMALL) == ["deadlock"] * len(SEEDS)


def test_parts_of_programs_that_are_not_there_from_the_start(generated, monkeypatch):
    path = generated()
    assert faults(path, sms=1) == ["ok"] * len(SEEDS)
    monkeypatch.setattr(SimRuntime, "resident", lambda self, kernel, grid, arguments: 100)
    assert faults(path, sms=1) == ["deadlock"] * len(SEEDS)
