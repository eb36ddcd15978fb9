"""`ag_gemm_k` and `a2a_gemm` whose pieces are moved by programs of the kernel, on simulated ranks, against fp64."""

from __future__ import annotations

import pytest
import torch
from test_ops_results import EXCHANGED, Case, assert_near, exchanged, piece

from overlap.errors import UsageError
from overlap.ops import a2a_gemm, ag_gemm_k, last_plan, reserve
from overlap.sim import World

pytestmark = pytest.mark.one_triton

CASES = {
    "uneven pieces of everything": EXCHANGED["uneven pieces of everything"],
    "rows that are boxes": Case((70,), 192, 24, world=3, dtype=torch.float32),
    "a rank without rows": Case((2,), 3 * 1024, 8, world=3, dtype=torch.float32),
}


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "tma_reserved") for name in CASES),
        ("rows that are boxes", "ldst_reserved"),
        ("uneven pieces of everything", "ldst_inline"),
        ("a rank without rows", "ldst_inline"),
        ("rows that are boxes", "tma_inline"),
    ],
)
def test_pieces_are_moved_by_programs(name, backend):
    case = CASES[name]
    options = {"backend": backend, **({"comm_sms": 2} if backend.endswith("_reserved") else {})}

    def call(group, rank, x, w, bias):
        held = piece(case, x, -1, rank)
        more = {**options, "bias": bias, "group": group}
        return ag_gemm_k(held, w, **more), a2a_gemm(held, w, scatter_dim=case.dim, **more)

    for rank, (whole, rows), wanted, allowed in exchanged(case, call, seed=len(name), launches=1):
        assert_near(case, whole, wanted, allowed)
        assert_near(case, rows, piece(case, wanted, case.dim, rank), piece(case, allowed, case.dim, rank))
    assert {last_plan(name).backend for name in ("ag_gemm_k", "a2a_gemm")} == {backend}


@pytest.mark.parametrize("operator", [ag_gemm_k, a2a_gemm])
def test_programs_of_a_backend_that_takes_none_are_refused(operator):
    x, w = torch.randn(8, 8), torch.randn(16, 8)

    def body(group):
        with pytest.raises(UsageError, match="copy_engine takes no programs of the kernel") as caught:
            operator(x, w, group=group, comm_sms=4)
        assert "ldst_reserved" in caught.value.help and "tma_reserved" in caught.value.help
        with pytest.raises(UsageError, match="copy_engine takes no programs of the kernel"):
            reserve(group, max_tokens=8, hidden=16, operator=operator.__name__, comm_sms=4)

    World(2).run(body)
