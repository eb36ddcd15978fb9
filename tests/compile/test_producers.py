"""Generated kernels that make communicated tensors: nothing of the pipeline is lost, and every tile is counted in order."""

from __future__ import annotations

import re

import pytest

from overlap.annotate.source import SourceUnit
from overlap.build import build_module
from overlap.errors import UnsupportedError
from overlap.pipeline import Request, compile_source

PERSISTENT = "templates/kernels/persistent_gemm.py"
GROUPED = "templates/kernels/grouped_gemm.py"
LARGE = {"BLOCK_M": "128", "BLOCK_N": "256", "BLOCK_K": "64", "num_warps": "8", "num_stages": "3"}
"""Tiles that fill shared memory: what the count costs would show as a stage less."""

CASES = {
    "flattened loop over descriptors": (PERSISTENT, "reduce_scatter_1d", "c[M]", LARGE),
    "flattened, waits and counts": (PERSISTENT, ("all_gather_1d", "reduce_scatter_1d"), ("a[M]", "c[M]"), LARGE),
    "flattened, between two exchanges": (PERSISTENT, ("all_to_all_1d",) * 2, ("a[K:M]", "c[M:N]"), {}),
    "pointers": (GROUPED, "all_reduce_two_shot", "c[]", LARGE),
    "pointers, waits and counts": (GROUPED, ("all_gather_1d", "reduce_scatter_1d"), ("b[N]", "c[N]"), {}),
    "2-D grid": ("templates/kernels/gemm_2d.py", "all_to_all_1d", "c[M:N]", {}),
    "two dispatch regions": ("tests/kernels/persistent_epilogue_tile.py", "reduce_scatter_1d", "c[M]", {}),
    "listing 1": ("tests/kernels/listing1.py", "all_reduce_one_shot", "c[]", {}),
    "host descriptors": ("tests/kernels/host_descriptors.py", "reduce_scatter_1d", "c[M]", {}),
    "split K": ("tests/kernels/split_k.py", "reduce_scatter_1d", "c[M]", {}),
}
TMA = {"flattened loop over descriptors", "flattened, waits and counts", "flattened, between two exchanges"}
TMA |= {"listing 1", "host descriptors"}


@pytest.fixture(scope="module")
def generated(repo, tmp_path_factory):
    """Path of a case's generated module."""
    folder = tmp_path_factory.mktemp("generated")
    made = {}

    def make(case: str) -> str:
        if case not in made:
            source, plan, on, settings = CASES[case]
            request = Request(SourceUnit.from_file(str(repo / source)), plan, on, settings=settings)
            path = folder / f"{len(made)}.py"
            path.write_text(compile_source(request).module.text)
            made[case] = str(path)
        return made[case]

    return make


def lost(result):
    return [str(finding) for finding in result.findings if finding.severity != "note"]


@pytest.mark.parametrize("case", CASES)
def test_builds_for_hopper_and_keeps_the_pipeline(generated, case):
    result = build_module(generated(case), target="sm_90")
    assert lost(result) == []
    assert result.original is not None
    assert result.facts.buffers == result.original.buffers
    assert result.facts.tma_loads == result.original.tma_loads
    assert result.facts.shared_bytes <= result.original.shared_bytes + 256
    assert result.facts.spill_bytes == 0
    assert (result.facts.tma_stores > 0) == (case in TMA)
    assert "sys.release" in result.artifact.assembly


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_other_targets_or_why_not(generated, target):
    assert lost(build_module(generated("pointers, waits and counts"), target=target)) == []
    with pytest.raises(UnsupportedError, match=f"{target} has no such instruction") as refusal:
        build_module(generated("flattened loop over descriptors"), target=target)
    assert "ol.produced_once" in refusal.value.where.text


COUNT = re.compile(r" *# Count the .*\n( *)ol\.produced\w*\(ol_table, (ol_run\w*), ol_state[^)]*\)\n")


@pytest.mark.parametrize("case", ["flattened loop over descriptors", "pointers"])
def test_a_count_that_was_edited_out_or_moved_is_found(generated, case, tmp_path):
    text = open(generated(case)).read()
    assert len(COUNT.findall(text)) == 1
    without = COUNT.sub("", text)
    place = re.search(r"^( +)acc = tl\.zeros", without, re.M)
    moved = f"{without[: place.start()]}{place[1]}ol.produced(ol_table, ol_run, ol_state)\n{without[place.start() :]}"
    for name, changed in (("without", without), ("moved", moved)):
        path = tmp_path / f"{name}.py"
        path.write_text(changed)
        result = build_module(str(path), target="sm_90")
        assert "count-after-store" in {finding.rule for finding in result.findings if finding.severity == "error"}, name


def test_a_debug_barrier_in_a_flattened_loop_would_cost_the_pipeline(generated, tmp_path):
    """Why flattened loops are counted by other words; where a Triton version stops losing stages, so may this."""
    path = tmp_path / "plain.py"
    text = open(generated("flattened loop over descriptors")).read()
    counted = "ol.produced_once(ol_table, ol_run, ol_state, tile, NUM_SMS)"
    assert counted in text
    path.write_text(text.replace(counted, "ol.produced(ol_table, ol_run, ol_state)"))
    result = build_module(str(path), target="sm_90")
    assert "same-stages" in {finding.rule for finding in result.findings}
