"""Three template kernels x plans x worlds x shapes x dtypes x gathered tensor, against the original kernel.

CI runs a subset in which every pair of values meets; ``make sweep`` (OVERLAP_SWEEP=1) runs all 1,440.
"""

from __future__ import annotations

import itertools
import os

import pytest

from overlap.annotate.source import SourceUnit
from overlap.pipeline import Request, compile_source
from overlap.sim import check_module

KERNELS = ("persistent_gemm", "grouped_gemm", "gemm_2d")
PLANS = ("all_gather_1d", "all_gather_1d_pull", "all_gather_1d_push", "all_gather_ring")
WORLDS = (1, 2, 3, 4, 5)
ROWS = (256, 1000, 130, 3)
DTYPES = ("fp16", "bf16", "fp32")
ON = ("a[M]", "b[N]")
FACTORS = (KERNELS, PLANS, WORLDS, ROWS, DTYPES, ON)
SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"


def covering(rows: list[tuple]) -> list[tuple]:
    """A small part of the rows in which every two values that meet in any row meet; always the same one."""
    pairs = {row: set(itertools.combinations(enumerate(row), 2)) for row in rows}
    left = set().union(*pairs.values())
    chosen = []
    while left:
        # The first of those that cover most.
        best = max(rows, key=lambda row: len(pairs[row] & left))
        chosen.append(best)
        left -= pairs[best]
    return chosen


def pairwise(factors: tuple[tuple, ...]) -> list[tuple]:
    """A small list of combinations in which every two values of different factors meet; always the same one."""
    return covering(list(itertools.product(*factors)))


def thinned(cases: list[tuple]) -> list:
    """The cases, all but every third marked for one Triton: each says again, in other sizes, what the third one does."""
    return [pytest.param(*c, marks=[pytest.mark.one_triton] if i % 3 else []) for i, c in enumerate(cases)]


CASES = list(itertools.product(*FACTORS)) if SWEEP else pairwise(FACTORS)


def test_every_pair_of_values_meets():
    seen = {(i, r[i], j, r[j]) for r in CASES for i, j in itertools.combinations(range(len(r)), 2)}
    wanted = {
        (i, x, j, y) for (i, xs), (j, ys) in itertools.combinations(enumerate(FACTORS), 2) for x in xs for y in ys
    }
    assert wanted <= seen


@pytest.fixture(scope="module")
def generated(tmp_path_factory, repo):
    """Compiles a template kernel once a plan and tensor."""
    folder = tmp_path_factory.mktemp("generated")

    def make(kernel: str, plan: str, on: str) -> str:
        path = folder / f"{kernel}__{plan}__{on[0]}.py"
        if not path.exists():
            unit = SourceUnit.from_file(repo / "templates" / "kernels" / f"{kernel}.py")
            path.write_text(compile_source(Request(unit, plan=plan, on=on, output=str(path))).module.text)
        return str(path)

    return make


@pytest.mark.parametrize("kernel,plan,world,rows,dtype,on", thinned(CASES))
def test_agrees_with_the_original(generated, kernel, plan, world, rows, dtype, on):
    report = check_module(
        generated(kernel, plan, on),
        world=world,
        shape={"M": rows, "N": 72, "K": 48},
        dtype=dtype,
        seeds=[0],
    )
    assert report.ok, str(report)
