"""Results whose tiles leave elements out: refused where that is seen, and nothing else that a mask or a branch says."""

from __future__ import annotations

import pytest

from overlap.annotate.source import SourceUnit
from overlap.errors import UnsupportedError
from overlap.pipeline import Request, compile_source

KERNEL = """\
import torch
import triton
import triton.language as tl


@triton.jit
def scores(x_ptr, y_ptr, r_ptr, M, N, sxm, sym, LOWER: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    # @overlap.axis_count M block=BM
    # @overlap.axis_count N block=BN
    # @overlap.dispatch begin
    # @overlap.pid_map M=pm N=pn
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    # @overlap.dispatch end
    rm = pm * BM + tl.arange(0, BM)
    rn = pn * BN + tl.arange(0, BN)
    keep = (rm[:, None] < M) & (rn[None, :] < N)
    x = tl.load(x_ptr + rm[:, None] * sxm + rn[None, :], mask=keep, other=0.0)
    y_ptrs = y_ptr + rm[:, None] * sym + rn[None, :]
    {store}


# @overlap.host_entry x[M,N] -> y[M,N] r[M]
def scored(x):
    M, N = x.shape
    y = torch.zeros((M, N), dtype=x.dtype, device=x.device)
    r = torch.zeros(M, dtype=x.dtype, device=x.device)
    scores[(triton.cdiv(M, 16), triton.cdiv(N, 16))](x, y, r, M, N, x.stride(0), y.stride(0), LOWER=True, BM=16, BN=16)
    return y, r
"""
PART = {
    "below a diagonal": ("tl.store(y_ptrs, x, mask=keep & (rn[None, :] <= rm[:, None]))", "rn[None, :] <= rm[:, None]"),
    "above a shifted one": (
        "tl.store(y_ptrs, x, mask=keep & (rm[:, None] + 3 < rn[None, :]))",
        r"rm[:, None] + 3 < rn[None, :]",
    ),
    "tiles of a triangle": ("if pn <= pm:\n        tl.store(y_ptrs, x, mask=keep)", "pn <= pm"),
    "all tiles but those": (
        "if pn > pm:\n        pass\n    else:\n        tl.store(y_ptrs, x, mask=keep)",
        "not pn > pm",
    ),
    "one column of tiles": ("tl.store(y_ptrs, x, mask=keep & (pn == 0))", "pn == 0"),
    "every other row": ("even = rm % 2 == 0\n    tl.store(y_ptrs, x, mask=keep & even[:, None])", "rm % 2 == 0"),
    "twice the same": (
        "if pn != 0:\n        tl.store(y_ptrs, x, mask=keep)\n        tl.store(y_ptrs, x + 1, mask=keep)",
        "pn != 0",
    ),
    "whatever a flag says": (
        "if LOWER:\n        keep &= rn[None, :] <= rm[:, None]\n    else:\n        keep &= rn[None, :] <= rm[:, None]\n"
        "    tl.store(y_ptrs, x, mask=keep)",
        "rn[None, :] <= rm[:, None]",
    ),
}
WHOLE = {
    "within bounds": "tl.store(y_ptrs, x, mask=keep)",
    "the rest is zero": "tl.store(y_ptrs, tl.where(rn[None, :] <= rm[:, None], x, 0.0), mask=keep)",
    "by a flag": "if LOWER:\n        keep &= rn[None, :] <= rm[:, None]\n    tl.store(y_ptrs, x, mask=keep)",
    "by a flag in one expression": "tl.store(y_ptrs, x, mask=keep & (rn[None, :] <= rm[:, None]) if LOWER else keep)",
    "one or the other": "tl.store(y_ptrs, x, mask=keep & ((rn[None, :] <= rm[:, None]) | (rm[:, None] < M)))",
    "any of three": "if pn == 0 or pn == 0 or M > 5:\n        tl.store(y_ptrs, x, mask=keep)",
    "two halves": "even = rm[:, None] % 2 == 0\n    tl.store(y_ptrs, x, mask=keep & even)\n"
    "    odd = rm[:, None] % 2 == 1\n    tl.store(y_ptrs, x, mask=keep & odd)",
    "two branches": "if pn == 0:\n        tl.store(y_ptrs, x, mask=keep)\n    else:\n        tl.store(y_ptrs, x + 1, mask=keep)",
    "the end of a tile": "tl.store(y_ptrs, x, mask=keep & (rm[:, None] < (pm + 1) * BM))",
    "the end of a tile or of all": "tl.store(y_ptrs, x, mask=keep & (rm[:, None] < tl.minimum((pm + 1) * BM, M)))",
    "a flat bound": "tl.store(y_ptrs, x, mask=keep & (rm[:, None] * N + rn[None, :] < M * N))",
    "a condition on values": "v = x\n    if pn == 0:\n        v = x * 2\n    tl.store(y_ptrs, v, mask=keep)",
}


def compiled(tmp_path, store, on="y[M]"):
    path = tmp_path / "scores.py"
    path.write_text(KERNEL.replace("{store}", store))
    return compile_source(Request(SourceUnit.from_file(path), "reduce_scatter_1d", on)).module.text


@pytest.mark.parametrize("name", PART)
def test_elements_that_no_tile_stores_are_refused(tmp_path, name):
    store, condition = PART[name]
    with pytest.raises(UnsupportedError, match="leaves elements out") as refused:
        compiled(tmp_path, store)
    assert f"by `{condition}`" in refused.value.message and "tl.where" in refused.value.help
    assert (
        refused.value.where is not None
        and "tl.store" in KERNEL.replace("{store}", store).splitlines()[refused.value.where.line - 1]
    )


@pytest.mark.parametrize("name", WHOLE)
def test_other_masks_and_branches_are_not(tmp_path, name):
    assert "reduce_scatter_1d" in compiled(tmp_path, WHOLE[name])


def test_what_picks_along_another_dimension_is_not(tmp_path):
    """Sums of rows, which one column of tiles stores."""
    store = "tl.store(y_ptrs, x, mask=keep)\n    tl.store(r_ptr + rm, tl.sum(x, 1), mask=(rm < M) & (pn == 0))"
    for on in ("y[M]", "r[M]"):
        assert "reduce_scatter_1d" in compiled(tmp_path, store, on)
