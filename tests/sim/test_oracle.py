"""Inputs and wanted results of each kind of communicated tensor, against the definition of what the ranks hold."""

from types import SimpleNamespace

import pytest
import torch

from overlap.runtime.operator import Comm
from overlap.sim.inputs import make_inputs, rank_sizes
from overlap.sim.oracle import wanted_results

pytestmark = pytest.mark.one_triton

SIZES = {"M": 7, "N": 5, "K": 6}
INPUTS = {"a": ("M", "K"), "b": ("K", "N")}
OUTPUTS = {"c": ("M", "N")}


def operator(*ons):
    """A product of a and b with the tensors in ``ons`` communicated: (text, kind)."""
    comms = []
    for text, kind in ons:
        tensor, _, rest = text.partition("[")
        axis, _, to = rest.rstrip("]").partition(":")
        produced = tensor in OUTPUTS
        dims = (OUTPUTS if produced else INPUTS)[tensor]
        at, to_at = (dims.index(x) if x else None for x in (axis, to))
        comms.append(Comm(tensor, tensor, kind, produced, dims, axis or None, at or 0, to or None, to_at, plan=""))
    return SimpleNamespace(comms=tuple(comms), inputs=INPUTS, outputs=OUTPUTS, ranges=(), body=lambda call, a, b: None)


def product(call):
    return ((call.whole["a"].double() @ call.whole["b"].double()).to(call.whole["a"].dtype),)


def made(op, world, dtype=torch.float64):
    (ranks,) = make_inputs(op, SIZES, dtype, world, 1)
    return ranks, wanted_results(op, [product(call) for call in ranks], SIZES)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 9])
class TestKinds:
    def test_reduce_scatter_gives_each_rank_its_rows_of_the_sum(self, world):
        ranks, wanted = made(operator(("c[M]", "reduce_scatter")), world)
        total = sum(call.passed["a"] @ call.passed["b"] for call in ranks)
        assert torch.allclose(torch.cat([w.values for (w,) in wanted]), total, rtol=1e-12)
        assert len({call.passed["a"].sum().item() for call in ranks}) == world

    def test_all_reduce_gives_all_of_it(self, world):
        ranks, wanted = made(operator(("c[]", "all_reduce")), world)
        total = sum(call.passed["a"] @ call.passed["b"] for call in ranks)
        assert all(torch.allclose(w.values, total, rtol=1e-12) for (w,) in wanted)

    def test_an_exchanged_result_is_whole_along_the_kernels_axis(self, world):
        op = operator(("c[M:N]", "all_to_all"))
        ranks, wanted = made(op, world)
        rows = [call.passed["a"] for call in ranks]
        assert [len(a) for a in rows] == [rank_sizes(op, SIZES, world, r)["M"] for r in range(world)]
        whole = torch.cat([call.passed["a"] @ call.passed["b"] for call in ranks])
        assert torch.equal(torch.cat([w.values for (w,) in wanted], 1), whole)

    def test_an_exchanged_input_is_passed_by_columns_and_seen_by_rows(self, world):
        op = operator(("a[K:M]", "all_to_all"))
        ranks, wanted = made(op, world)
        whole = torch.cat([call.passed["a"] for call in ranks], 1)
        assert whole.shape == (7, 6) and torch.equal(whole, torch.cat([call.whole["a"] for call in ranks]))
        for call, (result,) in zip(ranks, wanted, strict=True):
            assert torch.equal(result.values, call.whole["a"] @ call.whole["b"])

    def test_gathered_and_reduced(self, world):
        op = operator(("a[M]", "gather"), ("c[M]", "reduce_scatter"))
        ranks, wanted = made(op, world)
        whole = torch.cat([call.passed["a"] for call in ranks])
        total = sum(whole @ call.passed["b"] for call in ranks)
        assert torch.allclose(torch.cat([w.values for (w,) in wanted]), total, rtol=1e-12)


def test_a_missing_summand_is_more_than_the_tolerance():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        ranks, wanted = made(operator(("c[]", "all_reduce")), 4, dtype)
        parts = [product(call)[0].double() for call in ranks]
        assert (sum(parts) - wanted[0][0].values).abs().max() == 0
        assert (parts[0].abs() > wanted[0][0].tolerance).any()
