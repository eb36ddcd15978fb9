"""Plans imported from a loop nest drive compiled kernels: rings on two levels, of pieces and of sums."""

from __future__ import annotations

import pytest

from overlap.annotate.source import SourceUnit
from overlap.chunkplan.dump import dump_plan
from overlap.chunkplan.importers.loop_ir import lower_loop_ir
from overlap.chunkplan.importers.loop_model import Buffer, Loop, LoopNest
from overlap.chunkplan.mesh import parse_mesh
from overlap.pipeline import Request, compile_source
from overlap.sim import check_module

ROWS, COLUMNS, INNER = 40, 24, 32


def double_ring(name: str, columns: int, summed: bool) -> str:
    """The plan file of a tensor whose rows travel around a node, and between nodes, on 2x2 ranks."""
    loops = [Loop(f"{letter}{level}", 2, reduce=summed and letter == "P") for letter in "PM" for level in (0, 1)]
    buffer = Buffer(name, (ROWS, columns), (("M0", "M1"), ()), write=summed)
    nest = LoopNest(parse_mesh("2x2"), tuple(loops), (buffer,))
    for level in (0, 1):
        nest = nest.parallelize(f"P{level}", level).shift(f"M{level}", f"P{level}")
    return dump_plan(lower_loop_ir(nest, direction="push" if summed else "pull", name="double_ring"))


@pytest.mark.parametrize(("on", "columns"), [("a[M]", INNER), ("c[M]", COLUMNS)])
def test_a_kernel_runs_on_an_imported_plan(on, columns, repo, tmp_path):
    plan = tmp_path / "double_ring.yaml"
    plan.write_text(double_ring(on[0], columns, on[0] == "c"))
    unit = SourceUnit.from_file(repo / "templates" / "kernels" / "grouped_gemm.py")
    path = tmp_path / "out.py"
    path.write_text(compile_source(Request(unit, plan=str(plan), on=on, output=str(path))).module.text)
    shape = {"M": ROWS, "N": COLUMNS, "K": INNER}
    report = check_module(str(path), world=4, shape=shape, dtype="fp16", seeds=[0], launches=1)
    assert report.ok, str(report)
