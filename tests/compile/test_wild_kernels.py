"""Kernels as other people write them (tests/kernels/wild), compiled for sm_90: waits in front of every load, stages kept."""

from __future__ import annotations

import pytest

from overlap.annotate.source import SourceUnit
from overlap.build import build_module
from overlap.errors import UsageError
from overlap.pipeline import Request, compile_source

GATHER = "all_gather_1d"
CASES = {
    # kernel: plan, communicated tensor, dtypes of single tensors
    "moe": (GATHER, "a[T]", {"sorted_ids": "int32", "experts": "int64"}),
    "helpers_load": (GATHER, "a[K]", {}),
    "out_arg": ("reduce_scatter_1d", "out[M]", {}),
    "global_const": (GATHER, "a[M]", {}),
    "epilogue": (GATHER, "a[M]", {}),
    "inline_asm": (GATHER, "a[M]", {}),
    "block_scales": (GATHER, "a_s[M]", {"a_s": "fp32", "b_s": "fp32"}),
    "tuple_strides": (GATHER, "a[M]", {}),
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


def test_dtypes_of_inputs_that_there_are_not(repo, tmp_path):
    unit = SourceUnit.from_file(repo / "tests" / "kernels" / "wild" / "moe.py")
    path = tmp_path / "out.py"
    path.write_text(compile_source(Request(unit, GATHER, "a[T]")).module.text)
    with pytest.raises(UsageError, match="no input 'ids'") as caught:
        build_module(str(path), target="sm_90", dtypes={"ids": "int32"})
    assert "sorted_ids" in caught.value.help
    with pytest.raises(UsageError, match="unknown dtype 'int3'"):
        build_module(str(path), target="sm_90", dtypes={"experts": "int3"})
