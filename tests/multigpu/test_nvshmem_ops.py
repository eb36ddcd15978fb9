"""The prebuilt operators and their gradients where peers of other nodes are reached through NVSHMEM alone, on real ranks.

On one host the halves of the ranks count as nodes. 2 ranks are 2 nodes of 1, 4 ranks 2 nodes of 2; a single rank has no peer.
"""

import pytest
import torch

import overlap
from overlap.ops import ag_gemm, gemm_rs, last_plan
from overlap.runtime.workspace import check
from tests.support.operands import COLUMNS, OPERATORS, ROWS, piece, random, rehearsed
from tests.support.ranks import delay
from tests.support.realizations import no_nvshmem
from tests.support.rehearsal import of_tests

from .conftest import WORLD

pytestmark = pytest.mark.skipif(bool(no_nvshmem()), reason=no_nvshmem())
HALF = max(1, WORLD // 2)


def ahead():
    """What is compiled ahead of the tests (`tests.support.ahead`)."""
    yield from of_tests(test_operators, test_a_large_product, node=HALF)


@pytest.fixture(autouse=True)
def nodes(monkeypatch, one_folder):
    monkeypatch.setenv("OVERLAP_NODE_RANKS", str(HALF))


class Operands:
    """The same x [M, K], w [K, N] and gradient of y on every rank, fp16, and what products of them may miss in fp32."""

    def __init__(self, rank, m, n, k, seed):
        shapes = ((m, k), (k, n), (m, n))
        self.x, self.w, self.dy = (random(shape, 3 * seed + i, torch.float16) for i, shape in enumerate(shapes))
        self.rank = rank

    def mine(self, tensor, dim):
        return tensor.clone() if dim is None else piece(tensor, dim, WORLD, self.rank).clone()

    def check(self, found, a, b, dim, what):
        """``found`` is this rank's piece along ``dim`` of a @ b: partial sums and results are rounded once each."""
        if rehearsed():
            return
        a, b = a.float(), b.float()
        wanted, magnitude = (self.mine(product, dim) for product in (a @ b, a.abs() @ b.abs()))
        assert found.shape == wanted.shape, (what, found.shape, wanted.shape)
        missed = ~((found.float() - wanted).abs() <= torch.finfo(torch.float16).eps * magnitude)
        assert not missed.any(), (
            f"{what}, rank {self.rank}: {int(missed.sum())} of {missed.numel()}, {missed.nonzero()[:4]}"
        )


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators(group, operator):
    rank = group.rank()
    of_x, of_w, of_y = OPERATORS[operator]
    sizes = {"gather_size": 515} if of_x == ROWS else {}
    for seed in range(3):
        delay(seed, rank)
        o = Operands(rank, 515, 40 * WORLD, 24 * WORLD, seed)
        call = getattr(overlap.ops, operator)
        y = call(o.mine(o.x, of_x), o.mine(o.w, of_w), group=group, backend="nvshmem", **sizes)
        o.check(y, o.x, o.w, of_y, f"{operator}, seed {seed}")
    assert last_plan(operator).backend == "nvshmem", last_plan(operator)
    check(group)


@pytest.mark.parametrize(("operator", "of_w"), [(ag_gemm, COLUMNS), (gemm_rs, ROWS)])
def test_gradients(group, operator, of_w):
    """A gather's gradient is a scatter between nodes, and the other way round."""
    rank = group.rank()
    of_x, of_y = (ROWS, COLUMNS) if operator is ag_gemm else (COLUMNS, ROWS)
    sizes = {"gather_size": 515} if operator is ag_gemm else {}
    for seed in range(3):
        delay(seed, rank)
        o = Operands(rank, 515, 40 * WORLD, 24 * WORLD, seed)
        x, w = o.mine(o.x, of_x).requires_grad_(), o.mine(o.w, of_w).requires_grad_()
        y = operator(x, w, group=group, backend="nvshmem", **sizes)
        o.check(y.detach(), o.x, o.w, of_y, f"{operator.__name__}, seed {seed}")
        y.backward(o.mine(o.dy, of_y))
        o.check(x.grad, o.dy, o.w.t(), of_x, f"dx of {operator.__name__}, seed {seed}")
        o.check(w.grad, o.x.t(), o.dy, of_w, f"dw of {operator.__name__}, seed {seed}")
    other = gemm_rs if operator is ag_gemm else ag_gemm
    assert last_plan(other.__name__).backend == "nvshmem", last_plan(other.__name__)
    check(group)


def test_a_large_product(group):
    rank = group.rank()
    whole, w = random((4096, 1024), 5, torch.bfloat16), random((1024, 768), 6, torch.bfloat16)
    for _ in range(3):
        y = ag_gemm(piece(whole, ROWS, WORLD, rank).clone(), w, group=group, backend="nvshmem")
        if rehearsed():
            return
        wanted = whole.float() @ w.float()
        error = ((y.float() - wanted).abs() / (wanted.abs() + 1)).max().item()
        assert error < 2e-2, (rank, error)
    assert "nvshmem" in repr(last_plan()), last_plan()
    check(group)
