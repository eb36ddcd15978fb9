"""Kernels as other people write them (tests/kernels/wild), compiled for sm_90: waits in front of every load, stages kept."""

from __future__ import annotations

import pytest

from overlap.annotate.source import SourceUnit
from overlap.build import build_module
from overlap.pipeline import Request, compile_source

GATHER = "all_gather_1d"
CASES = {
    # kernel: plan, communicated tensor, dtypes of single tensors
    "moe": (GATHER, "a[T]", {"sorted_ids": "int8", "experts": "int8"}),
    "helpers_load": (GATHER, "a[K]", {}),
    "out_arg": ("reduce_scatter_1d", "out[M]", {}),
    "global_const": (GATHER, "a[M]", {}),
    "epilogue": (GATHER, "a[M]", {}),
    "inline_asm": (GATHER, "a[M]", {}),
}


@pytest.mark.parametrize("kernel", CASES)
def test_builds_without_losing_anything(repo, tmp_path, kernel):
    plan, on, dtypes = CASES[kernel]
    unit = SourceUnit.from_file(repo / "tests" / "kernels" / "wild" / f"{kernel}.py")
    path = tmp_path / "out.py"
    path.write_text(compile_source(Request(unit, plan, on)).module.text)
    result = build_module(str(path), target="sm_90", dtypes=dtypes)
    assert result.ok, result.text
    assert result.original is not None
    assert result.facts.stages == result.original.stages >= 2
