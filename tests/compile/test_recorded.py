"""Kernels that record their tiles lose nothing to it: stages, buffers, shared memory and spills, and break no rule."""

from __future__ import annotations

import re

import pytest

from overlap.annotate.source import SourceUnit
from overlap.build import build_module
from overlap.pipeline import Request, compile_source

CASES = {
    "waits, flattened, TMA": ("templates/kernels/persistent_gemm.py", "all_gather_1d", "a[M]", "copy_engine"),
    "waits inside the tile": ("templates/kernels/grouped_gemm.py", "all_gather_1d", "a[K]", "copy_engine"),
    "stores where it goes": ("templates/kernels/persistent_gemm.py", "reduce_scatter_1d", "c[M]", "tma_inline"),
}
TIMER, ACQUIRE = r"%globaltimer", r"\b(?:ld|atom)\.(?:global\.)?(?:acquire\.sys|sys\.acquire|acquire\.sys\.global)"


@pytest.fixture(scope="module")
def built(repo, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("traced"), {}

    def make(name, trace):
        if (name, trace) not in made:
            source, plan, on, backend = CASES[name]
            unit = SourceUnit.from_file(str(repo / source))
            request = Request(unit, plan, on, backend=backend, settings={"trace": str(trace)})
            path = folder / f"{len(made)}.py"
            path.write_text(compile_source(request).module.text)
            made[name, trace] = build_module(str(path), target="sm_90")
        return made[name, trace]

    return make


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost(built, name):
    plain, traced = built(name, 0), built(name, 1)
    assert [str(f) for f in traced.findings if f.severity != "note"] == []
    assert traced.facts.stages == plain.facts.stages == traced.original.stages >= 2
    assert traced.facts.buffers == plain.facts.buffers
    assert traced.facts.shared_bytes == plain.facts.shared_bytes
    assert traced.facts.spill_bytes == plain.facts.spill_bytes == 0
    assert (traced.facts.tma_loads, traced.facts.tma_stores) == (plain.facts.tma_loads, plain.facts.tma_stores)


@pytest.mark.parametrize("name", [name for name in CASES if "waits" in name])
def test_timers_stand_around_the_poll(built, name):
    """As they were written: in every copy of a tile's head that Triton makes, and in the order of the text where it makes one."""
    plain, traced = built(name, 0).artifact.stages, built(name, 1).artifact.stages
    assert "%globaltimer" not in plain["ptx"] and "%smid" not in plain["ptx"]
    marks = re.finditer(
        r'"mov.u64 \$0, (%globaltimer);"|"mov.u32 \$0, (%smid);"|atomic_rmw add, acquire, sys', traced["ttgir"]
    )
    order = "".join("t" if mark[1] else "s" if mark[2] else "p" for mark in marks)
    heads = re.findall("s[^s]*", order)
    # begin, waits | polls, the first and those that follow | ready
    assert heads and all(re.match("sttp+t", head) for head in heads), order
    if name == "waits inside the tile":
        ptx = "".join("t" if m[1] else "p" for m in re.finditer(f"({TIMER})|{ACQUIRE}", traced["ptx"]))
        assert re.fullmatch("ttp+tt", ptx), ptx


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_polls_barriers_and_releases_is_the_same(built, name):
    """What the memory model is about, in the order of the text: the records add none, and move none."""
    atomics = r"\b(?:ld|st|atom|red)\.[a-z0-9.]*(?:acquire|release)[a-z0-9.]*"
    pattern = rf"{atomics}|fence\.[a-z0-9.:]+|bar\.sync|cp\.async\.bulk[a-z0-9_.:]*"
    plain, traced = (re.findall(pattern, built(name, trace).artifact.stages["ptx"]) for trace in (0, 1))
    assert plain == traced and plain
