"""`overlap trace` on GPUs: what a recorded call says of itself holds together."""

from __future__ import annotations

import pytest

from overlap.annotate.source import SourceUnit
from overlap.api.trace_module import trace_module
from overlap.ops.trace import trace_operator
from overlap.pipeline import Request, compile_source
from tests.support.trace_format import check_format
from tests.support.traces import check_chunks, check_tiles

from .conftest import WORLD

pytestmark = pytest.mark.ranks(2)
MARKS = 20e-6
"""Seconds that events of streams may be off the timer."""

CASES = {
    "gather": (
        "ag_gemm",
        {"M": 1024 * WORLD + 40, "N": 512 * WORLD, "K": 1024},
        {"backend": "copy_engine", "split": 2},
    ),
    "gather, moved by programs": (
        "ag_gemm",
        {"M": 512 * WORLD, "N": 256 * WORLD, "K": 512},
        {"backend": "ldst_reserved"},
    ),
    "gather, moved between tiles": (
        "ag_gemm",
        {"M": 512 * WORLD, "N": 256 * WORLD, "K": 512},
        {"backend": "ldst_inline"},
    ),
    "gather along K": ("ag_gemm_k", {"M": 512, "N": 256 * WORLD, "K": 512 * WORLD}, {"backend": "copy_engine"}),
    "scatter": ("gemm_rs", {"M": 1024 * WORLD, "N": 1024, "K": 512 * WORLD}, {"backend": "copy_engine"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_call_holds_together(group, name):
    op, sizes, options = CASES[name]
    found = trace_operator(op, sizes, group=group, warm=2, **options)
    check_tiles(found)
    check_chunks(found, MARKS)
    assert 0 < found.step <= 2e-6 and found.exactly < 50e-6
    check_format(found.trace())


@pytest.mark.parametrize("kernel", ["grouped_gemm", "persistent_gemm"])
def test_a_recorded_module_holds_together(group, repo, tmp_path, kernel):
    unit = SourceUnit.from_file(str(repo / f"templates/kernels/{kernel}.py"))
    path = tmp_path / f"{kernel}.py"
    path.write_text(compile_source(Request(unit, "all_gather_1d", "a[M]", settings={"trace": "1"})).module.text)
    sizes = {"M": 512 * WORLD + 40, "N": 512, "K": 256}
    found = trace_module(
        str(path), sizes, dtype="fp16", tile=lambda schedules, machine: 1e-5, title=kernel, group=group
    )
    check_tiles(found)
    check_chunks(found, MARKS)
    check_format(found.trace())
