"""Serial calls that go by the library's collective are repeated as others are: found by a key, over new tensors."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from overlap.api import small
from overlap.api.repeat import Known
from overlap.ops import a2a_gemm, ag_gemm, ag_gemm_k, gemm_a2a, gemm_ar, gemm_rs, last_plan
from overlap.runtime.repeat import known_calls

OPERATORS = {each.__name__: each for each in (ag_gemm, ag_gemm_k, gemm_rs, gemm_ar, a2a_gemm, gemm_a2a)}


@pytest.fixture
def group(monkeypatch):
    """A group of one rank, and a runtime that it is known by, as any group on GPUs has one from its first call on."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    runtime = type("Runtime", (), {})()
    monkeypatch.setattr(known_calls, "known_runtime", lambda found: runtime)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def repeated(monkeypatch):
    """How many calls were repeated."""
    found = []
    again = Known.again
    monkeypatch.setattr(Known, "again", lambda self, *call: found.append(again(self, *call)) or found[-1])
    return found


def operands(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, w, bias = (torch.randn(size, generator=generator) for size in ((6, 5), (5, 4), (4,)))
    return x, w, bias


@pytest.mark.parametrize("name", OPERATORS)
def test_a_second_call_is_found_and_right(group, repeated, name):
    for seed in range(3):
        x, w, bias = operands(seed)
        y = OPERATORS[name](x, w, bias=bias, group=group, backend="serial")
        torch.testing.assert_close(y, torch.addmm(bias, x, w))
        assert last_plan(name).plan == "collective"
    assert len(repeated) == 2 and all(found is not None for found in repeated)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_call_inside_a_capture_is_not_kept(group, repeated, name, monkeypatch):
    monkeypatch.setattr(small, "_captured", lambda tensor: True)
    x, w, _ = operands(0)
    for _ in range(2):
        OPERATORS[name](x, w, group=group, backend="serial")
    assert repeated == []
