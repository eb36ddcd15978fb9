"""Values of every kind arrive bit by bit where nothing is added to them."""

import pytest
import torch

from overlap.annotate.source import SourceUnit
from overlap.errors import MismatchFault
from overlap.pipeline import Request, compile_source
from overlap.sim import check_module
from overlap.sim.payload import bits_of, differing_bits, payload_of

DTYPES = ["fp16", "bf16", "fp32", "fp8e4nv", "int8"]


@pytest.fixture
def copied(repo, tmp_path, monkeypatch):
    monkeypatch.chdir(repo)

    def make(plan, on, edits=()):
        source = repo / "tests" / "sim" / "modules" / "copy_tiles.py"
        text = compile_source(Request(SourceUnit.from_file(source), plan, on)).module.text
        for old, new in edits:
            assert text.count(old) == 1
            text = text.replace(old, new)
        path = tmp_path / "copy_out.py"
        path.write_text(text)
        return str(path)

    return make


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_payloads_hold_every_special_value(dtype):
    values = payload_of([300], dtype, torch.Generator().manual_seed(1))
    wide = values.double()
    tiny = torch.finfo(dtype).tiny
    assert (wide == 0).logical_and(wide.signbit()).any()
    assert (wide.abs() < tiny).logical_and(wide != 0).any()
    assert (wide == float("inf")).any() and (wide == -float("inf")).any()
    assert len(set(bits_of(values)[values.isnan().numpy()].tolist())) >= 2
    other = values.clone()
    assert differing_bits(values, other) is None
    bits_of(other)[17] ^= 1
    assert bits_of(other)[17] != bits_of(values)[17]
    assert differing_bits(values, other) == (1, (17,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("plan", "on"),
    [
        ("all_gather_1d", "a[M]"),
        ("all_gather_ring", "a[N]"),
        ("all_to_all_1d", "c[M:N]"),
        ("all_to_all_1d", "c[N:M]"),
        ("all_to_all_1d", "a[N:M]"),
    ],
)
def test_moves_are_exact_in_every_bit(copied, plan, on, dtype):
    path = copied(plan, on)
    report = check_module(path, world=3, shape={"M": 33, "N": 21}, dtype=dtype, launches=2, payload=True)
    assert report.ok, str(report)


def test_one_rank_adds_nothing(copied):
    for plan, on in (("reduce_scatter_1d", "c[M]"), ("all_reduce_one_shot", "c[]")):
        report = check_module(copied(plan, on), world=1, shape={"M": 33, "N": 21}, dtype="fp16", payload=True)
        assert report.ok, str(report)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_kernel_that_loses_a_bit_is_found(copied):
    """-0.0 + 0.0 is 0.0: equal as a number."""
    path = copied("all_to_all_1d", "c[M:N]", edits=(("a, mask=inside)", "a + 0.0, mask=inside)"),))
    report = check_module(path, world=2, shape={"M": 33, "N": 21}, dtype="fp16", payload=True)
    assert isinstance(report.faults[0].error, MismatchFault) and "in their bits" in str(report)
