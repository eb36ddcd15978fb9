"""Three template kernels x what happens to their tensors x worlds x shapes x dtypes, against the original kernel.

CI runs a subset in which every pair of values meets, with one seed; ``make sweep`` (OVERLAP_SWEEP=1) runs that subset
with 20 seeds and the whole matrix with one seed, another one for each case.
"""

from __future__ import annotations

import itertools
import os

import pytest
from test_proof_matrix import pairwise, thinned

from overlap.annotate.source import SourceUnit
from overlap.pipeline import Request, compile_source
from overlap.schedule import steps as st
from overlap.sim import check_module

KERNELS = ("persistent_gemm", "grouped_gemm", "gemm_2d")
WAYS = (
    ("reduce_scatter_1d", "c[M]"),
    ("reduce_scatter_1d", "c[N]"),
    ("all_reduce_one_shot", "c[]"),
    ("all_reduce_two_shot", "c[]"),
    ("all_to_all_1d", "c[M:N]"),
    ("all_to_all_1d", "a[K:M]"),
    ("all_gather_1d", "a[K]"),
    (("all_gather_1d", "reduce_scatter_1d"), ("a[M]", "c[M]")),
    (("all_to_all_1d", "all_to_all_1d"), ("a[K:M]", "c[M:N]")),
)
WORLDS = (1, 2, 3, 4, 5)
ROWS = (256, 1000, 130, 3)
DTYPES = ("fp16", "bf16", "fp32")
FACTORS = (KERNELS, WAYS, WORLDS, ROWS, DTYPES)
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
PAIRS = pairwise(FACTORS)
REST = [case for case in itertools.product(*FACTORS) if case not in PAIRS] if SWEEP else []
CASES = [(*case, range(20) if SWEEP else (seed,)) for seed, case in enumerate(PAIRS)]
CASES += [(*case, (seed,)) for seed, case in enumerate(REST)]


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    """Compiles a template kernel once a way of communicating."""
    folder = tmp_path_factory.mktemp("generated")

    def make(kernel: str, plan, on) -> str:
        path = folder / f"{kernel}__{WAYS.index((plan, on))}.py"
        if not path.exists():
            unit = SourceUnit.from_file(repo / "templates" / "kernels" / f"{kernel}.py")
            path.write_text(compile_source(Request(unit, plan=plan, on=on, output=str(path))).module.text)
        return str(path)

    return make


def test_every_pair_of_values_meets():
    seen = {(i, r[i], j, r[j]) for r in PAIRS for i, j in itertools.combinations(range(len(r)), 2)}
    factors = enumerate(FACTORS)
    assert {(i, x, j, y) for (i, xs), (j, ys) in itertools.combinations(factors, 2) for x in xs for y in ys} <= seen


@pytest.mark.parametrize("kernel,way,world,rows,dtype,seeds", thinned(CASES))
def test_agrees_with_the_original(generated, kernel, way, world, rows, dtype, seeds):
    report = check_module(
        generated(kernel, *way),
        world=world,
        shape={"M": rows, "N": 72, "K": 48},
        dtype=dtype,
        seeds=list(seeds),
        launches=2,
    )
    assert report.ok, str(report)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way[1]))
@pytest.mark.parametrize("kernel", ["persistent_gemm"])
def test_a_host_that_waits_for_every_kernel_gets_on(generated, kernel, way):
    report = check_module(
        generated(kernel, *way),
        world=3,
        shape={"M": 130, "N": 72, "K": 48},
        seeds=[0, 1],
        launches=2,
        blocking=True,
    )
    assert report.ok, str(report)


def test_a_host_that_waits_and_feeds_its_kernel_afterwards_is_stuck(generated):
    """Copies enqueued behind the kernel that waits for them."""

    def late(rank, steps):
        kernel = next(s for s in steps if isinstance(s, st.Kernel))
        rest = [s for s in steps if s is not kernel]
        first = next(i for i, s in enumerate(rest) if isinstance(s, st.Copy))
        return (*rest[:first], kernel, *rest[first:])

    options = {"world": 3, "shape": {"M": 130, "N": 72, "K": 48}, "mutate_steps": late, "launches": 1}
    path = generated("persistent_gemm", "all_gather_1d", "a[K]")
    assert check_module(path, **options).ok
    assert check_module(path, blocking=True, **options).faults[0].kind == "deadlock"
