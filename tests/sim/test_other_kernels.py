"""Kernels of other styles, of the paper, and of public packages, from pragma to simulated ranks on ragged shapes."""

from __future__ import annotations

import pytest

from overlap.annotate.source import SourceUnit
from overlap.errors import RuntimeContractError
from overlap.pipeline import Request, compile_source
from overlap.sim import check_module
from tests.support.sweep import SWEEP

KERNELS = ("listing1", "wrapped_rows", "persistent_epilogue_tile", "host_descriptors", "nested_alias")


@pytest.mark.parametrize(
    "world,plan", [(3, "all_gather_1d"), pytest.param(4, "all_gather_ring", marks=pytest.mark.one_triton)]
)
@pytest.mark.parametrize("name", KERNELS)
def test_agrees_with_the_original(repo, tmp_path, name, world, plan):
    path = repo / "tests" / "kernels" / f"{name}.py"
    on = "x[M]" if name == "nested_alias" else "a[M]"
    out = tmp_path / "out.py"
    out.write_text(compile_source(Request(SourceUnit.from_file(path), plan, on)).module.text)
    report = check_module(str(out), world=world, shape={"M": 130, "N": 72, "K": 64}, dtype="fp16", seeds=[0])
    assert report.ok, str(report)


GRID = 'triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"])'


def with_grid(repo, tmp_path, grid, on, plan, backend="copy_engine"):
    """The grouped GEMM on another grid, compiled."""
    text = (repo / "templates" / "kernels" / "grouped_gemm.py").read_text()
    assert GRID in text
    (tmp_path / "user.py").write_text(text.replace(GRID, grid))
    out = tmp_path / "out.py"
    out.write_text(
        compile_source(Request(SourceUnit.from_file(tmp_path / "user.py"), plan, on, backend=backend)).module.text
    )
    return str(out)


@pytest.mark.parametrize(
    "on,plan,backend",
    [("a[M]", "all_gather_1d", "ldst_reserved"), ("c[M]", "reduce_scatter_1d", "copy_engine")],
)
def test_programs_without_a_tile_do_nothing(repo, tmp_path, on, plan, backend):
    """On a grid that is rounded up, whose last programs the original masks, no tile is made or counted twice."""
    out = with_grid(repo, tmp_path, f"triton.cdiv({GRID}, 8) * 8", on, plan, backend)
    report = check_module(out, world=3, shape={"M": 150, "N": 40, "K": 20}, dtype="fp16", seeds=[0])
    assert report.ok, str(report)


def test_tiles_without_a_program(repo, tmp_path):
    """Fewer programs than tiles, as where a block size is set and the grid is made from another, are refused."""
    out = with_grid(repo, tmp_path, f"{GRID} - 1", "a[M]", "all_gather_1d")
    with pytest.raises(RuntimeContractError, match="launched with 2 programs, and has 3 tiles of BLOCK_M, BLOCK_N"):
        check_module(out, world=3, shape={"M": 150, "N": 40, "K": 20}, dtype="fp16", seeds=[0])


PUBLIC = {
    # name: gathered tensor, sizes, dtype, tensors of another dtype
    "annotated_torchao": ("A[M]", {"M": 130, "N": 70, "K": 96}, "fp32", {"A": "int8", "B": "int8"}),
    "annotated_rotalabs": ("x[M]", {"M": 131, "N": 70, "K": 64}, "fp16", {"weight_int8": "int8", "scale": "fp32"}),
    # This kernel's own stores wrap without a mask: 64 must divide M and N, shards may be uneven.
    "annotated_flaggems": (
        "a[M]",
        {"M": 320, "N": 128, "K": 256, "G": 2, "H": 1},
        "fp32",
        {"a": "fp8e4nv", "b": "fp8e4nv"},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One place for all worlds: a module that registers operators can be imported once a process."""
    return tmp_path_factory.mktemp("public")


@pytest.mark.parametrize("world", [3, pytest.param(4, marks=pytest.mark.one_triton)])
@pytest.mark.parametrize("name", PUBLIC)
def test_public_kernels_unchanged_but_for_pragmas(repo, folder, tmp_path, monkeypatch, name, world):
    monkeypatch.syspath_prepend(str(repo / "tests" / "kernels"))
    import public

    on, shape, dtype, dtypes = PUBLIC[name]
    path = getattr(public, name)(folder)
    out = tmp_path / "out.py"
    out.write_text(compile_source(Request(SourceUnit.from_file(path), "all_gather_1d", on)).module.text)
    seeds = [0, 1] if SWEEP else [0]
    report = check_module(str(out), world=world, shape=shape, dtype=dtype, dtypes=dtypes, seeds=seeds)
    assert report.ok, str(report)
