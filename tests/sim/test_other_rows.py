"""Kernels and launches that reach other rows of a communicated tensor than they seem to: right, or refused with their line."""

from __future__ import annotations

import pytest

from overlap.annotate.source import SourceUnit
from overlap.errors import HostEntryError
from overlap.pipeline import Request, compile_source
from overlap.sim import check_module

KERNEL = """\
import torch
import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, z_ptr, y_ptr, M, N, start, sxm, sxn, sym, BM: tl.constexpr, BN: tl.constexpr):
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
    near = (rm[:, None] + 1 < M) & (rn[None, :] < N)
    half = (2 * rm[:, None] < M) & (rn[None, :] < N)
    a = tl.arange(0, BM)
    {load}
    {store}


# @overlap.host_entry x[M,N] z[P] -> y[M,N]
def copied(x, z):
    M, N = x.shape
    y = torch.empty_like(x)
    v = {view}
    copy[(triton.cdiv(M, 16), triton.cdiv(N, 16))]({passed}, y, M, N, {start}, {strides}, y.stride(0), BM=16, BN=16)
    return y
"""
PLAIN = {
    "load": "v = tl.load(x_ptr + rm[:, None] * sxm + rn[None, :], mask=keep, other=0.0)",
    "store": "tl.store(y_ptr + rm[:, None] * sym + rn[None, :], v, mask=keep)",
    "view": "x",
    "passed": "x, z",
    "start": "0",
    "strides": "x.stride(0), x.stride(1)",
}
NEXT, HALF = "mask=near, other=0.0)", "mask=half, other=0.0)"
SECOND = f"v = tl.load(x_ptr + rm[:, None] * sxm + rn[None, :], {HALF}"
BLOCK = (
    "tl.load(tl.make_block_ptr(x_ptr, (M // 2, N), ({}), (pm * BM, pn * BN), (BM, BN), (1, 0)), boundary_check=(0, 1))"
)
RIGHT = {
    "as it seems": {},
    "strides of sizes": {"load": f"v = tl.load(x_ptr + rm[:, None] * N + rn[None, :], {NEXT}"},
    "lanes less lanes": {
        "load": "v = tl.load(x_ptr + (rm[:, None] - a[None, :]) * sxm, mask=keep & (rm[:, None] >= a[None, :]), other=0.0)"
    },
    "a stride by a condition": {
        "load": f"v = tl.load(x_ptr + (sxm if start > 0 else 0) + rm[:, None] * sxm + rn[None, :], {NEXT}",
        "start": "1",
    },
    "an iteration left": {
        "load": "v = tl.zeros((BM, BN), tl.float32)\n    for i in range(4):\n        if i % 2 == 1:\n            rm += 1\n"
        "            continue\n        v += tl.load(x_ptr + rm[:, None] * sxm + rn[None, :], "
        "mask=(rm[:, None] < M) & (rn[None, :] < N), other=0.0)\n    rm = pm * BM + a",
    },
    "columns of a row": {
        "load": "v = tl.load(x_ptr + start + rm[:, None] * sxm + rn[None, :], "
        "mask=(rm[:, None] < M) & (rn[None, :] + start < N), other=0.0)",
        "start": "3",
    },
}
REFUSED = {
    "columns behind a row": (
        {"load": f"v = tl.load(x_ptr + start + rm[:, None] * sxm + rn[None, :], {NEXT}", "start": "N"},
        "begins at `start`, 40, in rows of `x`",
    ),
    "another stride": (
        {"load": SECOND, "strides": "2 * x.stride(0), x.stride(1)"},
        "by `sxm`, which is 80; the tensor's stride is 40",
    ),
    "a multiple of a size": (
        {"load": f"v = tl.load(x_ptr + rm[:, None] * (N * start) + rn[None, :], {HALF}", "start": "2"},
        r"by `N \* start`, which is 80",
    ),
    "every second row": ({"load": "v = " + BLOCK.format("2 * sxm, 1")}, r"by `2 \* sxm`, which is 80"),
    "transposed strides": ({"load": "v = " + BLOCK.format("1, sxm")}, "dimension 0 of `x` by `1`"),
    "a view of every second row": (
        {"load": SECOND, "view": "x[::2]", "passed": "v, z", "strides": "v.stride(0), v.stride(1)"},
        r"strides \(80, 1\), not its own \(40, 1\)",
    ),
    "a view of two rows as one": (
        {"load": SECOND, "view": "x.view(M // 2, 2 * N)", "passed": "v, z", "strides": "v.stride(0), v.stride(1)"},
        r"strides \(80, 1\), not its own \(40, 1\)",
    ),
    "a view from the second row": (
        {"load": SECOND, "passed": "x[1:], z"},
        "a part of `x` that does not begin where it does",
    ),
    "one row again and again": ({"passed": "x[:1].expand(M, N), z"}, r"strides \(0, 1\), not its own"),
    "the tensor twice": (
        {
            "passed": "x, x",
            "load": f"v = tl.load(z_ptr + (rm[:, None] + 1) * sxm + rn[None, :], {NEXT} + "
            "tl.load(x_ptr + rm[:, None] * sxm + rn[None, :], mask=keep, other=0.0)",
        },
        "passes the memory of `x` a second time, as `z_ptr`",
    ),
}


def run(tmp_path, edits, plan="all_gather_1d", on="x[M]"):
    """The report of three ranks, whose shards end within blocks."""
    (tmp_path / "user.py").write_text(KERNEL.format(**PLAIN | edits))
    out = tmp_path / "out.py"
    out.write_text(compile_source(Request(SourceUnit.from_file(tmp_path / "user.py"), plan, on)).module.text)
    return check_module(
        str(out),
        world=3,
        shape={"M": 70, "N": 40, "P": 8},
        dtype="fp32",
        dtypes={"z": "fp32"},
        seeds=[0, 1],
        launches=2,
    )


@pytest.mark.one_triton
@pytest.mark.parametrize("name", RIGHT)
def test_waits_for_the_rows_that_are_read(tmp_path, name):
    report = run(tmp_path, RIGHT[name])
    assert report.ok, str(report)


@pytest.mark.one_triton
@pytest.mark.parametrize("name", REFUSED)
def test_launches_of_other_rows_are_refused(tmp_path, name):
    edits, message = REFUSED[name]
    with pytest.raises(HostEntryError, match=message) as caught:
        run(tmp_path, edits)
    assert "copy[(" in str(caught.value) and caught.value.help


@pytest.mark.one_triton
def test_stores_to_other_rows_are_refused(tmp_path):
    edits = {"store": "tl.store(y_ptr + rm[:, None] * (N * start) + rn[None, :], v, mask=half)", "start": "2"}
    with pytest.raises(HostEntryError, match=r"dimension 0 of `y` by `N \* start`, which is 80"):
        run(tmp_path, edits, "reduce_scatter_1d", "y[M]")
