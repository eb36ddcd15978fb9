"""A small annotated GEMM as text, and helpers that edit it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from overlap.annotate import SourceUnit, annotate
from overlap.annotate.model import ProgramModel
from overlap.errors import OverlapError

GROUPED = """\
import torch
import triton
import triton.language as tl


@triton.jit
def gemm(a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn,
         BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr = 8):
    # @overlap.tile_id
    pid = tl.program_id(axis=0)
    # @overlap.axis_count M block=BM
    rows = tl.cdiv(M, BM)
    # @overlap.axis_count N block=BN
    cols = tl.cdiv(N, BN)
    # @overlap.axis_count K=range
    steps = tl.cdiv(K, BK)
    width = G * cols
    # @overlap.dispatch begin
    # @overlap.pid_map M=pid_m N=pid_n
    group = pid // width
    size = min(rows - group * G, G)
    pid_m = group * G + (pid % width) % size
    pid_n = (pid % width) // size
    # @overlap.dispatch end
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    pa = a_ptr + rm[:, None] * sam + rk[None, :] * sak
    pb = b_ptr + rk[:, None] * sbk + rn[None, :] * sbn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, steps):
        left = K - k * BK
        a = tl.load(pa, mask=(rm[:, None] < M) & (rk[None, :] < left), other=0.0)
        b = tl.load(pb, mask=(rk[:, None] < left) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc)
        pa += BK * sak
        pb += BK * sbk
    pc = c_ptr + rm[:, None] * scm + rn[None, :] * scn
    tl.store(pc, acc.to(c_ptr.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


# @overlap.host_entry a[M,K] b[K,N] -> c[M,N]
def matmul(a, b):
    M, K = a.shape
    _, N = b.shape
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, 32) * triton.cdiv(N, 32),)
    gemm[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), c.stride(0), c.stride(1), BM=32, BN=32, BK=16)
    return c
"""

Edit = tuple[str, str]


def edited(text: str, *edits: Edit) -> str:
    """``text`` with each old piece, which must stand there exactly once, replaced."""
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
        text = text.replace(old, new)
    return text


@pytest.fixture
def grouped() -> str:
    return GROUPED


@pytest.fixture
def persistent() -> str:
    """The same GEMM as a persistent loop over tiles."""
    head, tail = GROUPED.split("    # @overlap.dispatch begin\n")
    body, host = tail.split("\n\n\n# @overlap.host_entry")
    inner = "".join(f"    {line}\n" for line in ("    # @overlap.dispatch begin\n" + body).splitlines())
    head = edited(head, ("    # @overlap.tile_id\n    pid = tl.program_id(axis=0)\n", "    start = tl.program_id(0)\n"))
    loop = "    # @overlap.tile_id persistent\n    for pid in tl.range(start, rows * cols, G):\n"
    return f"{head}{loop}{inner}\n\n# @overlap.host_entry{host}"


@pytest.fixture
def edit() -> Callable[..., str]:
    return edited


@pytest.fixture
def model() -> Callable[..., ProgramModel]:
    """Annotates the GEMM after edits."""

    def build(*edits: Edit, text: str = GROUPED, kernel: str | None = None) -> ProgramModel:
        return annotate(SourceUnit.from_text(edited(text, *edits), "gemm.py"), kernel)

    return build


@pytest.fixture
def refusal() -> Callable[..., OverlapError]:
    """The error that annotating the edited GEMM raises; its rendering has the form every message has."""

    def build(*edits: Edit, text: str = GROUPED, kernel: str | None = None) -> OverlapError:
        source = edited(text, *edits)
        with pytest.raises(OverlapError) as caught:
            annotate(SourceUnit.from_text(source, "gemm.py"), kernel)
        error = caught.value
        assert error.where is not None, error
        first, shown, caret = error.render().splitlines()[:3]
        assert first == f"gemm.py:{error.where.line}:{error.where.col}: {error.message}"
        assert shown.strip() == source.splitlines()[error.where.line - 1].strip()
        assert caret.index("^") - 4 == error.where.col - 1
        return error

    return build


@pytest.fixture
def public(repo: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("public", repo / "tests" / "kernels" / "public.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
