"""Choosing a provider, and keeping torch's rendezvous numbers alike on ranks with different histories."""

from types import SimpleNamespace

import pytest
import torch

from overlap.errors import RuntimeContractError, UsageError
from overlap.runtime import providers
from overlap.runtime.providers import torch_symm


def broken(name):
    def make(group, device):
        raise ImportError(f"no {name} here")

    return make


@pytest.mark.parametrize(
    ("setting", "here", "chosen"),
    [
        ("auto", ("torch", "nvshmem"), "torch"),
        ("auto", ("nvshmem",), "nvshmem"),
        ("nvshmem", ("torch", "nvshmem"), "nvshmem"),
    ],
)
def test_the_setting_chooses_and_auto_prefers_torch(monkeypatch, setting, here, chosen):
    monkeypatch.setenv("OVERLAP_PROVIDER", setting)
    for name in ("torch", "nvshmem"):
        make = (lambda group, device, name=name: name) if name in here else broken(name)
        monkeypatch.setattr(providers, f"_{name}", make)
    assert providers.choose_provider(None, torch.device("cpu")) == chosen


@pytest.mark.parametrize(
    ("setting", "said"), [("auto", "no torch here; nvshmem: .*no nvshmem here"), ("torch", "no torch here$")]
)
def test_a_provider_that_is_not_here_says_why(monkeypatch, setting, said):
    monkeypatch.setenv("OVERLAP_PROVIDER", setting)
    for name in ("torch", "nvshmem"):
        monkeypatch.setattr(providers, f"_{name}", broken(name))
    with pytest.raises(RuntimeContractError) as caught:
        providers.choose_provider(None, torch.device("cpu"))
    assert caught.match(said) if setting == "auto" else "nvshmem:" not in caught.value.message


def test_a_provider_that_is_none(monkeypatch):
    monkeypatch.setenv("OVERLAP_PROVIDER", "torhc")
    with pytest.raises(UsageError, match="OVERLAP_PROVIDER"):
        providers.choose_provider(None, torch.device("cpu"))


@pytest.fixture
def memory(monkeypatch):
    """A provider of a group of 3 over a stand-in for torch's module; ``calls`` are its rendezvous."""
    calls = []

    def rendezvous(tensor, group):
        calls.append(group)
        return SimpleNamespace(get_buffer=lambda p, shape, dtype: (p, shape, dtype))

    made = torch_symm.TorchSymmetricMemory("all", torch.device("cpu"))
    made._symm_mem = SimpleNamespace(empty=torch.empty, rendezvous=rendezvous)
    made.calls = calls
    monkeypatch.setattr(torch_symm, "_made", 0)
    monkeypatch.setattr(torch_symm, "_group_of_this_rank", lambda: "alone")
    monkeypatch.setattr(torch_symm.dist, "get_rank", lambda group: 1)
    monkeypatch.setattr(torch_symm.dist, "get_world_size", lambda group: 3)
    return made


def test_ranks_with_one_history_meet_at_once(memory):
    local = memory.allocate(4, torch.float32)
    peers = memory.map(local, [0, 0, 0])
    assert memory.calls == ["all"] and memory.history() == 1
    assert peers == [(0, (4,), torch.float32), local, (2, (4,), torch.float32)]


def test_a_rank_that_is_behind_catches_up_alone_and_one_ahead_does_not(memory):
    memory.map(memory.allocate(4, torch.float32), [3, 0, 2])
    assert memory.calls == ["alone"] * 3 + ["all"] and memory.history() == 4
    memory.map(memory.allocate(4, torch.float32), [1, 4, 0])
    assert memory.calls[4:] == ["all"]


def test_one_rank_alone_needs_no_rendezvous(memory, monkeypatch):
    monkeypatch.setattr(torch_symm.dist, "get_world_size", lambda group: 1)
    local = memory.allocate(4, torch.float32)
    assert memory.map(local, [0]) == [local] and memory.calls == [] and memory.history() == 0


def test_multicast_is_switched_off(monkeypatch):
    monkeypatch.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", raising=False)
    torch_symm.TorchSymmetricMemory("all", torch.device("cpu"))
    assert torch_symm.os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
