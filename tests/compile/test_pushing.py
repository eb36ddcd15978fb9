"""Kernels that store their tiles into other ranks' slots: nothing of the original is lost, and the order of stores, counter
and flag is in the machine code."""

import re

import pytest

from overlap.annotate.source import SourceUnit
from overlap.build import build_module
from overlap.pipeline import Request, compile_source

KERNELS = ("grouped_gemm", "gemm_2d")


@pytest.fixture(scope="module")
def built(repo, tmp_path_factory):
    """``built(kernel, dtype)``: the kernel, compiled for reduce-scatter by plain stores and built for sm_90."""
    folder = tmp_path_factory.mktemp("pushing")
    made = {}

    def make(kernel: str, dtype: str, edits=()):
        key = (kernel, dtype, tuple(edits))
        if key not in made:
            unit = SourceUnit.from_file(str(repo / "templates" / "kernels" / f"{kernel}.py"))
            request = Request(unit, plan="reduce_scatter_1d", on="c[M]", backend="ldst_inline")
            text = compile_source(request).module.text
            for old, new in edits:
                assert text.count(old) == 1, old
                text = text.replace(old, new)
            path = folder / f"{kernel}_{len(made)}.py"
            path.write_text(text)
            made[key] = build_module(str(path), target="sm_90", dtype=dtype)
        return made[key]

    return make


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_nothing_of_the_original_is_lost(built, kernel, dtype):
    result = built(kernel, dtype)
    assert [str(f) for f in result.findings if f.severity != "note"] == []
    assert result.facts.buffers == result.original.buffers and result.facts.stages == result.original.stages
    assert result.facts.spill_bytes == 0


def instructions(text: str, *patterns: str) -> list[list[int]]:
    return [[m.start() for m in re.finditer(pattern, text)] for pattern in patterns]


@pytest.mark.parametrize("kernel", KERNELS)
def test_tiles_leave_in_wide_stores_ahead_of_barrier_counter_and_flag(built, kernel):
    ptx = built(kernel, "fp16").artifact.assembly
    stores, barriers, counters, flags = instructions(
        ptx,
        r"st\.global\S*\.v4\.b32",
        r"bar\.sync",
        r"atom\.global\.sys\.acq_rel\.add\.u64",
        r"atom\.global\.sys\.release\.exch",
    )
    assert stores and len(counters) == 1 and len(flags) == 1
    assert max(stores) < counters[0] < flags[0]
    assert any(max(stores) < barrier < counters[0] for barrier in barriers)
