"""What `bench/gaps.py` makes of calls, on simulated ranks: the fused launch by itself, and what its tiles recorded."""

from __future__ import annotations

import sys

import pytest
import torch

from overlap.api.trace import recording
from overlap.ops import ag_gemm, gemm_rs
from overlap.sim import World


@pytest.fixture(scope="module")
def gaps(repo):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repo / "bench"))
        for path in (repo / "bench").glob("*.py"):
            patch.delitem(sys.modules, path.stem, raising=False)
        yield __import__("gaps")


@pytest.mark.one_triton
@pytest.mark.parametrize("op", ["ag_gemm", "gemm_rs"])
def test_the_launch_by_itself_waits_for_nothing_and_leaves_calls_right(gaps, op, tmp_path, monkeypatch):
    """It makes all tiles anew out of what is there, and the whole call behind it counts and waits as ever."""
    monkeypatch.setenv("OVERLAP_CACHE_DIR", str(tmp_path))
    m, n, k = 256, 64, 96
    a, b = torch.randn(2, m, k), torch.randn(2, k, n)
    gathers = op == "ag_gemm"
    half = m // 2

    def body(group):
        rank, meet = group.rank(), group.overlap_runtime.agree
        c = torch.empty(m if gathers else half, n)

        def call():
            c.fill_(float("nan"))
            if gathers:
                ag_gemm(a[0, rank * half : (rank + 1) * half], b[rank], out=c, group=group, backend="copy_engine")
            else:
                gemm_rs(a[rank], b[rank], out=c, group=group, backend="copy_engine")
            group.overlap_runtime.synchronize()
            return c.clone(), gaps.recorded_tiles(group)

        found = [call()]
        meet("whole calls", None)
        # Ranks are threads, and what is patched is all ranks'.
        alone = gaps.only_kernel() if rank == 0 else None
        if alone is not None:
            alone.__enter__()
        meet("the launch alone", None)
        found.append(call())
        meet("all have been alone", None)
        if alone is not None:
            alone.__exit__(None, None, None)
        meet("whole calls again", None)
        return [*found, call()]

    with recording():
        ranks = World(2, seed=3).run(body)
    for rank, ((first, tiles), (alone, still), (last, _)) in enumerate(ranks):
        right = a[0] @ b[rank] if gathers else (a[0] @ b[0] + a[1] @ b[1])[rank * half : (rank + 1) * half]
        assert torch.allclose(first, right, atol=1e-3) and torch.allclose(last, right, atol=1e-3)
        if gathers:
            assert torch.allclose(alone, right, atol=1e-3)
        else:
            assert torch.isnan(alone).all(), "sums are left out"
        assert still.programs == tiles.programs > 0 and still.busy > 0 and tiles.busy > 0
