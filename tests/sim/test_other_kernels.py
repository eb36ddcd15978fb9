"""Kernels of other styles, and of the paper, from pragma to simulated ranks on ragged shapes."""

from __future__ import annotations

import pytest

from overlap.annotate.source import SourceUnit
from overlap.pipeline import Request, compile_source
from overlap.sim import check_module

KERNELS = ("listing1", "wrapped_rows", "persistent_epilogue_tile", "host_descriptors", "nested_alias")


@pytest.mark.parametrize("world,plan", [(3, "all_gather_1d"), (4, "all_gather_ring")])
@pytest.mark.parametrize("name", KERNELS)
def test_agrees_with_the_original(repo, tmp_path, name, world, plan):
    path = repo / "tests" / "kernels" / f"{name}.py"
    on = "x[M]" if name == "nested_alias" else "a[M]"
    out = tmp_path / "out.py"
    out.write_text(compile_source(Request(SourceUnit.from_file(path), plan, on)).module.text)
    report = check_module(str(out), world=world, shape={"M": 130, "N": 72, "K": 64}, dtype="fp16", seeds=[0])
    assert report.ok, str(report)
