"""Tiles stored into other ranks' slots by the programs that make them, by pointers and by TMA: against the original kernel.

CI runs a subset of a smaller matrix in which every pair of values meets, most plans and ranks left to test_realizations.py;
``make sweep`` runs one of all values with 20 seeds, and all of it.
"""

from __future__ import annotations

import itertools
import os

import pytest
from test_proof_matrix import pairwise, thinned

from overlap.annotate.source import SourceUnit
from overlap.errors import AlignmentError
from overlap.pipeline import Request, compile_source
from overlap.runtime.memory import layout
from overlap.sim import check_module

BACKENDS = {
    "grouped_gemm": "ldst_inline",
    "gemm_2d": "ldst_inline",
    "persistent_gemm": "tma_inline",
    "host_descriptors": "tma_inline",
}
"""By kernel: those that store to pointers, and those that store through descriptors of the kernel and of the host."""
KERNELS = tuple(BACKENDS)
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
WAYS = (("reduce_scatter_1d", "c[N]"), ("all_reduce_two_shot", "c[]"))
WAYS += (("reduce_scatter_1d", "c[M]"), ("all_reduce_one_shot", "c[]"), ("all_to_all_1d", "c[M:N]")) if SWEEP else ()
WORLDS, ROWS = ((1, 2, 3, 4, 5), (256, 1000, 130, 3)) if SWEEP else ((1, 5), (256, 130))
FACTORS = (KERNELS, WAYS, WORLDS, ROWS, ("fp16", "bf16", "fp32"))
PAIRS = pairwise(FACTORS)
REST = [case for case in itertools.product(*FACTORS) if case not in PAIRS] if SWEEP else []
CASES = [(*case, range(20) if SWEEP else (seed,)) for seed, case in enumerate(PAIRS)]
CASES += [(*case, (seed,)) for seed, case in enumerate(REST)]
# Ranks hold rows there, some of them none, of which Triton makes no descriptor.
NO_ROWS = [c for c in CASES if c[0] == "host_descriptors" and c[1][1] == "c[M:N]" and c[2] > c[3]]
CASES = [case for case in CASES if case not in NO_ROWS]


def compiler(tmp_path_factory, repo):
    """``make(kernel, plan, on, edits, backend)``: the path of a kernel compiled for its backend, with its text edited."""
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


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    return compiler(tmp_path_factory, repo)


def test_every_pair_of_values_meets():
    seen = {(i, r[i], j, r[j]) for r in PAIRS for i, j in itertools.combinations(range(len(r)), 2)}
    factors = enumerate(FACTORS)
    assert {(i, x, j, y) for (i, xs), (j, ys) in itertools.combinations(factors, 2) for x in xs for y in ys} <= seen


def test_a_descriptor_of_no_rows_is_refused_by_name(generated):
    path = generated("host_descriptors", "all_to_all_1d", "c[M:N]")
    with pytest.raises(
        AlignmentError, match="a TMA descriptor cannot take this tensor: shape must be positive"
    ) as refused:
        check_module(path, world=4, shape={"M": 3, "N": 72, "K": 48}, seeds=[0])
    assert refused.value.where is not None and "host_descriptors" in refused.value.where.path


@pytest.mark.parametrize("kernel,way,world,rows,dtype,seeds", thinned(CASES))
def test_agrees_with_the_original(generated, kernel, way, world, rows, dtype, seeds):
    shape = {"M": rows, "N": 72, "K": 48}
    report = check_module(generated(kernel, *way), world=world, shape=shape, dtype=dtype, seeds=list(seeds), launches=2)
    assert report.ok, str(report)


def test_a_tile_with_fewer_places_than_others_is_stored_in_no_other(generated, monkeypatch):
    """Into rows beside a slot it could be: so slots have few of them, and chunks are long."""
    monkeypatch.setattr(layout, "MARGIN", 128)
    report = check_module(generated("persistent_gemm"), world=3, shape={"M": 900, "N": 72, "K": 16}, seeds=[0])
    assert report.ok, str(report)
