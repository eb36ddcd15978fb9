"""Kernels that store their tiles into other ranks' slots: nothing of the original is lost, and the order of stores, counter
and flag is in the machine code."""

import re

import pytest

from overlap.annotate.source import SourceUnit
from overlap.build import build_module
from overlap.pipeline import Request, compile_source

from .support import VERSION

KERNELS = ("grouped_gemm", "gemm_2d")
BY_TMA = {"persistent_gemm": "templates", "host_descriptors": "tests"}
"""Kernels with descriptors of their own and of the host, and where they are."""


@pytest.fixture(scope="module")
def built(repo, tmp_path_factory):
    """``built(kernel, dtype, edits)``: the kernel, compiled for reduce-scatter by stores of its tiles and built for sm_90."""
    folder = tmp_path_factory.mktemp("pushing")
    made = {}

    def make(kernel: str, dtype: str, edits=()):
        key = (kernel, dtype, tuple(edits))
        if key not in made:
            unit = SourceUnit.from_file(str(repo / BY_TMA.get(kernel, "templates") / "kernels" / f"{kernel}.py"))
            backend = "tma_inline" if kernel in BY_TMA else "ldst_inline"
            request = Request(unit, plan="reduce_scatter_1d", on="c[M]", backend=backend)
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


COUNT = "        ol.pushed_async(ol_table, ol_run, ol_state, ol_slots, ol_ways)\n"
"""How tiles of a flattened loop are counted."""
NOTE = "        # Where the tile goes: slots of other ranks, the own part; one place, but on the edges of chunks.\n"


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


@pytest.mark.parametrize("kernel", BY_TMA)
def test_nothing_of_an_original_with_descriptors_is_lost(built, kernel):
    result = built(kernel, "fp16")
    ours, theirs = result.facts, result.original
    assert [str(f) for f in result.findings if f.severity != "note"] == []
    assert [b for b in ours.buffers if b.depth > 1] == [b for b in theirs.buffers if b.depth > 1]
    assert (ours.tma_loads, ours.tma_stores, ours.spill_bytes) == (theirs.tma_loads, theirs.tma_stores, 0)


@pytest.mark.parametrize("kernel", BY_TMA)
def test_tiles_have_landed_ahead_of_barrier_counter_and_flag(built, kernel):
    """The first two of four coordinates are the place; no tile makes a descriptor."""
    ptx = built(kernel, "fp16").artifact.assembly
    counters, flags = instructions(ptx, r"atom\.global\.sys\.acq_rel\.add\.u64", r"atom\.global\.sys\.release\.exch")
    stores, landed, made = instructions(
        ptx,
        r"cp\.async\.bulk\.tensor\.4d\.global\.shared::cta",
        r"cp\.async\.bulk\.wait_group 0;\s*bar\.sync 0;",
        r"tensormap\.cp_fenceproxy",
    )
    assert all(a < b < c for a, b, c in zip(landed, counters, flags, strict=True))
    if kernel == "persistent_gemm":
        # A flattened loop may have its tail twice. Each tile is counted behind its own store.
        assert len(counters) == len(stores) in (1, 2)
        assert all(a < b for a, b in zip(stores, landed, strict=True))
    else:
        # A tile is counted ahead of the next one's store, the last one behind the loop.
        assert len(counters) == len(stores) + 1
        assert all(any(a < b for b in landed) and any(b < a for b in flags) for a in stores)
    assert len(made) == (3 if kernel == "persistent_gemm" else 0) and all(at < stores[0] for at in made)


@pytest.mark.one_triton
@pytest.mark.parametrize(
    ("edits", "rule", "repaired"),
    [
        ([(COUNT, "        ol.pushed(ol_table, ol_run, ol_state, ol_slots)\n")], "store-drained", (3, 8)),
        ([(COUNT, ""), (NOTE, f"{COUNT}{NOTE}")], "count-after-store", None),
    ],
)
def test_broken_tails_are_found(built, edits, rule, repaired):
    """Later Triton versions wait for the store themselves."""
    found = {f.rule for f in built("persistent_gemm", "fp16", edits).findings if f.severity == "error"}
    assert (rule in found) == (repaired is None or VERSION < repaired)
