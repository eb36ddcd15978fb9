"""Kernels whose computing programs move chunks between their tiles: the tiles keep the pipeline, the shared memory and the
fused loops of the original, whatever moves beside them."""

import os
import re

import pytest

from overlap.annotate.source import SourceUnit
from overlap.build import build_module
from overlap.pipeline import Request, compile_source
from overlap.schedule.moves import BETWEEN_BYTES

SWEEP = os.environ.get("OVERLAP_SWEEP") == "1"
LARGE = {"BLOCK_M": "128", "BLOCK_N": "256", "BLOCK_K": "64", "num_warps": "8", "num_stages": "3"}
KERNELS = [("persistent_gemm", "a[M]", False)]
KERNELS += [("grouped_gemm", "a[K]", False)] * SWEEP
KERNELS += [(k, on, True) for k in ("persistent_gemm", "grouped_gemm", "gemm_2d") for on in ("a[M]", "a[K]") if SWEEP]


@pytest.fixture(scope="module")
def built(repo, tmp_path_factory):
    """``built(kernel, on, large, backend)``: the kernel, ``large``: with the blocks of a real launch, built for sm_90."""
    folder = tmp_path_factory.mktemp("interleaved")
    made = {}

    def make(kernel: str, on: str = "a[M]", large: bool = False, backend: str = "ldst_inline"):
        key = (kernel, on, large, backend)
        if key not in made:
            path = folder / f"{kernel}_{len(made)}.py"
            unit = SourceUnit.from_file(str(repo / "templates" / "kernels" / f"{kernel}.py"))
            settings = LARGE if large else {}
            request = Request(unit, "all_gather_1d", on, backend=backend, output=str(path), settings=settings)
            path.write_text(compile_source(request).module.text)
            made[key] = build_module(str(path), target="sm_90", dtype="fp16")
        return made[key]

    return make


@pytest.mark.parametrize(("kernel", "on", "large"), KERNELS)
def test_nothing_of_the_original_is_lost(built, kernel, on, large):
    result = built(kernel, on, large)
    found = {f.rule for f in result.findings if f.severity != "note"}
    # A tile loop is never fused with a loop over parts.
    assert found <= ({"same-flattening"} if (kernel, on) == ("persistent_gemm", "a[K]") else set()), result.text
    assert set(result.original.buffers) <= set(result.facts.buffers) and result.facts.stages >= result.original.stages
    assert (
        result.facts.tma_loads == result.original.tma_loads
        and result.facts.async_copies == result.original.async_copies
    )
    assert result.facts.spill_bytes == 0
    assert result.facts.shared_bytes <= result.original.shared_bytes + 256


def test_parts_are_wide_and_go_through_registers(built):
    ptx = built("persistent_gemm").artifact.assembly
    assert "cp.async.cg" not in ptx
    assert re.search(r"ld\.global\.v2\.b64|ld\.global\.v4\.b32", ptx)
    assert re.search(r"st\.global\.v2\.b64|st\.global\.v4\.b32", ptx)


@pytest.mark.parametrize("large", [False, True])
def test_small_boxes_stand_beside_the_buffers_of_a_flattened_loop(built, large):
    """In memory of their own, which leaves Triton's buffers where they were modulo their alignment, and fits beside them."""
    result = built("persistent_gemm", large=large, backend="tma_inline")
    assert result.ok and not [f for f in result.findings if f.severity != "note"], result.text
    assert set(result.original.buffers) <= set(result.facts.buffers) and result.facts.spill_bytes == 0
    assert result.artifact.static_bytes == BETWEEN_BYTES and BETWEEN_BYTES % 1024 == 0
    assert result.artifact.shared_bytes - result.original.shared_bytes <= 256
    assert result.facts.shared_bytes <= 227 * 1024
    assert result.facts.tma_loads == result.original.tma_loads
    # Called functions would have ptxas wait behind every matrix instruction.
    assert not re.search(r"\bcall\b", result.artifact.assembly)
