"""Loops cut into parts, compiled: every load behind its wait, every pipeline stage kept."""

from __future__ import annotations

import re

import pytest
import torch

from overlap.annotate.source import SourceUnit
from overlap.build import build_module, compile_kernel, parse_target
from overlap.build.artifact import facts
from overlap.codegen.module_io import load_module
from overlap.pipeline import Request, compile_source

from .support import VERSION, meta, state

KERNELS = {
    # kernel: gathered tensors, whether loads go by TMA, whether the original's tile loop is fused with its K loop
    "templates/kernels/grouped_gemm.py": ("a[K]", False, False),
    "templates/kernels/gemm_2d.py": ("a[K] b[K]", False, False),
    "templates/kernels/persistent_gemm.py": ("a[K]", True, True),
    "tests/kernels/host_descriptors.py": ("a[K]", True, False),
    "tests/kernels/listing1.py": ("a[K] b[K]", True, False),
    "tests/kernels/range_twice.py": ("a[K]", False, False),
}
if VERSION < (3, 9):  # later ones have no block pointers
    KERNELS["tests/kernels/range_block_pointers.py"] = ("b[K]", False, False)


@pytest.fixture(scope="module")
def generated(repo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranges")
    made = {}

    def make(source: str, on: str) -> str:
        if (source, on) not in made:
            ons = on.split()
            request = Request(SourceUnit.from_file(str(repo / source)), plan=["all_gather_1d"] * len(ons), on=ons)
            path = folder / f"{len(made)}_{source.rsplit('/', 1)[1]}"
            path.write_text(compile_source(request).module.text)
            made[source, on] = str(path)
        return made[source, on]

    return make


@pytest.mark.parametrize("source", KERNELS)
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_the_loop_keeps_its_pipeline(generated, source, dtype):
    on, tma, fused = KERNELS[source]
    result = build_module(generated(source, on), target="sm_90", dtype=dtype)
    assert result.ok
    lost = {finding.rule for finding in result.findings if finding.severity == "warning"}
    # A tile loop that was fused with the loop over K is not fused with the loop over its parts.
    assert lost - {"no-spills"} <= ({"same-flattening"} if fused else set())
    assert result.original is not None
    assert result.facts.buffers == result.original.buffers
    assert result.facts.stages == result.original.stages >= 2
    assert (result.facts.tma_loads > 0) == tma
    assert (result.facts.wgmma > 0) == (result.original.wgmma > 0)
    assert result.facts.spill_bytes <= 32  # addresses


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_other_targets(generated, target):
    for source in ("templates/kernels/grouped_gemm.py", "templates/kernels/gemm_2d.py"):
        result = build_module(generated(source, KERNELS[source][0]), target=target)
        assert result.ok and result.facts.buffers == result.original.buffers


# Sizes that fill a GPU: the large tiles of a real launch, by TMA and by pointers, flattened and not.
LARGE = [(128, 256, 64, 8, 3), (128, 128, 64, 4, 4)]


@pytest.mark.parametrize("blocks", LARGE, ids=lambda b: "x".join(map(str, b)))
@pytest.mark.parametrize("name", ["persistent_gemm", "grouped_gemm"])
def test_large_tiles_keep_all_stages(generated, repo, name, blocks):
    bm, bn, bk, warps, stages = blocks
    size = 4096
    arguments = dict(a_ptr=meta(size, size), b_ptr=meta(size, size), c_ptr=meta(size, size), M=size, N=size, K=size)
    strides = dict(stride_am=size, stride_bk=size, stride_cm=size)
    if name == "grouped_gemm":
        strides |= dict(stride_ak=1, stride_bn=1, stride_cn=1)
    arguments |= strides | dict(BLOCK_M=bm, BLOCK_N=bn, BLOCK_K=bk, GROUP_M=8)
    if name == "persistent_gemm":
        arguments |= dict(NUM_SMS=132)
    table = meta(64, dtype=torch.int32)
    found = []
    for path, more in (
        (str(repo / "templates" / "kernels" / f"{name}.py"), {}),
        (generated(f"templates/kernels/{name}.py", "a[K]"), dict(ol_table=table, ol_state=state(), ol_parts=table)),
    ):
        kernel = load_module(path).matmul_kernel
        options = dict(num_warps=warps, num_stages=stages)
        found.append(facts(compile_kernel(kernel, arguments | more, parse_target("sm_90"), options)))
    original, made = found
    assert made.buffers == original.buffers and made.stages == stages
    assert made.spill_bytes == 0 and made.wgmma == original.wgmma and made.tma_loads == original.tma_loads
    assert made.shared_bytes <= original.shared_bytes


PARTS = re.compile(r"ol\.wait_run\(ol_parts[^()]*\)")


@pytest.mark.parametrize("name", ["persistent_gemm", "grouped_gemm", "gemm_2d"])
def test_a_wait_that_was_edited_out_is_found(generated, name, tmp_path):
    text, count = PARTS.subn("0", open(generated(f"templates/kernels/{name}.py", "a[K]")).read())
    assert count == 1
    path = tmp_path / "edited.py"
    path.write_text(text)
    result = build_module(str(path), target="sm_90")
    assert "wait-feeds-load" in {f.rule for f in result.findings if f.severity == "error"}


def test_a_tma_load_without_the_proxy_fence_is_found(generated, tmp_path):
    text = open(generated("templates/kernels/persistent_gemm.py", "a[K]")).read()
    assert text.count("ol.after_async(") == 1
    path = tmp_path / "edited.py"
    path.write_text(text.replace("ol.after_async(", "ol.after("))
    result = build_module(str(path), target="sm_90")
    assert {f.rule for f in result.findings if f.severity == "error"} == {"proxy-fence"}
